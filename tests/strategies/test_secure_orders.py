"""A server that asks one node for something else than the others, to read what the others add to the sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from task.config.run_name import MACHINE, OF_A_NODE, session_terms
from task.config.sections import Value
from task.wire import messages as wire
from task.wire import secure
from task.wire.shared import OWN
from tests.support.federation import owners_config, play, write_owners
from tests.support.grid import LocalGrid

EIGHT = {f"owner-{i}": 5 + 3 * i for i in range(8)}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, EIGHT)
    return path


def hostile(change: Callable[[Message], None], kinds: str = "train") -> type[LocalGrid]:
    """Return a grid that changes what all nodes but the first are asked, in messages of these kinds."""

    class Hostile(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            if self.index[message.metadata.dst_node_id] and message.metadata.message_type.startswith(kinds):
                change(message)
            return super()._deliver(message)

    return Hostile


def entry(name: str, value: Any) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        config = message.content["config"]
        assert isinstance(config, ConfigRecord)
        config[name] = value(config.get(name)) if callable(value) else value

    return change


def model(message: Message) -> None:
    """Send a model of zeros."""
    arrays = wire.read_arrays(message.content["arrays"])  # type: ignore[arg-type]
    message.content["arrays"] = wire.pack_arrays({n: np.zeros_like(a) for n, a in arrays.items()})


ORDERS = {
    "a learning rate of 0": entry("lr", 0.0),
    "another model": model,
    "another round": entry("server-round", 7),
    "another run": entry("run", "another"),
    "an entry that no version has yet": entry("momentum-of-the-future", 0.0),
    "rounds that do not count": entry("void-rounds", [1]),
    "less than no epochs": entry("epochs", lambda old: [-1] * len(old)),
    "more epochs than configured": entry("epochs", lambda old: [9] * len(old)),
}


@pytest.mark.parametrize("what", ORDERS)
def test_a_node_that_is_asked_for_something_else_adds_nothing_and_no_sum_is_opened(
    what: str, owners: Path
) -> None:
    keys = owners_config(owners, num_server_rounds=1, secagg=True)
    played = play(keys, nodes=3, grid_type=hostile(ORDERS[what]))
    assert played.rows[1]["skipped"]
    assert not played.messages("query.secagg_unmask")
    why = " ".join(q["got"] for q in played.rows[1]["quarantined"])
    assert "a different request than the others" in why or "field 'epochs': expected 0 to 1" in why


@pytest.mark.parametrize(("name", "value"), [("round", 7), ("run", "another"), ("order", "f" * 64)])
def test_a_session_that_names_another_round_run_or_order_opens_nothing(
    name: str, value: Any, owners: Path
) -> None:
    """Whether it names that to some nodes, which the others' shares do not open for then, or to all."""

    def change(message: Message) -> None:
        record = message.content.get(secure.SECAGG)
        if isinstance(record, ConfigRecord):
            record[name] = value

    keys = owners_config(owners, num_server_rounds=1, secagg=True)
    some = play(keys, nodes=3, grid_type=hostile(change, ""))
    everyone = type("Everyone", (hostile(change, ""),), {"index": property(lambda s: One(), lambda s, v: 0)})
    for played in (some, play(keys, nodes=3, grid_type=everyone)):
        assert played.rows[1]["skipped"]
        assert played.rows[1]["model_sha256"] == played.rows[0]["model_sha256"]


class One(dict[int, int]):
    """Says of each node that it is not the first."""

    def __missing__(self, key: int) -> int:
        return 1


def test_nodes_under_unlike_run_configs_add_up_to_nothing(owners: Path) -> None:
    """The link hands each node the run config: a step of size 0 needs no order that says so."""
    keys = owners_config(owners, num_server_rounds=1, secagg=True)

    class Unlike(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            node = message.metadata.dst_node_id
            if self.index[node]:
                self.contexts[node].run_config["momentum"] = 0.5
            return super()._deliver(message)

    row = play(keys, nodes=3, grid_type=Unlike).rows[1]
    assert row["skipped"]
    assert any("a different request than the others" in q["got"] for q in row["quarantined"])


def test_a_node_whose_clients_all_fail_is_no_node_of_the_sum(owners: Path) -> None:
    """A server that names clients which a node does not have would else know what it adds: nothing."""
    keys = owners_config(owners, num_server_rounds=1, secagg=True)
    nobody = entry("clients", lambda old: [f"nobody-{i}" for i in range(len(old))])
    played = play(keys, nodes=3, grid_type=hostile(nobody))
    assert played.rows[1]["skipped"]
    assert not played.messages("query.secagg_unmask")


def test_a_second_name_of_a_run_gives_no_second_sum_of_a_round(owners: Path) -> None:
    """What a node remembers of the sums that it helped to open goes by the run's name."""
    keys = owners_config(owners, num_server_rounds=2, secagg=True)

    def rename(message: Message) -> None:
        for record in (message.content.get(secure.SECAGG), message.content.get("config")):
            if isinstance(record, ConfigRecord) and message.metadata.group_id == "2":
                record["run"] = "another"

    rows = play(keys, nodes=3, grid_type=hostile(rename, "")).rows
    assert not rows[1]["skipped"]
    assert rows[2]["skipped"]
    assert any("of the orders before" in q["got"] for q in rows[2]["quarantined"])


def test_all_run_config_keys_but_those_of_a_machine_are_part_of_the_session() -> None:
    """Each that is left out has a reason; a new key is in without further ado."""
    from task.config.knobs import Config
    from task.config.read import as_run_config

    keys = as_run_config(Config())
    for key, value in keys.items():
        same = session_terms({**keys, key: other(value)}) == session_terms(keys)
        assert same == (key in {**MACHINE, **OF_A_NODE}), key
    assert all({**MACHINE, **OF_A_NODE, **OWN}.values())


def other(value: Value) -> Value:
    """Return another value of a key."""
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value + 1

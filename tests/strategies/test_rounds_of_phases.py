"""Rules of several phases that a stranger might add: a line search, and a ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies.engine.rule import over_models
from task.numerics.arrays import Arrays
from task.wire import messages as wire
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import SIZES, Played, owners_config, play

# --------------------------------------------------------------------------------------- line search


def train(owners: Path, nodes: int = 2, tamper: Any = None, **keys: Any) -> Played:
    options = {"learning_rate": 0.2, "batch_size": 4, "num_server_rounds": 3, **keys}
    return play(owners_config(owners, **options), nodes=nodes, tamper=tamper)


# ---------------------------------------------------------------------------------------------- ring


def test_in_a_ring_each_client_starts_from_the_model_of_the_one_before_it(owners: Path) -> None:
    replies: list[Arrays] = []

    def watch(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            replies.append(wire.read_arrays(reply.content["arrays"]))  # type: ignore[arg-type]
        return reply

    played = train(owners, tamper=watch, selection="cycle", num_server_rounds=2)
    sent = played.messages()
    assert [m.content["config"]["clients"] for m in sent] == [[name] for name in sorted(SIZES)] * 2
    received = [wire.read_arrays(m.content["arrays"]) for m in sent]  # type: ignore[arg-type]
    for before, after in zip(replies, [*received[1:], played.arrays(2)], strict=True):
        assert all(np.array_equal(before[n], after[n]) for n in after)
    assert played.rows[1]["answered"] == len(SIZES)


def test_a_ring_is_the_same_on_any_nodes(owners: Path) -> None:
    keys = owners_config(owners, batch_size=4, num_server_rounds=3, selection="cycle")
    the_same_on_any_nodes_and_resumed(keys, nodes=(2, 1, 3, 5))


@pytest.mark.parametrize(
    ("min_replies", "fails", "skipped"), [(1, 2, False), (5, 2, True), (1, 0, False), (1, 4, False)]
)
def test_the_model_passes_by_a_client_that_fails(
    min_replies: int, fails: int, skipped: bool, owners: Path
) -> None:
    trained = iter(range(99))

    def tamper(node: int, reply: Message) -> Message | None:
        return None if reply.metadata.message_type == "train" and next(trained) == fails else reply

    keys = {"selection": "cycle", "round_timeout": 0.5, "num_server_rounds": 1, "min_replies": min_replies}
    played = train(owners, 5, tamper, **keys)
    assert played.rows[1]["skipped"] is skipped
    assert [line["client"] for line in played.rows[1]["quarantined"]] == [sorted(SIZES)[fails]]
    assert played.rows[1]["answered"] == 4


def test_a_shuffled_cycle_visits_everybody_in_an_order_of_its_own_each_round(owners: Path) -> None:
    def order(played: Played, t: int) -> list[str]:
        sent = [m for m in played.messages() if m.metadata.group_id == str(t)]
        return [client for m in sent for client in wire.clients_of(m)]

    keys = {"selection": "cycle", "num_server_rounds": 3, "select__order": "shuffled"}
    one, other = train(owners, 1, **keys), train(owners, 3, **keys)
    orders = [order(one, t) for t in (1, 2, 3)]
    assert [sorted(o) for o in orders] == [sorted(SIZES)] * 3
    assert len({tuple(o) for o in (*orders, sorted(SIZES))}) == 4
    assert [order(other, t) for t in (1, 2, 3)] == orders
    assert other.rows[3]["model_sha256"] == one.rows[3]["model_sha256"]


def test_the_model_is_measured_after_every_hop() -> None:
    found = [{"loss": 1.0, "accuracy": 0.5}, {"loss": 4.0, "accuracy": 0.25}, {}]
    assert over_models(found) == {
        "loss-mean": 2.5, "loss-worst": 4.0, "accuracy-mean": 0.375, "accuracy-worst": 0.25,
    }  # fmt: skip
    assert over_models([{}, {}]) == {}

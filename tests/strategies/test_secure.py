"""Runs under secure aggregation: the same models, drop-outs at every stage, and what nodes refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.features import CHOICES
from task.resolve.read import read_config
from task.secagg.node import RoundMemory
from task.wire import messages as wire
from task.wire import secure
from task.wire.registration import REGISTER
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import owners_config, play, write_owners
from tests.support.grid import LocalGrid
from tests.support.horizontal import HORIZONTAL
from tests.support.shapes import by_shape
from tests.test_contract import config

SECURE = next(c for c in CHOICES if c.key == "secagg")
ADMITTED = [n for n, entry in HORIZONTAL.items() if not SECURE.why_not(entry)]
STAGES = ("query.secagg_keys", "query.secagg_shares", "train", "query.secagg_unmask")
TEN = {f"owner-{i}": 5 + 3 * i for i in range(10)}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, TEN)
    return path


class Losing(LocalGrid):
    """Loses the answers of chosen nodes, by message type and round, and keeps what goes up."""

    lost: Callable[[int, str, int], bool] = staticmethod(lambda node, kind, server_round: False)

    def _deliver(self, message: Message) -> Message | None:
        reply = super()._deliver(message)
        kind, t = message.metadata.message_type, int(message.metadata.group_id)
        self.up = getattr(self, "up", [])
        if reply is not None and reply.has_content():
            self.up.append((kind, self.index[message.metadata.dst_node_id], reply.content))
        return None if self.lost(self.index[message.metadata.dst_node_id], kind, t) else reply


def losing(lost: Callable[[int, str, int], bool]) -> type[Losing]:
    return type("Losing", (Losing,), {"lost": staticmethod(lost)})


def hashes(rows: list[dict[str, Any]]) -> list[str]:
    return [row["model_sha256"] for row in rows]


@pytest.mark.parametrize("nodes", [3, pytest.param(10, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", by_shape(((n,) for n in ADMITTED), 2))
def test_the_models_are_those_of_the_plain_run(name: str, nodes: int, owners: Path) -> None:
    more: dict[str, Any] = {"stragglers": 0.3, "local_epochs": 2} if name == "fedprox" else {}
    keys = config(owners, name, num_server_rounds=2, local_test_fraction=0.3, fraction_evaluate=1.0, **more)
    plain = play(keys, nodes=nodes).rows
    masked = play(keys | {"secagg": True}, nodes=nodes).rows
    assert hashes(masked) == hashes(plain)
    assert len(set(hashes(plain))) > 1 or not ALGORITHMS[name].up
    for row, want in zip(masked, plain, strict=True):
        for key in ("train_loss", "client_loss", "client_accuracy", "metrics", "answered", "client_counts"):
            assert row[key] == want[key], key
        assert row["quarantined"] == []
    assert masked[-1]["answered"] == len(TEN)


@pytest.mark.parametrize(
    "more",
    [
        {"selection": "proportional", "fraction_train": 0.6},
        {"attack__kind": "little-is-enough", "attack__fraction": 0.3},
        {"model": "mlp", "codec__down": "int8"},
        {"max_update_norm": 5.0, "local_epochs": 3},
        {"metrics": "f1-macro", "fraction_evaluate": 1.0, "local_test_fraction": 0.3},
    ],
    ids=str,
)
def test_the_models_are_those_of_the_plain_run_under_other_keys(more: dict[str, Any], owners: Path) -> None:
    keys = owners_config(owners, num_server_rounds=3, **more)
    plain, masked = play(keys, nodes=4), play(keys | {"secagg": True}, nodes=4)
    assert hashes(masked.rows) == hashes(plain.rows)
    assert masked.rows[-1]["selected"] == plain.rows[-1]["selected"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_node_that_is_lost_at_a_stage_is_left_out_of_the_sum(stage: str, owners: Path) -> None:
    """Its clients are in the sum only if it sent its masked numbers. A plain run without them is the same."""
    keys = owners_config(owners, num_server_rounds=2, round_timeout=3.0)
    lost: Callable[[int, str, int], bool] = lambda node, kind, t: node == 1 and kind == stage and t == 2  # noqa: E731
    masked = play(keys | {"secagg": True}, nodes=4, grid_type=losing(lost))
    row = masked.rows[2]
    out = {q["client"] for q in row["quarantined"]}
    counted = len(TEN) - len(out)
    assert not row["skipped"]
    assert row["answered"] == counted
    assert bool(out) == (stage != "query.secagg_unmask")
    assert all("within 3 s" in q["got"] for q in row["quarantined"])
    silent: Callable[[int, str, int], bool] = lambda node, kind, t: node == 1 and kind == "train" and t == 2  # noqa: E731
    plain = play(keys | {"fraction-train": 1.0}, nodes=4, grid_type=losing(silent) if out else LocalGrid)
    assert hashes(masked.rows) == hashes(plain.rows)


@pytest.mark.parametrize("stage", STAGES)
def test_a_round_with_too_few_nodes_left_keeps_the_model(stage: str, owners: Path) -> None:
    keys = owners_config(owners, num_server_rounds=3, round_timeout=1.0, secagg=True)
    lost: Callable[[int, str, int], bool] = lambda node, kind, t: node < 2 and kind == stage and t == 2  # noqa: E731
    rows = play(keys, nodes=4, grid_type=losing(lost)).rows
    assert [row["skipped"] for row in rows[1:]] == [False, True, False]
    assert rows[2]["model_sha256"] == rows[1]["model_sha256"] != rows[3]["model_sha256"]
    assert rows[2]["answered"] == 0
    assert any("expected at least 3 nodes" in q["got"] for q in rows[2]["quarantined"])
    assert len(rows[2]["quarantined"]) == len(TEN)


def test_a_run_on_two_nodes_trains_nobody(owners: Path) -> None:
    rows = play(owners_config(owners, num_server_rounds=2, secagg=True), nodes=2).rows
    assert [row["skipped"] for row in rows[1:]] == [True, True]
    assert "secagg-min-nodes" in rows[1]["quarantined"][0]["got"]


def test_a_client_that_fails_is_left_out_by_its_node_without_a_word_of_why(
    owners: Path, tmp_path: Path
) -> None:
    keys = owners_config(owners, num_server_rounds=1, max_update_norm=1e-3)
    plain = play(keys, nodes=4).rows
    masked = play(keys | {"secagg": True}, nodes=4, grid_type=Losing)
    assert hashes(masked.rows) == hashes(plain)
    bad = masked.rows[1]["quarantined"]
    assert [q["client"] for q in bad] == [q["client"] for q in plain[1]["quarantined"]] != []
    assert {q["got"] for q in bad} == {"a failure, which its node does not describe"}


def test_nothing_of_a_single_client_is_on_the_wire(owners: Path) -> None:
    """Every answer is two public keys, encrypted shares, words that are uniform, or shares of keys."""
    keys = owners_config(
        owners, num_server_rounds=2, fraction_evaluate=1.0, local_test_fraction=0.3, model="mlp"
    )
    grid: Any = play(keys | {"secagg": True}, nodes=10, grid_type=Losing).grid
    wanted = {
        "query.secagg_keys": {"sealing", "masking", "proof"},
        "query.secagg_shares": {"to", "sealed"},
        "query.secagg_unmask": {"of", "shares"},
        "train": {"numbers", "failed", "diverged"},
        "evaluate": {"numbers", "failed", "diverged"},
    }
    words, kinds = [], set()
    for kind, _, content in grid.up:
        if kind == f"query.{REGISTER}":
            continue
        kinds.add(kind)
        assert dict(content.metric_records) == {}
        assert {k: set(r) for k, r in content.config_records.items()} == {"secagg": wanted[kind]}
        masked = kind in ("train", "evaluate")
        assert {k: set(r) for k, r in content.array_records.items()} == (
            {"masked": {"low", "high"}} if masked else {}
        )
        if masked:
            assert content["secagg"]["failed"] == content["secagg"]["diverged"] == []
            words.append(content["secagg"]["numbers"])
            words += [a.tobytes() for a in wire.read_arrays(content["masked"]).values()]
    assert kinds == wanted.keys()
    raw = np.frombuffer(b"".join(words), np.uint8)
    counts = np.bincount(raw, minlength=256)
    chi = float(((counts - raw.size / 256) ** 2 / (raw.size / 256)).sum())
    assert raw.size > 100_000
    assert 150 < chi < 375  # 255 degrees of freedom


def test_the_secret_of_a_round_is_gone_after_it(owners: Path) -> None:
    grid = play(owners_config(owners, num_server_rounds=2, secagg=True), nodes=3).grid
    for context in grid.contexts.values():
        state = RoundMemory.load(dict(context.state[secure.SECAGG]))  # type: ignore[arg-type, call-overload]
        assert state.secret == b""
        assert len(state.released) == 2


def test_no_node_sends_plain_numbers_under_secagg(owners: Path) -> None:
    """A server that leaves the protocol out of its orders gets none."""

    class Plain(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            if message.metadata.message_type == "train":
                rest = {k: r for k, r in message.content.items() if k != secure.SECAGG}
                message.content = RecordDict(rest)
            return super()._deliver(message)

    rows = play(owners_config(owners, num_server_rounds=1, secagg=True), nodes=3, grid_type=Plain).rows
    assert rows[1]["skipped"]
    why = {q["got"] for q in rows[1]["quarantined"]}
    assert any("no node sends unmasked numbers" in text for text in why)


def test_a_node_without_its_memory_is_left_out(owners: Path) -> None:
    """It began again between two stages."""

    class Forgetting(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            node = message.metadata.dst_node_id
            if message.metadata.message_type == "train" and self.index[node] == 2:
                self.contexts[node].state = RecordDict()
            return super()._deliver(message)

    rows = play(owners_config(owners, num_server_rounds=1, secagg=True), nodes=4, grid_type=Forgetting).rows
    assert not rows[1]["skipped"]
    assert any("no secret of this session" in q["got"] for q in rows[1]["quarantined"])


def test_a_resumed_run_makes_the_same_models(owners: Path) -> None:
    keys = owners_config(owners, algorithm="fedadam", num_server_rounds=3, secagg=True)
    the_same_on_any_nodes_and_resumed(keys, nodes=(3,))


def test_a_simulation_on_too_few_nodes_is_refused_before_round_1(owners: Path) -> None:
    from server_app.engines.simulate import simulate

    with pytest.raises(ConfigError, match="--nodes: expected at least 3"):
        simulate(owners_config(owners, secagg=True), nodes=2)


def test_another_loop_cannot_drive_it(owners: Path) -> None:
    from strategies.membership.stock_clients import check_loop

    with pytest.raises(ConfigError, match="no node sends its own model"):
        check_loop(ALGORITHMS["fedavg"], read_config(owners_config(owners, secagg=True)))

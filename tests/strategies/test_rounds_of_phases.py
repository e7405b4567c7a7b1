"""Rules of several phases that a stranger might add: a line search, and a ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies import STRATEGIES, Strategy
from strategies.engine.rule import TRAIN, Round, RoundContext, over_models
from strategies.engine.state import ServerState
from strategies.rules.fedavg import FedAvg
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import LOSS
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.wire import messages as wire
from tests.support.federation import SIZES, Played, owners_config, play, write_owners

STEPS = (0.5, 1.0, 2.0)


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


# --------------------------------------------------------------------------------------- line search


class LineSearchRule(FedAvg):
    """FedAvg whose cohort chooses the server's step among three by its training loss."""

    algorithm = "line-search"

    def round(self, state: ServerState, context: RoundContext) -> Round:
        """Train, ask for the loss of the model at each step, and take the best."""
        replies = yield context.phase(TRAIN, state)
        mean, losses = replies.arrays["arrays"], {}
        models = {s: {n: w + np.float32(s) * (mean[n] - w) for n, w in state.arrays.items()} for s in STEPS}
        for step, model in models.items():
            answers = yield context.phase("losses", replace(state, arrays=model), replies.clients)
            loss = answers.number(LOSS.name)
            assert loss is not None
            losses[step] = loss
        best = min(losses, key=lambda step: (losses[step], step))
        return replace(state, arrays=models[best]), {"step": best, "loss": losses[best]}


@pytest.fixture
def line_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the rule as a stranger would: an entry and a strategy; the clients have what they need."""

    class LineSearch(Strategy, rule=LineSearchRule):
        pass

    base = ALGORITHMS["fedavg"]
    query = replace(base, name="losses", rule="", solver="", up=(), up_scalars=(LOSS,), work="loss")
    phases = MappingProxyType({"losses": query})
    monkeypatch.setitem(
        ALGORITHMS, "line-search", replace(base, name="line-search", rule="line-search", phases=phases)
    )
    monkeypatch.setitem(STRATEGIES, "line-search", LineSearch)


def train(owners: Path, nodes: int = 2, tamper: Any = None, **keys: Any) -> Played:
    options = {"learning_rate": 0.2, "batch_size": 4, "num_server_rounds": 3, **keys}
    return play(owners_config(owners, **options), nodes=nodes, tamper=tamper)


@pytest.mark.usefixtures("line_search")
def test_a_line_search_takes_the_step_with_the_smallest_loss(owners: Path) -> None:
    played = train(owners, algorithm="line-search", learning_rate=0.02)
    fedavg = train(owners, learning_rate=0.02, num_server_rounds=1)
    start, mean = played.arrays(0), fedavg.arrays(1)
    step = played.rows[1]["metrics"]["step"]
    assert step == 2.0  # so small a learning rate leaves room
    for name, got in played.arrays(1).items():
        assert got.tobytes() == (start[name] + np.float32(step) * (mean[name] - start[name])).tobytes()
    losses = [row["metrics"]["loss"] for row in played.rows[1:]]
    assert losses == sorted(losses, reverse=True)
    kinds = [m.metadata.message_type for m in played.grid.sent if m.metadata.group_id == "2"]
    assert [kinds.count(kind) for kind in ("train", "evaluate.losses")] == [2, 6]


@pytest.mark.usefixtures("line_search")
def test_its_round_does_not_depend_on_the_nodes_and_all_its_bytes_are_booked(owners: Path) -> None:
    one, five = (train(owners, nodes, algorithm="line-search") for nodes in (1, 5))
    assert [r["model_sha256"] for r in one.rows] == [r["model_sha256"] for r in five.rows]
    assert one.rows[1]["bytes_down"] > 3.5 * train(owners, 1).rows[1]["bytes_down"]


@pytest.mark.usefixtures("line_search")
def test_a_lost_phase_after_the_training_keeps_the_model(owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message | None:
        return None if reply.metadata.message_type == "evaluate.losses" else reply

    played = train(owners, tamper=tamper, algorithm="line-search", round_timeout=0.5, num_server_rounds=1)
    assert played.rows[1]["skipped"]
    assert played.rows[1]["model_sha256"] == played.rows[0]["model_sha256"]


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


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_ring_is_the_same_on_any_nodes(nodes: int, owners: Path) -> None:
    hashes = [row["model_sha256"] for row in train(owners, nodes, selection="cycle").rows]
    assert hashes == [row["model_sha256"] for row in train(owners, 2, selection="cycle").rows]


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


@pytest.mark.parametrize("algorithm", ["fsvrg", "median", "fedfomo", "d-psgd"])
def test_a_rule_that_needs_several_replies_at_once_refuses_the_ring(algorithm: str, owners: Path) -> None:
    with pytest.raises(ConfigError, match=r'"selection": .* passes one model'):
        train(owners, selection="cycle", algorithm=algorithm)

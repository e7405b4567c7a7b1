"""Rounds of two phases: who takes part, what it costs, what goes wrong; in any round loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from client_app.app import make_app
from strategies import FSVRG
from task.config.read import as_run_config
from task.models import build_model
from task.numerics.arrays import state_of, trainable_names
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.federation import SIZES, Keep, Played, owners_config, play
from tests.support.grid import LocalGrid

BEFORE = "train.gradient"


def run(owners: Path, nodes: int = 5, tamper: Any = None, journal: Keep | None = None, **keys: Any) -> Played:
    options = {"algorithm": "fsvrg", "learning_rate": 0.5, "batch_size": 4, "num_server_rounds": 3, **keys}
    return play(owners_config(owners, **options), nodes=nodes, tamper=tamper, journal=journal)


def breaking(kind: str, node: int, how: Any) -> Any:
    """Return a tamper function for one node's replies to messages of one kind."""

    def tamper(index: int, reply: Message) -> Message | None:
        is_it = reply.metadata.message_type == kind
        answer: Message | None = how(reply) if index == node and is_it else reply
        return answer

    return tamper


def messages(played: Played, kind: str, t: int) -> list[Message]:
    return [m for m in played.messages(kind) if m.content["config"]["server-round"] == t]


def not_finite(reply: Message) -> Message:
    arrays = wire.read_arrays(reply.content["gradient"])  # type: ignore[arg-type]
    reply.content["gradient"] = wire.pack_arrays({n: np.full_like(a, np.nan) for n, a in arrays.items()})
    return reply


def without_count(reply: Message) -> Message:
    reply.content["metrics"] = MetricRecord({"train-loss": 1.0})
    return reply


def test_it_goes_to_the_clients_that_train_and_takes_the_received_model(owners: Path) -> None:
    played = run(owners, nodes=2, fraction_train=0.6)
    for t, cohort in enumerate(played.selected(), start=1):
        for kind in (BEFORE, "train"):
            sent = messages(played, kind, t)
            assert sorted(c for m in sent for c in m.content["config"]["clients"]) == cohort
        before, after = (messages(played, kind, t)[0] for kind in (BEFORE, "train"))
        assert set(before.content.array_records) == {"arrays"}
        assert set(after.content.array_records) == {"arrays", "gradient"}
        same = [wire.read_arrays(m.content["arrays"]) for m in (before, after)]
        assert all(np.array_equal(same[0][n], same[1][n]) for n in same[0])


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_its_bytes_are_those_that_were_sent_and_received(nodes: int, owners: Path) -> None:
    answered: dict[int, int] = {}

    def weigh(node: int, reply: Message) -> Message:
        t = int(reply.metadata.group_id)
        answered[t] = answered.get(t, 0) + wire.payload_bytes(reply.content)
        return reply

    played = run(owners, nodes=nodes, tamper=weigh)
    for t in (1, 2, 3):
        sent = [m for k in (BEFORE, "train") for m in played.messages(k)]
        down = sum(wire.payload_bytes(m.content) for m in sent if m.content["config"]["server-round"] == t)
        assert played.rows[t]["bytes_down"] == down
        assert played.rows[t]["bytes_up"] == answered[t]
        # Each client trains, and its line has the gradient before its training, too.
        lines = [c for c in played.keep.clients if c["round"] == t and c["phase"] == "train"]
        for key in ("bytes_down", "bytes_up"):
            assert sum(c[key] for c in lines) == pytest.approx(played.rows[t][key], abs=len(lines))
    fedavg = run(owners, nodes=nodes, algorithm="fedavg")
    assert played.rows[1]["bytes_up"] > 1.5 * fedavg.rows[1]["bytes_up"]


@pytest.mark.parametrize("how", [not_finite, without_count, lambda reply: None])
def test_who_fails_in_it_is_one_line_and_does_not_train(how: Any, owners: Path) -> None:
    played = run(owners, tamper=breaking(BEFORE, 0, how), round_timeout=0.5, num_server_rounds=2)
    (line,) = played.rows[1]["quarantined"]
    failed = line["client"]
    assert line["round"] == 1
    assert [q.client for q in played.keep.lines] == [failed] * 2
    trained = [c for m in played.messages() for c in m.content["config"]["clients"]]
    others = [n for n in sorted(SIZES) if n != failed]
    assert sorted(trained) == sorted(others * 2)
    # the round is that of the others alone
    counts = {c["name"]: c["examples"] for c in played.keep.clients}
    assert set(counts) == set(others)
    assert (played.rows[1]["asked"], played.rows[1]["answered"]) == (5, 4)


def test_who_fails_in_the_training_only_was_still_in_the_gradient(owners: Path) -> None:
    whole = run(owners, num_server_rounds=1)
    broken = run(owners, num_server_rounds=1, tamper=breaking("train", 0, lambda r: None), round_timeout=0.5)
    assert broken.rows[1]["metrics"] == whole.rows[1]["metrics"]
    assert len(broken.rows[1]["quarantined"]) == 1
    assert broken.rows[1]["model_sha256"] != whole.rows[1]["model_sha256"]


@pytest.mark.parametrize("min_replies", [1, 5])
def test_too_few_in_it_skip_the_round_and_no_stale_gradient_is_used(min_replies: int, owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message | None:
        lost = reply.metadata.message_type == BEFORE and reply.metadata.group_id == "2"
        return None if lost and (min_replies == 1 or node == 0) else reply

    played = run(owners, tamper=tamper, round_timeout=1.5, min_replies=min_replies)
    assert [row["skipped"] for row in played.rows] == [False, False, True, False]
    assert played.rows[2]["model_sha256"] == played.rows[1]["model_sha256"]
    assert [m for m in played.messages() if m.content["config"]["server-round"] == 2] == []
    assert len(played.rows[2]["quarantined"]) == (5 if min_replies == 1 else 1)


def test_stragglers_that_are_dropped_are_not_asked(owners: Path) -> None:
    played = run(owners, stragglers=0.4, drop_stragglers=True, local_epochs=3)
    for t, row in enumerate(played.rows[1:], start=1):
        for kind in (BEFORE, "train"):
            asked = {
                c for m in played.messages(kind) if m.content["config"]["server-round"] == t
                for c in m.content["config"]["clients"]
            }  # fmt: skip
            assert asked == set(row["selected"]) - set(row["stragglers"])


@pytest.mark.parametrize("nodes", [1, 3])
def test_flowers_own_loop_drives_it(nodes: int, owners: Path) -> None:
    """The first phase takes place in ``configure_train``: no loop has to know of it."""

    class InFlowersLoop(FSVRG):
        start = FlowerStrategy.start  # type: ignore[assignment]

    keys = owners_config(owners, algorithm="fsvrg", learning_rate=0.5, batch_size=4, num_server_rounds=3)
    config = read_config(keys)
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    grid = LocalGrid(make_app(simulation=True), configs, as_run_config(config))
    model = build_model("logistic", (4,), 3, seed=config.seed)
    strategy = InFlowersLoop(config)
    strategy.engine.trainable = trainable_names(model)
    result = strategy.start(
        grid,
        wire.pack_arrays(state_of(model)),
        num_rounds=3,
        train_config=ConfigRecord(),
        evaluate_config=ConfigRecord(),
    )
    want = play(keys, nodes=2).arrays(3)
    got = wire.read_arrays(result.arrays)
    assert all(np.array_equal(got[n], want[n]) for n in want)

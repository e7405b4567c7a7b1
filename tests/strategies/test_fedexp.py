"""FedExP: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import train
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fedexp import server_update
from task.config.algorithm_sections import FedExPConfig
from task.config.knobs import Config
from tests.support.federation import SIZES, owners_config, play, write_owners
from tests.support.liar import liar
from tests.support.models import OneNumber, task_on
from tests.support.rules import w


def two_parabolas(epsilon: float, rounds: int) -> list[float]:
    """Return w^0, w^1, ...: F_1 = x^2/2 and F_2 = 3(x - 4)^2/2, two full steps at eta = 0.1."""
    state, config, path = (
        ServerState(w(0, dtype=np.float64)),
        Config(fedexp=FedExPConfig(epsilon=epsilon)),
        [0.0],
    )
    for _ in range(rounds):
        x = path[-1]
        local = [0.81 * x, 4 + 0.49 * (x - 4)]
        scalars = {"square-norm": [(a - x) ** 2 for a in local]}
        arrays = {"arrays": w(sum(local) / 2, dtype=np.float64)}
        replies = AggregatedReplies(
            arrays, ("a", "b"), np.array([1, 9]), scalars, trainable=("w",), weights=np.array([1, 1])
        )
        state, _ = server_update(state, replies, config)
        path.append(float(state.arrays["w"][0]))
    return path


def test_three_rounds_by_hand_and_where_it_rests() -> None:
    """Round 1: mean Delta^2 = 2.04^2/2 and Delta = 1.02, so eta_g = 1 even without epsilon."""
    path = two_parabolas(0.03, 400)
    assert path[1:4] == pytest.approx([1.02, 1.848575, 2.580372], abs=1e-6)
    assert path[-1] == pytest.approx(1.02 / 0.35)  # FedAvg's point of rest
    late = two_parabolas(0.001, 400)[-50:]
    assert max(late) - min(late) > 1  # it swings around that point


def test_the_norm_is_over_the_parameters_and_buffers_are_averaged() -> None:
    # |Delta|^2 = 4, mean |Delta_k|^2 = 50: eta_g = 50 / (2 * (4 + 1)) = 5
    state = ServerState(w(0, 1) | {"buffer": np.array([0.0], np.float32)})
    arrays = {"arrays": w(0, 3) | {"buffer": np.array([9.0], np.float32)}}
    replies = AggregatedReplies(
        arrays, ("a", "b"), np.array([1, 1]), {"square-norm": [40.0, 60.0]}, trainable=("w",)
    )
    new, metrics = server_update(state, replies, Config(fedexp=FedExPConfig(epsilon=1.0)))
    assert {k: a.tolist() for k, a in new.arrays.items()} == {"w": [0.0, 11.0], "buffer": [9.0]}
    assert metrics == {"server-lr": 5.0}


def test_a_client_sends_its_squared_norm() -> None:
    """One step of eta = 0.5 from 0 on x = 2, y = 1: F'(0) = -1, so w_k = 0.5."""
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), lr=0.5)
    solver = SOLVERS["fedexp"](Config(), {}, {}, [{}])
    ((upload, _),) = solver.finish(task, train(task, solver))
    assert (upload.scalars["square-norm"], upload.arrays["arrays"]["w"].tolist()) == (0.25, [0.5])


def test_a_norm_beyond_the_bound_on_updates_is_its_senders_own_fault(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(
        tmp_path / "owners.npz", algorithm="fedexp", num_server_rounds=1, max_update_norm=10.0
    )
    row = play(keys, nodes=len(SIZES), tamper=liar(scalars={"square-norm": 101.0})).rows[1]
    assert [line["field"] for line in row["quarantined"]] == ["square-norm"]
    assert row["answered"] == len(SIZES) - 1

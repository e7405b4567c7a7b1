"""FedNova: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.solvers.fednova import step_weight
from client_app.training.loop import train
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fednova import server_update
from task.config.algorithm_sections import FedNovaConfig
from task.config.knobs import Config
from tests.support.models import Noisy, OneNumber, blobs, task_on
from tests.support.rules import w


def test_the_server_takes_tau_eff_mean_steps_by_hand() -> None:
    # p = (1/4, 3/4), |a| = (2, 6): tau_eff = 5. The mean update is (1*8 + 3*4)/4 = 5: 10 + 5 * 5 = 35.
    update = w(5) | {"buffer": np.array([4.0], np.float32)}
    replies = AggregatedReplies(
        {"update": update}, ("a", "b"), np.array([1, 3]), {"step-weight": [2.0, 6.0]}, trainable=("w",)
    )
    state = ServerState(w(10) | {"buffer": np.array([9.0], np.float32)})
    new, metrics = server_update(state, replies, Config())
    assert {k: a.tolist() for k, a in new.arrays.items()} == {"w": [35.0], "buffer": [4.0]}
    assert new.arrays["w"].dtype == np.float32
    assert metrics == {"effective-steps": 5.0}


def test_two_clients_that_count_alike_by_hand() -> None:
    # |a| = (1, 100), n = (1, 100): tau_eff = 50.5, not (1 * 1 + 100 * 100) / 101 = 99.02
    replies = AggregatedReplies(
        {"update": w(2)}, ("a", "b"), np.array([1, 100]), {"step-weight": [1.0, 100.0]}, trainable=("w",),
        weights=np.array([1, 1]),
    )  # fmt: skip
    new, metrics = server_update(ServerState(w(0)), replies, Config())
    assert metrics == {"effective-steps": 50.5}
    assert new.arrays["w"].tolist() == [101.0]


@pytest.mark.parametrize("tau", [1, 2, 3, 17])
def test_the_weight_of_steps_is_the_papers(tau: int) -> None:
    assert step_weight(tau) == tau
    rho, pull = 0.9, 0.05
    assert step_weight(tau, rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert step_weight(tau, 0.0, pull) == pytest.approx((1 - (1 - pull) ** tau) / pull)
    # both: the response of the loop itself to a gradient of 1
    v = y = 0.0
    for _ in range(tau):
        v = rho * v + (1.0 + pull * y)
        y -= v
    assert step_weight(tau, rho, pull) == pytest.approx(-y)


def test_the_client_divides_its_update_by_the_weight_of_its_steps() -> None:
    """x = 2, y = 1: w_1 = 0.5, w_2 = 0.5 + sigmoid(-1) - 0.5 mu 0.5; |a| = 1 + (1 - 0.5 mu)."""
    mu = 0.8
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=0.5)
    solver = SOLVERS["fednova"](Config(fednova=FedNovaConfig(mu=mu)), {}, {}, [{}])
    ((upload, kept),) = solver.finish(task, train(task, solver))
    weight = 1 + (1 - 0.5 * mu)
    moved = 0.5 + 1 / (1 + math.e) - 0.5 * mu * 0.5
    assert upload.scalars["step-weight"] == pytest.approx(weight)
    assert upload.arrays["update"]["w"].tolist() == pytest.approx([moved / weight])
    assert kept == {}


def test_buffers_go_up_as_they_are() -> None:
    model = Noisy()
    task = task_on(model, *blobs(8), batch_size=4)
    solver = SOLVERS["fednova"](Config(), {}, {}, [{}])
    ((upload, _),) = solver.finish(task, train(task, solver))
    state = {k: t.numpy() for k, t in model.state_dict().items()}
    up = upload.arrays["update"]
    buffers = [k for k in state if k not in task.program.names]
    assert all(np.array_equal(up[k], state[k]) and up[k].dtype == state[k].dtype for k in buffers)
    moved = (state["out.bias"] - task.received["out.bias"]) / 2
    assert up["out.bias"].tolist() == pytest.approx(moved.tolist(), rel=1e-6)

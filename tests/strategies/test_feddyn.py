"""FedDyn: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import train
from strategies import FedDyn
from strategies.engine.state import AggregatedReplies
from strategies.rules.feddyn import FedDynState, server_update
from task.config.algorithm_sections import FedDynConfig
from task.config.knobs import Config
from tests.support.models import OneNumber, sigmoid, task_on
from tests.support.rules import w


def test_the_server_moves_h_and_steps_beyond_the_mean_by_hand() -> None:
    # two of four clients, mean 14 from 10: h = 1 - 0.5 * 2/4 * 4 = 0; a second round of 16 from 14:
    # h = 0 - 0.5 * 0.5 * 2 = -0.5, theta = 16 + 0.5/0.5 = 17. The buffer is the mean.
    config = Config(feddyn=FedDynConfig(alpha=0.5))

    def replies(mean: float) -> AggregatedReplies:
        arrays = {"arrays": w(mean) | {"buffer": np.array([mean], np.float32)}}
        return AggregatedReplies(arrays, ("a", "b"), np.array([1, 9]), trainable=("w",), population=4)

    state = FedDynState(w(10) | {"buffer": np.array([0.0], np.float32)}, {"w": np.array([1.0])})
    state, _ = server_update(state, replies(14), config)
    assert (state.arrays["w"].tolist(), state.h["w"].tolist()) == ([14.0], [0.0])
    state, metrics = server_update(state, replies(16), config)
    assert {k: a.tolist() for k, a in state.arrays.items()} == {"w": [17.0], "buffer": [16.0]}
    assert state.h["w"].tolist() == [-0.5]
    assert (state.h["w"].dtype, state.arrays["w"].dtype) == (np.float64, np.float32)
    assert metrics == {}


def test_the_state_begins_with_h_0_of_the_parameters() -> None:
    state = FedDyn().rule.initial_state(w(3) | {"buffer": np.array(7, np.int64)}, ("w",))
    assert {k: a.tolist() for k, a in state.h.items()} == {"w": [0.0]}


def solve(own: float | None, alpha: float) -> tuple[float, float]:
    """Return theta_k and g_k after two steps at eta = 0.5 from 0 on x = 2, y = 1."""
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=0.5)
    kept = [{} if own is None else {"gradient": w(own)}]
    solver = SOLVERS["feddyn"](Config(feddyn=FedDynConfig(alpha=alpha)), {}, {}, kept)
    solver.begin(task)
    ((upload, keeps),) = solver.finish(task, train(task, solver))
    return float(upload.arrays["arrays"]["w"][0]), float(keeps["gradient"]["w"][0])


def test_two_regularised_steps_by_hand() -> None:
    """F'(0) = -1; theta_1 = 0 - 0.5 (-1 - g).

    theta_2 = theta_1 - 0.5 (-2 sigmoid(-2 theta_1) - g + alpha theta_1); g <- g - alpha theta_2.
    """
    g, alpha = -0.2, 0.8
    first = 0.5 * (1 + g)
    second = first - 0.5 * (-2 * sigmoid(-2 * first) - g + alpha * first)
    assert solve(g, alpha) == pytest.approx((second, g - alpha * second), rel=1e-6)
    assert solve(None, alpha) == solve(0.0, alpha) != solve(g, alpha)


def test_g_is_the_gradient_where_the_local_problem_is_solved() -> None:
    """At the minimiser F'(theta) - g + alpha (theta - 0) = 0, so the new g = g - alpha theta = F'(theta)."""
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), epochs=400, lr=0.2)
    solver = SOLVERS["feddyn"](Config(feddyn=FedDynConfig(alpha=0.5)), {}, {}, [{"gradient": w(-0.1)}])
    solver.begin(task)
    ((upload, keeps),) = solver.finish(task, train(task, solver))
    theta = float(upload.arrays["arrays"]["w"][0])
    assert float(keeps["gradient"]["w"][0]) == pytest.approx(-2 * sigmoid(-2 * theta), rel=1e-4)

"""FedDC: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import train
from strategies.engine.state import AggregatedReplies
from strategies.rules.feddc import FedDCState, server_update
from task.config.algorithm_sections import FedDCConfig
from task.config.knobs import Config
from tests.support.models import OneNumber, task_on
from tests.support.rules import w

ALPHA = 0.1


def two_parabolas(counts: tuple[int, int], rounds: int) -> list[float]:
    """Return w^0, w^1, ...: F_1 = x^2/2 and F_2 = 3(x - 4)^2/2, two full steps at eta = 0.1."""
    state, path = FedDCState(w(0, dtype=np.float64), w(0, dtype=np.float64), w(0, dtype=np.float64)), [0.0]
    h, own, v = [0.0, 0.0], [0.0, 0.0], [2 * n / sum(counts) for n in counts]
    for _ in range(rounds):
        x, g = path[-1], float(state.gradient["w"][0])
        local, deltas = [], []
        for k, slope in enumerate([lambda y: y, lambda y: 3 * (y - 4)]):
            y = x
            for _ in range(2):
                y -= 0.1 * (slope(y) + ALPHA / v[k] * (y - x + h[k]) + g / v[k] - own[k])
            after = own[k] - g / v[k] - (y - x) / (2 * 0.1)
            local.append(y)
            deltas.append(v[k] * (after - own[k]))
            h[k], own[k] = h[k] + y - x, after
        means = {
            n: w(sum(a) / 2, dtype=np.float64) for n, a in (("arrays", local), ("gradient-delta", deltas))
        }
        replies = AggregatedReplies(means, ("a", "b"), np.array(counts), trainable=("w",), population=2)
        state, _ = server_update(state, replies, Config(feddc=FedDCConfig(alpha=ALPHA)))
        path.append(float(state.arrays["w"][0]))
    return path


def test_three_rounds_by_hand_and_where_it_rests() -> None:
    path = two_parabolas((1, 1), 2000)
    assert path[1:4] == pytest.approx([2.028, 3.725639, 4.547525], abs=1e-6)
    assert path[-1] == pytest.approx(3)
    assert two_parabolas((3, 1), 2000)[-1] == pytest.approx(2)  # (3 * 0 + 3 * 4) / (3 + 3)


def test_absentees_keep_their_part_of_the_mean_drift_and_buffers_are_averaged() -> None:
    # two of four: drift = 3 + 2/4 (14 - 10) = 5, w = 14 + 5; g = 1 + 2/4 * 6 = 4
    state = FedDCState(w(10) | {"buffer": np.array([0.0], np.float32)}, w(1), w(3, dtype=np.float64))
    arrays = {"arrays": w(14) | {"buffer": np.array([9.0], np.float32)}, "gradient-delta": w(6)}
    replies = AggregatedReplies(arrays, ("a", "b"), np.array([1, 1]), trainable=("w",), population=4)
    new, _ = server_update(state, replies, Config())
    assert {k: a.tolist() for k, a in new.arrays.items()} == {"w": [19.0], "buffer": [9.0]}
    assert (new.gradient["w"].tolist(), new.drift["w"].tolist()) == ([4.0], [5.0])


def test_two_corrected_steps_by_hand() -> None:
    """F(w) = log(1 + e^(-2w)), one example where 2 are the mean, so v = 1/2; alpha/v = 0.2, g/v = 0.6."""
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=0.5)
    kept = [{"drift": w(0.4), "gradient": w(0.1)}]
    config = Config(feddc=FedDCConfig(alpha=ALPHA))
    solver = SOLVERS["feddc"](config, {"mean-examples": 2.0}, {"gradient": w(0.3)}, kept)
    solver.begin(task)
    ((upload, keeps),) = solver.finish(task, train(task, solver))
    first = -0.5 * (-1 + 0.2 * 0.4 + 0.6 - 0.1)
    second = first - 0.5 * (-2 / (1 + math.exp(2 * first)) + 0.2 * (first + 0.4) + 0.6 - 0.1)
    change = -0.6 - second / (2 * 0.5)
    got = [a["w"][0] for a in (*upload.arrays.values(), keeps["drift"], keeps["gradient"])]
    assert got == pytest.approx([second, change / 2, 0.4 + second, 0.1 + change], rel=1e-6)

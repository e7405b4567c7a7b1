"""SCAFFOLD: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.solvers import SOLVERS
from client_app.training.loop import LocalTask, train
from strategies import Scaffold
from strategies.engine.state import AggregatedReplies
from strategies.rules.scaffold import ScaffoldState, server_update
from task.config.algorithm_sections import ScaffoldConfig
from task.config.knobs import Config
from tests.reference import scaffold
from tests.support.kept import losing
from tests.support.models import one, sigmoid
from tests.support.personal import against_reference, close, reference_of
from tests.support.rules import w

# --------------------------------------------------------------------------------------- the server


def replies(mean: Any, delta: Any, clients: int, population: int) -> AggregatedReplies:
    names = tuple("abcdefgh"[:clients])
    arrays = {"arrays": mean, "control-delta": delta}
    return AggregatedReplies(
        arrays, names, np.ones(clients, np.int64), trainable=("w",), population=population
    )


def test_the_server_steps_and_moves_its_control_variate_by_hand() -> None:
    # x = 10 + 0.5 (14 - 10) = 12; c = 1 + 2/8 * 4 = 2; the buffer is the mean, not stepped
    state = ScaffoldState(w(10) | {"buffer": np.array([3.0], np.float32)}, w(1))
    config = Config(scaffold=ScaffoldConfig(server_lr=0.5))
    mean = w(14) | {"buffer": np.array([5.0], np.float32)}
    new, metrics = server_update(state, replies(mean, w(4), 2, 8), config)
    assert {k: a.tolist() for k, a in new.arrays.items()} == {"w": [12.0], "buffer": [5.0]}
    assert new.control["w"].tolist() == [2.0]
    assert (new.control["w"].dtype, metrics) == (np.float32, {})


def test_a_server_lr_of_1_takes_the_mean_to_the_last_bit() -> None:
    state = ScaffoldState(w(1.0), w(0))
    new, _ = server_update(state, replies(w(1e-30), w(0), 1, 1), Config())
    assert new.arrays["w"].tolist() == w(1e-30)["w"].tolist()


def test_the_state_begins_with_c_0_of_the_parameters() -> None:
    state = Scaffold().rule.initial_state(w(3) | {"buffer": np.array(7, np.int64)}, ("w",))
    assert {k: a.tolist() for k, a in state.control.items()} == {"w": [0.0]}


# --------------------------------------------------------------------------------------- the client


def solve(task: LocalTask, c: float, own: float | None, **knobs: Any) -> tuple[float, float, float]:
    """Return y_i, c_i^+ and what is said of its change."""
    kept = [{} if own is None else {"control": w(own)}]
    solver = SOLVERS["scaffold"](
        Config(scaffold=ScaffoldConfig(**knobs)), {}, {"control": w(c)}, kept
    )  # fmt: skip
    solver.begin(task)
    ((upload, keeps),) = solver.finish(task, train(task, solver))
    arrays = upload.arrays
    return tuple(float(a["w"][0]) for a in (arrays["arrays"], keeps["control"], arrays["control-delta"]))  # type: ignore[return-value]


def test_two_corrected_steps_and_both_options_by_hand() -> None:
    """c = 0.3, c_i = 0.1: each gradient gets + 0.2.

    g(0) = -1: y_1 = 0 - 0.5 (-1 + 0.2) = 0.4;  y_2 = 0.4 - 0.5 (-2 sigmoid(-0.8) + 0.2).
    Option II: c_i^+ = 0.1 - 0.3 + (0 - y_2)/(2 * 0.5) = -(1 + 2 sigmoid(-0.8))/2, the mean of the gradients.
    Option I: c_i^+ = F'(0) = -1.
    """
    y_2 = 0.4 - 0.5 * (-2 * sigmoid(-0.8) + 0.2)
    mean = -(1 + 2 * sigmoid(-0.8)) / 2
    got = solve(one(epochs=2, lr=0.5), 0.3, 0.1)
    assert got == pytest.approx((y_2, mean, mean - 0.1), rel=1e-6)
    got = solve(one(epochs=2, lr=0.5), 0.3, 0.1, option="I")
    assert got == pytest.approx((y_2, -1.0, -1.1), rel=1e-6)


def test_a_client_without_state_begins_with_c_i_0() -> None:
    assert solve(one(epochs=2, lr=0.5), 0.3, None) == solve(one(epochs=2, lr=0.5), 0.3, 0.0)
    assert solve(one(epochs=2, lr=0.5), 0.3, None) != solve(one(epochs=2, lr=0.5), 0.3, 0.1)


def test_with_momentum_the_new_control_variate_is_still_a_mean_of_gradients() -> None:
    """rho = 0.5, two steps from 0, c = c_i = 0: v_1 = g_1, v_2 = 0.5 g_1 + g_2, y = -eta (1.5 g_1 + g_2).

    |a|_1 = 2.5, so c_i^+ = (1.5 g_1 + g_2)/2.5.
    """
    g_1 = -1.0
    g_2 = -2 * sigmoid(-2 * 0.5)
    got = solve(one(epochs=2, lr=0.5, momentum=0.5), 0.0, 0.0)
    assert got[1] == pytest.approx((1.5 * g_1 + g_2) / 2.5, rel=1e-6)


# ------------------------------------------------------------------------------------- the pipeline


def test_a_client_that_loses_its_state_begins_anew_and_the_server_keeps_its_share(tmp_path: Path) -> None:
    def act(t: int) -> None:
        if t == 4:
            (path,) = tmp_path.glob("tmp*/**/ben.safetensors")
            path.unlink()

    given = {"lost": lambda t, k: (t, k) == (4, "ben")}
    more = {"num_server_rounds": 5, "fraction_train": 1.0}
    case, trace = against_reference(tmp_path, scaffold.Scaffold, given, grid=losing(act), **more)
    assert not close(reference_of(case, scaffold.Scaffold)(case.cohorts).w[5], trace.w[5], 1e-3)

"""AFL and TERM by hand on two parabolas; newcomers, and clients without mass."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules import afl, term
from task.config.algorithm_sections import AFLConfig, TERMConfig
from task.config.knobs import Config
from tests.support.rules import w


def replies(
    models: list[float],
    losses: list[float],
    clients: tuple[str, ...] = ("a", "b"),
    counts: tuple[int, ...] = (1, 1),
) -> AggregatedReplies:
    arrays = {"arrays": {"w": np.array(models)[:, None]}}
    return AggregatedReplies(arrays, clients, np.array(counts), {"loss-before": losses}, trainable=("w",))


def of_parabolas(x: float, eta: float, tau: int) -> AggregatedReplies:
    """F_1 = x^2/2 and F_2 = 3(x - 4)^2/2."""
    models = [x * (1 - eta) ** tau, 4 + (x - 4) * (1 - 3 * eta) ** tau]
    return replies(models, [x**2 / 2, 3 * (x - 4) ** 2 / 2])


def test_term_three_rounds_by_hand_and_where_it_rests() -> None:
    state, path = ServerState(w(0, dtype=np.float64)), []
    for _ in range(300):
        state, _ = term.server_update(
            state, of_parabolas(float(state.arrays["w"][0]), 0.1, 2), Config(term=TERMConfig(t=0.1))
        )
        path.append(float(state.arrays["w"][0]))
    assert path[:3] == pytest.approx([1.870328, 2.414072, 2.616346], abs=1e-6)
    assert path[-1] == pytest.approx(2.7803436, abs=1e-6)
    # at a negative t the worse client counts less
    assert term.weights([0.0, 24.0], -0.1) == pytest.approx([0.916827, 0.083173], abs=1e-6)


@pytest.mark.parametrize(
    ("step", "want"), [("projected", [0.38, 0.62]), ("exponentiated", [0.440286, 0.559714])]
)
def test_afl_one_round_by_hand(step: str, want: list[float]) -> None:
    config = Config(afl=AFLConfig(lambda_lr=0.01, step=step))
    state, _ = afl.server_update(afl.AFLState(w(0, dtype=np.float64)), of_parabolas(0.0, 0.1, 2), config)
    assert float(state.arrays["w"][0]) == pytest.approx(1.02)  # by the shares before
    assert [state.mass[c][0] / 2 for c in "ab"] == pytest.approx(want, abs=1e-6)


def test_afl_rests_at_the_minimax() -> None:
    state, config = afl.AFLState(w(0, dtype=np.float64)), Config(afl=AFLConfig(lambda_lr=0.003))
    for _ in range(3000):
        reply = of_parabolas(float(state.arrays["w"][0]), 0.02, 1)
        state, _ = afl.server_update(state, reply, config)
    assert float(state.arrays["w"][0]) == pytest.approx(4 * 3**0.5 / (1 + 3**0.5), abs=1e-3)


def test_afl_moves_the_mass_of_the_cohort_only_and_a_newcomer_begins_with_its_examples() -> None:
    config = Config(afl=AFLConfig(lambda_lr=0.5))
    state, _ = afl.server_update(afl.AFLState(w(0)), replies([0.0, 4.0], [0.0, 1.0], counts=(3, 1)), config)
    assert state.arrays["w"].tolist() == [1.0]  # 3/4 of 0 and 1/4 of 4
    assert {k: m.tolist() for k, m in state.mass.items()} == {"a": [2.0], "b": [2.0]}  # 0.75, 0.75 -> 1/2
    state, _ = afl.server_update(state, replies([0.0, 4.0], [1.0, 1.0], ("b", "c"), (1, 6)), config)
    assert state.arrays["w"].tolist() == [3.0]
    assert {k: m.round(9).tolist() for k, m in state.mass.items()} == {"a": [2.0], "b": [2.0], "c": [6.0]}


def test_afl_takes_the_plain_mean_of_clients_without_mass() -> None:
    state = afl.AFLState(w(0), {"a": np.zeros(1), "b": np.zeros(1)})
    state, _ = afl.server_update(state, replies([0.0, 4.0], [0.0, 9.0]), Config())
    assert state.arrays["w"].tolist() == [2.0]
    assert [float(m[0]) for m in state.mass.values()] == [0.0, 0.0]


def test_the_projection_is_the_nearest_point() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=5)
        p = afl.projected(x)
        assert p.sum() == pytest.approx(1)
        assert (p >= 0).all()
        others = rng.dirichlet(np.ones(5), size=200)
        assert (np.square(others - x).sum(1) >= np.square(p - x).sum() - 1e-12).all()

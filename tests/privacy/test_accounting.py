"""Epsilon agrees with published and independently computed figures."""

from __future__ import annotations

import math

import pytest

from task.privacy.accounting import epsilon, gaussian_epsilon, joined, noise_for

# By (K, m, T, delta): epsilon by noise multiplier, Poisson cohorts, add or remove one client, computed with
# another program; rounded as written.
TABLE = {
    (100, 10, 100, 1e-3): {0.6: 14.5, 0.8: 7.5, 1.0: 4.8, 1.5: 2.4, 2.0: 1.5, 4.0: 0.62},
    (1000, 100, 100, 1e-5): {0.6: 20.6, 0.8: 11.0, 1.0: 7.1, 1.5: 3.5, 2.0: 2.3, 4.0: 0.98},
    (1000, 50, 200, 1e-5): {0.6: 15.5, 0.8: 7.7, 1.0: 4.8, 1.5: 2.4, 2.0: 1.6, 4.0: 0.67},
    (10_000, 300, 100, 1e-6): {0.6: 9.2, 0.8: 4.4, 1.0: 2.6, 1.5: 1.1, 2.0: 0.74, 4.0: 0.31},
}
CELLS = [(case, z, want) for case, row in TABLE.items() for z, want in row.items()]


@pytest.mark.parametrize(("case", "z", "want"), CELLS, ids=str)
def test_the_table_of_epsilons(case: tuple[int, int, int, float], z: float, want: float) -> None:
    clients, expected, rounds, delta = case
    found = epsilon([(expected / clients, z)] * rounds, delta)
    half_a_digit = 0.5 * 10 ** -(1 if want >= 1 else 2)
    assert found == pytest.approx(want, abs=half_a_digit * 1.02 + 0.01 * want)


def test_epsilon_to_one_percent() -> None:
    assert epsilon([(0.05, 1.0)] * 100, 1e-5) == pytest.approx(3.50, rel=0.01)
    assert epsilon([(256 / 60_000, 1.3)] * (20 * 235), 1e-5) == pytest.approx(1.01, rel=0.01)


def test_it_is_never_more_than_by_renyi_divergences() -> None:
    dpa = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    for q, z, rounds in ((0.05, 1.0, 100), (0.1, 2.0, 50), (1.0, 6.0, 100)):
        event = dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z))
        renyi = RdpAccountant().compose(dpa.SelfComposedDpEvent(event, rounds)).get_epsilon(1e-5)
        assert epsilon([(q, z)] * rounds, 1e-5) <= renyi


@pytest.mark.parametrize(
    ("case", "goal", "z"),
    [((0.1, 100, 1e-5), 8.0, 0.936), ((0.1, 100, 1e-5), 2.0, 2.25), ((0.03, 100, 1e-6), 4.0, 0.831)],
)
def test_the_noise_that_a_goal_needs(case: tuple[float, int, float], goal: float, z: float) -> None:
    q, rounds, delta = case
    found = noise_for(goal, delta, q, rounds)
    assert found == pytest.approx(z, rel=0.01)
    assert found == float(f"{found:.3g}")  # as a refusal writes it, it is enough
    assert epsilon([(q, found)] * rounds, delta) <= goal


def test_releases_of_one_cohort_count_as_one_of_less_noise() -> None:
    assert joined([2.0]) == 2.0
    assert joined([math.sqrt(2.0)] * 2) == 1.0
    assert epsilon([(0.1, joined([1.0, 1.0]))], 1e-5) > epsilon([(0.1, 1.0)] * 2, 1e-5)
    assert epsilon([(0.1, 1.0), (0.1, joined([1.0, 1.0]))], 1e-5) > epsilon([(0.1, 1.0)] * 2, 1e-5)


def test_releases_are_counted_as_well_as_listed() -> None:
    assert epsilon({(0.1, 1.0): 7, (1.0, 9.0): 2}, 1e-5) == epsilon([(1.0, 9.0)] * 2 + [(0.1, 1.0)] * 7, 1e-5)


def test_a_million_strong_releases_get_a_bound_instead_of_gigabytes() -> None:
    assert epsilon({(0.001, 1.0): 10**6}, 1e-5) == pytest.approx(6.38, abs=0.02)
    assert 10**6 / 2 / 0.05**2 < epsilon({(1.0, 0.05): 10**6}, 1e-5) < 1.2 * 10**6 / 2 / 0.05**2


def test_nothing_released_costs_nothing() -> None:
    assert epsilon([], 1e-5) == 0.0


@pytest.mark.parametrize(("goal", "noise"), [(0.5, 7.03), (1.0, 3.73), (2.0, 1.99), (8.0, 0.600)])
def test_epsilon_of_one_gaussian_release(goal: float, noise: float) -> None:
    """Noise over sensitivity at delta = 1e-5, computed with another program."""
    assert gaussian_epsilon(1 / noise, 1e-5) == pytest.approx(goal, rel=4e-3)
    assert epsilon([(1.0, noise)], 1e-5) == pytest.approx(goal, rel=1e-2)


def test_epsilon_of_a_gaussian_release_at_its_ends() -> None:
    assert gaussian_epsilon(1e-9, 1e-5) == 0.0
    # delta = Phi(a) up to a term that vanishes, so a = -2.3263 for 1 %, and epsilon = mu (mu / 2 - a)
    assert gaussian_epsilon(1e4, 0.01) == pytest.approx(1e4 * (5e3 + 2.3263), rel=1e-7)
    assert gaussian_epsilon(1e100, 0.01) == pytest.approx(5e199)

"""Values derived by hand; the derivations stand next to them."""

from __future__ import annotations

import math

import pytest

from task.numerics.metrics import (
    crossing,
    jain,
    mean_and_std,
    monotone,
    spread,
    weighted_mean,
    worst_decile,
)


def test_monotone_is_the_best_so_far() -> None:
    assert monotone([0.1, 0.5, 0.3, 0.6, 0.6, 0.2]).tolist() == [0.1, 0.5, 0.5, 0.6, 0.6, 0.6]
    assert monotone([]).tolist() == []


def test_the_crossing_is_interpolated() -> None:
    # From 0.25 at round 1 to 0.75 at round 2: 0.5 is half-way, 0.625 three quarters of the way.
    assert crossing([0, 1, 2], [0.0, 0.25, 0.75], 0.5) == 1.5
    assert crossing([0, 1, 2], [0.0, 0.25, 0.75], 0.625) == 1.75
    # A point on the target is the crossing.
    assert crossing([0, 1, 2], [0.0, 0.25, 0.75], 0.25) == 1.0
    assert crossing([0, 1, 2], [0.0, 0.25, 0.75], 0.75) == 2.0


def test_the_crossing_is_that_of_the_running_maximum() -> None:
    # The maximum is 0.5 at rounds 1, 2 and 3, then 1.0 at 4: 0.75 lies half-way from 3 to 4. The raw
    # curve rises from 0.25 to 1.0 there and would give 3 + 2/3.
    assert crossing([0, 1, 2, 3, 4], [0.0, 0.5, 0.0, 0.25, 1.0], 0.75) == 3.5


def test_rounds_without_a_measurement_are_left_out() -> None:
    # Evaluated at 0, 5 and 10 only: from 0.5 at 5 to 1.0 at 10, 0.75 is at 7.5.
    accuracies = [0.0, None, math.nan, None, None, 0.5, None, None, None, None, 1.0]
    assert crossing(range(11), accuracies, 0.75) == 7.5


@pytest.mark.parametrize(
    ("rounds", "accuracies", "target", "expected"),
    [
        ([0, 1], [0.9, 1.0], 0.5, 0.0),  # there from the start
        ([3, 4], [0.9, 1.0], 0.9, 3.0),
        ([0, 1], [0.1, 0.4], 0.5, None),  # never
        ([], [], 0.5, None),
        ([0, 1], [None, None], 0.5, None),
        ([2], [0.5], 0.5, 2.0),
    ],
)
def test_ends_of_the_curve(
    rounds: list[int], accuracies: list[float | None], target: float, expected: float | None
) -> None:
    assert crossing(rounds, accuracies, target) == expected


def test_a_crossing_in_seconds() -> None:
    # 2 s at 0.2, 10 s at 0.6: 0.4 is half-way, at 6 s. A skipped round may cost nothing.
    assert crossing([0.0, 2.0, 10.0, 10.0], [0.0, 0.2, 0.6, 0.6], 0.4) == pytest.approx(6.0)


def test_crossing_refuses_what_is_no_curve() -> None:
    with pytest.raises(ValueError, match="one accuracy for each x; got 1 for 2"):
        crossing([0, 1], [0.5], 0.5)
    with pytest.raises(ValueError, match="never falls"):
        crossing([1, 0], [0.5, 0.6], 0.5)


def test_jain_by_hand() -> None:
    # (1 + 3)^2 / (2 (1 + 9)) = 16 / 20
    assert jain([1, 3]) == pytest.approx(0.8)
    assert jain([0.7] * 5) == pytest.approx(1.0)
    assert jain([0, 0, 0, 1]) == pytest.approx(0.25)  # one has everything: 1/n
    assert jain([0, 0]) == 1.0
    # No scale: squares of these leave the float range.
    assert jain([1e-200, 3e-200]) == pytest.approx(0.8)
    assert jain([1e200, 3e200]) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5], 0.5),
        ([0.9, 0.1, 0.5], 0.1),  # up to 10: the lowest
        ([i / 10 for i in range(10)], 0.0),
        ([i / 10 for i in range(11)], 0.05),  # 11: mean of the lowest two
        ([float(i) for i in range(30)], 1.0),  # exactly three: 0, 1, 2
        ([float(i) for i in range(100, 0, -1)], 5.5),  # ten: 1 .. 10
    ],
)
def test_worst_decile_by_hand(values: list[float], expected: float) -> None:
    assert worst_decile(values) == pytest.approx(expected)


def test_spread_by_hand() -> None:
    # mean 0.5; deviations ±0.25, so the population's std is 0.25 (ddof 1 would give 0.354);
    # Jain (0.25 + 0.75)^2 / (2 (0.0625 + 0.5625)) = 1 / 1.25
    found = spread([0.75, 0.25])
    assert found == pytest.approx({"mean": 0.5, "std": 0.25, "worst_decile": 0.25, "jain": 0.8})
    assert spread([]) == {"mean": None, "std": None, "worst_decile": None, "jain": None}
    assert spread([-1.0, 1.0])["jain"] is None


def test_weighted_mean_by_hand() -> None:
    # (1 * 0.5 + 3 * 1.0) / 4
    assert weighted_mean([0.5, 1.0], [1, 3]) == 0.875
    # Added up from left to right, the middle one is lost.
    assert weighted_mean([1e16, 1.0, -1e16], [1, 2, 1]) == 0.5


def test_mean_and_std_over_seeds_by_hand() -> None:
    # Deviations -1, 0, 1: sum of squares 2 over n - 1 = 2 (over n it would be 0.816).
    assert mean_and_std([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_std([0.5]) == (0.5, None)
    with pytest.raises(ValueError, match="at least one value"):
        mean_and_std([])


def test_no_values_or_negative_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        jain([])
    with pytest.raises(ValueError, match="at least one value"):
        worst_decile([])
    with pytest.raises(ValueError, match="values >= 0; got -1"):
        jain([1, -1])

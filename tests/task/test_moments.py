"""Sums of columns are exact, whatever the size of the values and however the rows are spread."""

from fractions import Fraction

import numpy as np
import pytest

from task.errors import FieldError
from task.numerics.moments import (
    SQUARE_DIGITS,
    SUM_DIGITS,
    columns_like,
    exact_sums,
    from_dict,
    from_digits,
    moments_of,
    sums_of,
    to_digits,
)
from task.numerics.reduce import Sum

LARGEST, SMALLEST = np.finfo(np.float32).max, np.float32(2.0**-149)


def exact(x):
    """Return the sums as fractions, value by value."""
    values = [Fraction(float(v)) for v in x]
    return sum(values), sum(v * v for v in values)


@pytest.mark.parametrize(
    "x",
    [
        [],
        [0.0, -0.0],
        [LARGEST] * 3,
        [SMALLEST, -SMALLEST, SMALLEST],
        [LARGEST, SMALLEST, -LARGEST],  # a float64 sum would lose the middle one
        [1.5, -2.25, 1e-40, 16777217.0],
        np.random.default_rng(1).normal(1e6, 1e-1, 1000),
    ],
)
def test_sums_are_those_of_fractions(x):
    x = np.array(x, np.float32)
    total, squares = exact_sums(x)
    assert (Fraction(total, 2**149), Fraction(squares, 2**298)) == exact(x)
    assert from_digits(to_digits(total, SUM_DIGITS)) == total
    assert from_digits(to_digits(squares, SQUARE_DIGITS)) == squares


def test_the_digits_have_room_for_the_largest_client():
    """2^29 - 1 examples of the largest value, the most that a client may register."""
    n, top = 2**29 - 1, int(float(LARGEST))
    for sign in (1, -1):
        assert from_digits(to_digits(sign * n * top << 149, SUM_DIGITS)) == sign * n * top << 149
    assert from_digits(to_digits(n * top * top << 298, SQUARE_DIGITS)) == n * top * top << 298


def test_moments_by_hand():
    """Of 1, 2, 3, 6: mean 3, deviation sqrt((4 + 1 + 0 + 9) / 4); a gap does not count."""
    x = np.array([[1, 7, 0], [2, 7, 1], [3, 7, 0], [np.nan, 7, 1], [6, 7, 0]], np.float32)
    sums = sums_of(x, np.array([True, True, False]))
    got = moments_of(sums["column-sums"], sums["column-squares"])
    assert got.count.tolist() == [4, 5, 0]
    assert got.mean.tolist() == [3, 7, 0]
    assert got.std.tolist() == [3.5**0.5, 1, 1]  # equal values stay finite, a category stays as it is
    assert moments_of(sums["column-sums"]).std.tolist() == [1, 1, 1]
    again = from_dict(got.as_dict())
    assert all(np.array_equal(a, again.arrays[name]) for name, a in got.arrays.items())


def test_a_large_offset_costs_no_digit():
    """(n sum x^2 - (sum x)^2) in float64 has no digit left at an offset of 10^7 and a deviation of 1."""
    x = (np.random.default_rng(2).integers(-2, 3, (5000, 1)) + 1e7).astype(np.float32)
    sums = sums_of(x, np.array([True]))
    got = moments_of(sums["column-sums"], sums["column-squares"])
    values = [Fraction(float(v)) for v in x[:, 0]]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    assert got.mean[0] == float(mean)
    assert got.std[0] == float(variance) ** 0.5
    wide = x[:, 0].astype(np.float64)
    naive = len(wide) * float((wide * wide).sum()) - float(wide.sum()) ** 2
    assert abs((naive / len(wide) ** 2) ** 0.5 - got.std[0]) > 1e-6


def test_sums_do_not_depend_on_how_rows_are_spread():
    """Merged through the house's exact sums, over nodes of any size and in any order: the same bits."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(400, 3)) * [1e-20, 1, 1e20]).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    numbers = np.ones(3, bool)
    whole = sums_of(x, numbers)
    want = moments_of(whole["column-sums"], whole["column-squares"])
    for _ in range(5):
        rows, cuts = rng.permutation(400), np.sort(rng.integers(0, 400, 6))
        folds = {
            "column-sums": Sum(columns_like("sums", 3)),
            "column-squares": Sum(columns_like("squares", 3)),
        }
        for part in np.split(rows, cuts):
            for name, arrays in sums_of(x[part], numbers).items():
                folds[name].add(arrays, 1, "a client")
        got = moments_of(folds["column-sums"].result(), folds["column-squares"].result())
        assert all(np.array_equal(a, got.arrays[name]) for name, a in want.arrays.items())


def test_a_client_whose_digits_are_none_is_refused():
    fold = Sum(columns_like("sums", 1))
    bad = {"count": np.array([1]), "sum": np.full((1, SUM_DIGITS), 2**60)}
    with pytest.raises(FieldError):
        fold.add(bad, 1, "a client")

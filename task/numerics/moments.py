"""Mean and standard deviation of columns, from sums that are exact and so add up in any order.

Every finite float32 is a whole number of 2^-149, and its square one of 2^-298. So the sum of a column and
that of its squares are integers, of at most 307 and 583 bits for 2^29 values of any size, and
n sum x^2 - (sum x)^2 loses nothing, whatever the ratio of mean and deviation. On the wire an integer is
the digits of its two's complement to the base 2^32, the lowest first, each as an int64, the last one with the
sign: digits of many clients are added as they are (`task.numerics.reduce.Sum`), and only the reader of the
sum carries.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from task.numerics.arrays import Arrays, NamedArrays

SUM_DIGITS, SQUARE_DIGITS = 10, 19
_BASE = 32
_UNIT = 149  # a float32 is a whole number of 2^-149
_LOWEST = 172  # the same with a mantissa of 24 bits in front of its exponent
_HALF = 24


def exact_sums(x: npt.NDArray[np.float32]) -> tuple[int, int]:
    """Return the sum of finite values [N] in units of 2^-149, and that of their squares in units of 2^-298.

    N is below 2^29.
    """
    mantissa, exponent = np.frexp(x)
    units = (mantissa * np.float32(2.0**_HALF)).astype(np.int64)
    lowest = int(exponent.min()) if x.size else 0
    place = exponent - lowest
    squares = units * units

    def at_places(parts: npt.NDArray[np.int64]) -> list[int]:
        # Parts are at most 2^24, so that the float64 sums of `bincount` are whole and exact.
        return [int(total) for total in np.bincount(place, weights=parts)]

    total = sum(t << (i + lowest - _HALF + _LOWEST) for i, t in enumerate(at_places(units)))
    high, low = at_places(squares >> _HALF), at_places(squares & (2**_HALF - 1))
    square = sum(
        ((h << _HALF) + t) << 2 * (i + lowest - _HALF + _LOWEST)
        for i, (h, t) in enumerate(zip(high, low, strict=True))
    )
    return total >> (_LOWEST - _UNIT), square >> 2 * (_LOWEST - _UNIT)


def to_digits(value: int, digits: int) -> npt.NDArray[np.int64]:
    """Return the digits of an integer, int64 [digits]."""
    plain = np.frombuffer(value.to_bytes(digits * _BASE // 8, "little", signed=True), "<u4").astype(np.int64)
    if value < 0:
        plain[-1] -= 1 << _BASE
    return plain


def from_digits(digits: npt.NDArray[np.int64]) -> int:
    """Return the integer of digits, or of sums of digits."""
    return sum(int(digit) << (_BASE * i) for i, digit in enumerate(digits))


def sums_of(x: npt.NDArray[np.float32], numbers: npt.NDArray[np.bool_]) -> dict[str, Arrays]:
    """Return what a client sends of the columns of x [N, d]: ``column-sums`` and ``column-squares``.

    Missing values (NaN) do not count, and of columns that are no `numbers` nothing does.
    """
    count = np.zeros(len(numbers), np.int64)
    total = np.zeros((len(numbers), SUM_DIGITS), np.int64)
    square = np.zeros((len(numbers), SQUARE_DIGITS), np.int64)
    for j in np.flatnonzero(numbers):
        column = x[:, j]
        column = column[~np.isnan(column)]
        count[j] = len(column)
        of_values, of_squares = exact_sums(column)
        total[j], square[j] = to_digits(of_values, SUM_DIGITS), to_digits(of_squares, SQUARE_DIGITS)
    return {"column-sums": {"count": count, "sum": total}, "column-squares": {"sum": square}}


def columns_like(what: str, d: int) -> Arrays:
    """Return arrays of the names, shapes and dtypes of the ``sums`` or ``squares`` of d columns."""
    if what == "squares":
        return {"sum": np.zeros((d, SQUARE_DIGITS), np.int64)}
    return {"count": np.zeros(d, np.int64), "sum": np.zeros((d, SUM_DIGITS), np.int64)}


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Means and standard deviations of the columns that a model reads; of what is no number, 0 and 1."""

    count: npt.NDArray[np.int64]  # values that they are of, [d]; 0 of columns that are no numbers
    mean: npt.NDArray[np.float64]  # [d]
    std: npt.NDArray[np.float64]  # of the population (ddof 0), [d]; 1 of a column of equal values

    @cached_property
    def arrays(self) -> Arrays:
        """Return the three arrays by name."""
        return {"count": self.count, "mean": self.mean, "std": self.std}

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads back bit for bit, also through JSON."""
        return {name: a.tolist() for name, a in self.arrays.items()}


def from_dict(kept: Mapping[str, Any]) -> ColumnMoments:
    """Return the moments that `ColumnMoments.as_dict` took apart."""
    count = np.array(kept["count"], np.int64)
    return ColumnMoments(count, np.array(kept["mean"], np.float64), np.array(kept["std"], np.float64))


def moments_of(sums: NamedArrays, squares: NamedArrays | None = None) -> ColumnMoments:
    """Return the moments of summed up `sums_of`, each rounded once; without squares the deviations are 1."""
    count = np.asarray(sums["count"], np.int64)
    mean, std = np.zeros(len(count)), np.ones(len(count))
    for j in np.flatnonzero(count > 0):
        n, total = int(count[j]), from_digits(sums["sum"][j])
        mean[j] = float(Fraction(total, n << _UNIT))
        if squares is not None:
            spread = n * from_digits(squares["sum"][j]) - total * total
            # Squares that no values have come from a client that does not play fair.
            variance = float(Fraction(max(spread, 0), (n * n) << 2 * _UNIT))
            std[j] = math.sqrt(variance) or 1.0
    return ColumnMoments(count, mean, std)

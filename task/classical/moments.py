"""Means and covariances of declared columns, from exact sums over rows.

z_j = (x_j - c_j) s_j, with the middle c_j of the declared range and a power of two s_j: |z_j| <= 1, and the
squares of a column that is far from 0 lose nothing. A row sends 1, z_j and z_i z_j; covariances are
(S_ij - S_i S_j / n) / (n - 1), in rationals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from task.classical.columns import Floats, NamedColumns, Variable, check_once, scale_of, variables_of
from task.classical.solve import Matrix, symmetric
from task.errors import ConfigError, DataError
from task.numerics.row_sums import blocks, row_sums, value

MOST_COLUMNS = 128  # of an analysis of several columns


def numbers_of(key: str, text: str) -> tuple[Variable, ...]:
    """Read the declarations of columns of numbers.

    Raises:
        ConfigError: One is not of the form, is a category or is there twice, or there are too many.
    """
    found = variables_of(key, text)
    if levels := [v.name for v in found if v.levels]:
        raise ConfigError(
            f'run-config key "{key}": expected columns of numbers with their ranges, "age(0..120)"; got the '
            f"category {levels[0]!r}"
        )
    check_once(f'run-config key "{key}"', found)
    if len(found) > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "{key}": expected at most {MOST_COLUMNS} columns; got {len(found)}'
        )
    return found


def middle(v: Variable) -> float:
    """Return c of a column."""
    return v.low / 2 + v.high / 2


def unit(v: Variable) -> float:
    """Return s of a column."""
    return scale_of(v.high / 2 - v.low / 2)


def centred(variables: Sequence[Variable], table: NamedColumns) -> list[Floats]:
    """Return z of each column; raises what `NamedColumns.of` does."""
    return [(table.of(v) - middle(v)) * unit(v) for v in variables]


@dataclass(frozen=True)
class RowMoments:
    """Sums of z over n rows: of each column and of products, or of squares alone."""

    n: int
    sums: list[Fraction]
    products: Matrix  # the diagonal alone is filled, if only squares were asked for

    def mean(self, j: int, v: Variable) -> float:
        """Return the mean of a column in its own units."""
        return float(Fraction(middle(v)) + self.sums[j] / (self.n * Fraction(unit(v))))

    def deviations(self, i: int, j: int) -> Fraction:
        """Return the sum of (z_i - mean) (z_j - mean)."""
        return self.products[i][j] - self.sums[i] * self.sums[j] / self.n

    def spread(self, j: int, v: Variable, less: int = 0) -> float:
        """Return the standard deviation of a column in its own units, over n - `less`.

        Raises:
            DataError: It is 0.
        """
        variance = float(self.deviations(j, j) / (self.n - less))
        if not variance > 0:
            raise DataError(f"column {v.name}: expected values that differ; got one value. Drop the column")
        return math.sqrt(variance) / unit(v)


def moments_terms(z: Sequence[Floats], *, squares: bool) -> list[Floats]:
    """Return 1, z_j and z_i z_j, i <= j, of each row; with `squares`, of i = j alone."""
    p = range(len(z))
    pairs = [(i, i) for i in p] if squares else [(i, j) for i in p for j in p if i <= j]
    return [np.ones(len(z[0])), *z, *(z[i] * z[j] for i, j in pairs)]


def moments_sums(z: Sequence[Floats], *, squares: bool) -> list[int]:
    """Return their sums over rows in units of 2^-51."""
    totals = [0] * moments_size(len(z), squares=squares)
    for part in blocks(len(z[0]), len(totals)):
        terms = moments_terms([x[part] for x in z], squares=squares)
        found = row_sums(np.stack(terms, axis=1), "products")
        totals = [a + b for a, b in zip(totals, found, strict=True)]
    return totals


def moments_size(p: int, *, squares: bool) -> int:
    """Return how many terms these are."""
    return 1 + p + (p if squares else p * (p + 1) // 2)


def moments_in(totals: Sequence[int], p: int, *, squares: bool) -> RowMoments:
    """Read their sums."""
    found = [value(t) for t in totals]
    sums, rest = found[1 : 1 + p], found[1 + p :]
    if squares:
        products = [[rest[i] if i == j else Fraction(0) for j in range(p)] for i in range(p)]
    else:
        products = symmetric(rest, p)
    return RowMoments(int(found[0]), sums, products)

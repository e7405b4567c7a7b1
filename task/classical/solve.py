"""Solve with symmetric matrices of rationals: exactly, so that no library and no order changes a bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from task.errors import DataError

Matrix = list[list[Fraction]]
LEAST_PIVOT = Fraction(1, 10**10)  # of a column's own square sum
_NAMED = 1e-6  # share of a column that others must explain to be named


@dataclass(frozen=True)
class Inverse:
    """H^-1 = adjugate * unit / determinant."""

    adjugate: list[list[int]]
    determinant: int
    unit: int

    def times(self, vector: Sequence[Fraction]) -> list[Fraction]:
        """Return H^-1 v."""
        shared = math.lcm(*(v.denominator for v in vector))
        whole = [v.numerator * (shared // v.denominator) for v in vector]
        sums = [sum(a * b for a, b in zip(row, whole, strict=True)) for row in self.adjugate]
        return [Fraction(s * self.unit, self.determinant * shared) for s in sums]

    def matrix(self) -> Matrix:
        """Return H^-1."""
        return [[Fraction(a * self.unit, self.determinant) for a in row] for row in self.adjugate]

    def around(self, middle: Matrix) -> Matrix:
        """Return H^-1 M H^-1."""
        whole, unit = _whole(middle)
        product = _product(_product(self.adjugate, whole), self.adjugate)
        below = self.determinant * self.determinant * unit
        return [[Fraction(a * self.unit * self.unit, below) for a in row] for row in product]


def inverse(matrix: Matrix, names: Sequence[str]) -> Inverse:
    """Invert a positive definite matrix by Gauss-Jordan elimination without fractions (Bareiss 1968).

    Raises:
        DataError: A column is 0 everywhere, or is a combination of columns before it, up to 1e-10 of its own
            square sum; the error names it and them.
    """
    whole, unit = _whole(matrix)
    p = len(whole)
    work = [[*row, *(int(i == j) for j in range(p))] for i, row in enumerate(whole)]
    before = 1
    for k in range(p):
        pivot, own = work[k][k], whole[k][k]
        if own <= 0:
            raise DataError(f"column {names[k]}: expected values other than 0; got none. Drop it")
        # pivot / before is what is left of the column's square sum after those before it.
        if Fraction(pivot, before * own) < LEAST_PIVOT:
            of = [j for j in range(k) if _share(work[j][k], before, whole[j][j], own) > _NAMED]
            raise DataError(
                f"column {names[k]}: expected one that does not follow from the others; got a combination of "
                f"{', '.join(names[j] for j in of) or 'others'} in these rows. Drop one of them"
            )
        for i in range(p):
            if i != k:
                factor, row = work[i][k], work[i]
                work[i] = [(pivot * a - factor * b) // before for a, b in zip(row, work[k], strict=True)]
        before = pivot
    return Inverse([row[p:] for row in work], before, unit)


def _share(numerator: int, denominator: int, other: int, own: int) -> float:
    """Return the size of a column's part of another, relative to that one."""
    return abs(float(Fraction(numerator, denominator))) * math.sqrt(float(Fraction(other, own)))


def _whole(matrix: Matrix) -> tuple[list[list[int]], int]:
    """Return a matrix of integers, and what it has to be divided by."""
    unit = math.lcm(*(a.denominator for row in matrix for a in row))
    return [[a.numerator * (unit // a.denominator) for a in row] for row in matrix], unit


def _product(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]


def symmetric(triangle: Sequence[Fraction], p: int) -> Matrix:
    """Return the matrix of its upper triangle, row by row."""
    found = [[Fraction(0)] * p for _ in range(p)]
    values = iter(triangle)
    for i in range(p):
        for j in range(i, p):
            found[i][j] = found[j][i] = next(values)
    return found

"""Cox's partial likelihood from the sums of cells, in integers: no library and no order changes a bit.

At a bin with d events: S0, S1, S2 over all who are at risk, D0, D1, D2 over those with the event, Z = sum of
z over these. Cox 1972, with ties as Breslow 1974 (f = 0) or Efron 1977 (f = l / d, l = 0..d - 1) has them:

log L = sum [sum eta - sum_l ln(S0 - f D0)]
U     = sum [Z - sum_l (S1 - f D1) / (S0 - f D0)]
I     = sum sum_l [(S2 - f D2) / (S0 - f D0) - (S1 - f D1)(S1 - f D1)' / (S0 - f D0)^2]

Quotients are rounded to 2^-192 before they are added. beta' = beta + I^-1 U, exactly and then rounded once.

Test of proportional hazards: the score test for a coefficient of g(t) z_j, g(t) = 1 - S(t-) by Kaplan and
Meier (Grambsch and Therneau 1994, as R's survival has computed it since version 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from task.classical.cox import Cox, Strata
from task.classical.solve import LEAST_PIVOT, Inverse, Matrix, inverse
from task.errors import DataError
from task.numerics.elementary import log
from task.numerics.row_sums import UNIT_BITS, value

_PLACES = 192
_WHOLE = UNIT_BITS + _PLACES  # scores and information are whole numbers of 2^-this


@dataclass(frozen=True)
class CellSums:
    """The sums of a question, of unit 2^-51."""

    cells: list[list[int]]
    far: int  # rows whose eta is too large


def cells_in(totals: Sequence[int], triangle: int) -> CellSums:
    """Read the sums of a question."""
    cells = [list(totals[at : at + triangle]) for at in range(0, len(totals) - 1, triangle)]
    return CellSums(cells, int(value(totals[-1])))


@dataclass(frozen=True)
class EventBin:
    """What one bin with events adds: score and information, unit 2^-(51 + 192)."""

    score: list[int]
    information: list[int]  # upper triangle, row by row
    moments: list[int]  # what the information would be on its diagonal if means were 0


@dataclass(frozen=True)
class PartialLikelihood:
    """The partial likelihood at some coefficients."""

    bins: list[EventBin]
    value: float  # log L
    hazards: list[float]  # d / S0 by bin: jumps of the baseline hazard where x = c
    names: tuple[str, ...]

    @cached_property
    def score(self) -> list[Fraction]:
        """U of scaled coefficients."""
        sums = [sum(column) for column in zip(*(b.score for b in self.bins), strict=True)]
        return [Fraction(s, 1 << _WHOLE) for s in sums]

    @cached_property
    def information(self) -> Inverse:
        """I^-1 of scaled coefficients.

        Raises:
            DataError: A column has one value, or is a combination of columns before it.
        """
        matrix = self.weighted([1] * len(self.bins))
        for j, name in enumerate(self.names):
            moment = Fraction(sum(b.moments[j] for b in self.bins), 1 << _WHOLE)
            if matrix[j][j] <= LEAST_PIVOT * moment:
                raise DataError(
                    f"column {name}: expected values that differ among persons at risk together; got one "
                    "value. Drop it"
                )
        return inverse(matrix, self.names)

    def weighted(self, by: Sequence[int], unit: int = 1) -> Matrix:
        """Return the sum of the bins' information, times integers over a unit."""
        p = len(self.names)
        found = [[Fraction(0)] * p for _ in range(p)]
        pairs = [(i, j) for i in range(p) for j in range(i, p)]
        for at, (i, j) in enumerate(pairs):
            total = sum(w * b.information[at] for w, b in zip(by, self.bins, strict=True))
            found[i][j] = found[j][i] = Fraction(total, unit << _WHOLE)
        return found


def likelihood_at(
    cox: Cox, strata: Strata, sums: CellSums, observed: CellSums, beta: Sequence[float]
) -> PartialLikelihood:
    """Return the partial likelihood at `beta`, of its sums; `observed` are those at 0."""
    bins, hazards, logs = list[EventBin](), list[float](), list[float]()
    risk = _at_risk(strata, sums)
    for at, (d, s) in enumerate(zip(strata.events, risk, strict=True)):
        of = sums.cells[1 + 2 * at]
        powers = _powers(d, s[0], of[0], cox.efron)
        z = observed.cells[1 + 2 * at][1 : cox.p + 1]
        bins.append(_event_bin(cox.p, s, of, z, powers))
        logs += _logs(d, s[0], of[0], cox.efron)
        hazards.append(float(Fraction(d << UNIT_BITS, s[0])))
    found = math.fsum([_eta(cox, observed, len(bins), beta), *(-x for x in logs)])
    return PartialLikelihood(bins, found, hazards, cox.names)


def _eta(cox: Cox, observed: CellSums, bins: int, beta: Sequence[float]) -> float:
    """Return the sum of eta over all events."""
    totals = [sum(observed.cells[1 + 2 * at][1 + j] for at in range(bins)) for j in range(cox.p)]
    scaled = zip(totals, beta, cox.scales, strict=True)
    return float(sum(value(t) * Fraction(b) / Fraction(s) for t, b, s in scaled))


def _at_risk(strata: Strata, sums: CellSums) -> list[list[int]]:
    """Return the sums over who is at risk at each bin with events."""
    found: list[list[int]] = []
    for at in reversed(range(len(strata.bins))):
        later = at + 1 < len(strata.bins) and strata.stratum[at + 1] == strata.stratum[at]
        parts = [sums.cells[1 + 2 * at], sums.cells[2 + 2 * at], *([found[-1]] if later else [])]
        found.append([sum(column) for column in zip(*parts, strict=True)])
    return found[::-1]


def _rungs(d: int, s0: int, d0: int, efron: bool) -> list[tuple[int, int]]:
    """Return l and d S0 - l D0 by event; under Breslow's rule l is 0.

    Raises:
        DataError: A risk set is empty, which no honest sums are.
    """
    found = [(at, d * s0 - at * d0) for at in (range(d) if efron else [0] * d)]
    if any(below <= 0 for _, below in found):
        raise DataError("expected persons at risk wherever there are events; got sums of none")
    return found


def _powers(d: int, s0: int, d0: int, efron: bool) -> tuple[int, int, int, int, int]:
    """Return the sums over l of 1 / S, f / S, 1 / S^2, f / S^2, f^2 / S^2, S = S0 - f D0, units of 2^-192."""
    one, two = UNIT_BITS + _PLACES, 2 * UNIT_BITS + _PLACES
    a = b = aa = ab = bb = 0
    for f, below in _rungs(d, s0, d0, efron):
        square = below * below
        a, b = a + (d << one) // below, b + (f << one) // below
        aa += (d * d << two) // square
        ab += (d * f << two) // square
        bb += (f * f << two) // square
    return a, b, aa, ab, bb


def _logs(d: int, s0: int, d0: int, efron: bool) -> list[float]:
    unit = d << UNIT_BITS
    values = [float(Fraction(below, unit)) for _, below in _rungs(d, s0, d0, efron)]
    return [float(x) for x in log(np.array(values))]


def _event_bin(
    p: int, s: Sequence[int], of: Sequence[int], z: Sequence[int], powers: tuple[int, int, int, int, int]
) -> EventBin:
    a, b, aa, ab, bb = powers
    score = [(z[j] << _PLACES) - (s[1 + j] * a - of[1 + j] * b) for j in range(p)]
    information, moments = list[int](), list[int]()
    at = p + 1  # where the second moments begin
    for i in range(1, p + 1):
        for j in range(i, p + 1):
            product = s[i] * s[j] * aa - (s[i] * of[j] + of[i] * s[j]) * ab + of[i] * of[j] * bb
            moment = s[at] * a - of[at] * b
            information.append(moment - (product >> UNIT_BITS))
            moments += [moment] if i == j else []
            at += 1
    return EventBin(score, information, moments)


@dataclass(frozen=True)
class ProportionalTest:
    """Tests of proportional hazards: chi squared with one degree of freedom each, and of all together."""

    each: list[float]  # NaN where the columns of the test are collinear
    together: float


def proportional(found: PartialLikelihood, g: Sequence[float]) -> ProportionalTest:
    """Return the score tests for an effect that changes with g, one number in [0, 1] for each bin."""
    unit = 1 << 52
    w = [int(x * unit) for x in g]
    p = len(found.names)
    sums = [sum(v * b.score[j] for v, b in zip(w, found.bins, strict=True)) for j in range(p)]
    score = [Fraction(s, unit << _WHOLE) for s in sums]
    mixed = found.weighted(w, unit)
    own = found.weighted([v * v for v in w], unit * unit)
    moves = [found.information.times(row) for row in mixed]
    left = [
        [own[i][j] - sum(a * b for a, b in zip(mixed[i], moves[j], strict=True)) for j in range(p)]
        for i in range(p)
    ]
    each = [float(u * u / left[j][j]) if left[j][j] > 0 else math.nan for j, u in enumerate(score)]
    try:
        move = inverse(left, found.names).times(score)
    except DataError:
        return ProportionalTest(each, math.nan)
    return ProportionalTest(each, float(sum(u * m for u, m in zip(score, move, strict=True))))


def means_in(cox: Cox, null: CellSums) -> list[float]:
    """Return the columns' means over all persons, from the sums at 0."""
    totals = [sum(column) for column in zip(*(cell[: cox.p + 1] for cell in null.cells), strict=True)]
    n = totals[0]
    parts = zip(totals[1:], cox.scales, cox.centres, strict=True)
    return [float(Fraction(t, n) / Fraction(s) + Fraction(c)) for t, s, c in parts]


def share_before(counts: np.ndarray, strata: Strata) -> list[float]:
    """Return 1 - S(t-) of all persons by bin with events, for the test of proportional hazards."""
    pooled = counts.sum(axis=0)
    at_risk = pooled.sum(axis=1)[::-1].cumsum()[::-1]
    survival, before = 1.0, np.zeros(len(pooled))
    for j, (d, n) in enumerate(zip(pooled[:, 0].tolist(), at_risk.tolist(), strict=True)):
        before[j] = 1.0 - survival
        survival *= 1.0 - d / n if n else 1.0
    return [float(before[j]) for j in strata.bins]

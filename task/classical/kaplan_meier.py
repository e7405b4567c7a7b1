"""Survival curves and the log-rank test from counts, in integers: no library and no order changes a bit.

Of a group, d_j events and c_j ends without one in bin j, n_j = persons whose bin is j or later:

S(t)   = prod_{j <= t} (1 - d_j / n_j)                               Kaplan and Meier 1958
H(t)   = sum_{j <= t} d_j / n_j                                      Nelson-Aalen
se     = S sqrt(v),  v = sum d_j / (n_j (n_j - d_j))                 Greenwood
limits = S^exp(+- z sqrt(v) / ln S),  z = 1.96                       of ln(-ln S)

Log-rank test of G groups, by stratum and then added up: E_g = sum d n_g / n, V_gh = sum d (n - d) / (n - 1)
(n_g / n) ((g = h) - n_h / n), and (O - E)' V^-1 (O - E) without the last group is chi squared with G - 1
degrees of freedom. Fractions are rounded to 2^-160 before they are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.classical.solve import inverse
from task.classical.survival import EVENT
from task.errors import DataError

_UNIT = 160  # fractions are whole numbers of 2^-160
_ONE = 1 << _UNIT
Z = 1.959963984540054  # of 95 %
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CurvePoint:
    """A curve at one time at which somebody's observation ended."""

    time: float
    at_risk: int
    events: int
    censored: int
    survival: float
    se: float | None  # None where nobody is left
    lower: float | None
    upper: float | None
    hazard: float  # cumulative, Nelson-Aalen


@dataclass(frozen=True)
class LogRank:
    """The log-rank test."""

    observed: list[int]
    expected: list[float]
    chi2: float | None  # None where no two groups were at risk together
    df: int
    p: float | None


def curve(counts: Counts, times: Sequence[float]) -> list[CurvePoint]:
    """Return the points of a group's curve from its counts [bins, fates]."""
    n = int(counts.sum())
    survival, hazard, v, found = _ONE, 0, 0, []
    for j in np.flatnonzero(counts.any(axis=1)).tolist():
        d, left = counts[j].tolist()
        survival, hazard = survival * (n - d) // n, hazard + d * _ONE // n
        v += d * _ONE // (n * (n - d)) if n > d else 0
        s, spread = _float(survival), math.sqrt(_float(v))
        lower, upper = _limits(s, spread)
        se = s * spread if survival else None
        found.append(CurvePoint(times[j], n, d, left, s, se, lower, upper, _float(hazard)))
        n -= d + left
    return found


def _float(whole: int) -> float:
    return float(Fraction(whole, _ONE))


def _limits(s: float, spread: float) -> tuple[float | None, float | None]:
    if not s:
        return None, None
    if s == 1.0:
        return 1.0, 1.0
    by = Z * spread / math.log(s)
    return s ** math.exp(-by), s ** math.exp(by)


def median(points: Sequence[CurvePoint], of: str = "survival") -> float | None:
    """Return the first time at which a curve, or a limit of it, is at most one half; None = never."""
    return next((p.time for p in points if (s := getattr(p, of)) is not None and s <= 0.5), None)


def log_rank(counts: Counts) -> LogRank:
    """Return the test of counts [strata, groups, bins, fates]."""
    groups = counts.shape[1]
    expected = [0] * groups
    variance = [[0] * groups for _ in range(groups)]
    for stratum in counts:
        at_risk = stratum.sum(axis=2)[:, ::-1].cumsum(axis=1)[:, ::-1]
        events = stratum[:, :, EVENT].sum(axis=0)
        for j in np.flatnonzero(events).tolist():
            d, of = int(events[j]), at_risk[:, j].tolist()
            n = sum(of)
            for g in range(groups):
                expected[g] += d * of[g] * _ONE // n
                for h in range(groups if n > 1 else 0):
                    share = of[g] * ((g == h) * n - of[h])
                    variance[g][h] += d * (n - d) * share * _ONE // ((n - 1) * n * n)
    observed = counts[..., EVENT].sum(axis=(0, 2)).tolist()
    there = [g for g in range(groups) if variance[g][g]]
    chi2, df = _chi2(observed, expected, variance, there), max(len(there) - 1, 0)
    p = None if chi2 is None else chi2_tail(chi2, df)
    return LogRank(observed, [_float(e) for e in expected], chi2, df, p)


def _chi2(
    observed: Sequence[int], expected: Sequence[int], variance: Sequence[Sequence[int]], there: Sequence[int]
) -> float | None:
    first = there[:-1]
    if not first:
        return None
    excess = [observed[g] - Fraction(expected[g], _ONE) for g in first]
    matrix = [[Fraction(variance[g][h] + variance[h][g], 2 * _ONE) for h in first] for g in first]
    try:
        move = inverse(matrix, [str(g) for g in first]).times(excess)
    except DataError:  # groups that never were at risk together
        return None
    return float(sum(a * b for a, b in zip(excess, move, strict=True)))


def chi2_tail(chi2: float, df: int) -> float:
    """Return the p value of chi squared."""
    if df == 1:
        return math.erfc(math.sqrt(max(chi2, 0.0) / 2))
    from scipy.special import chdtrc  # seconds to import

    return float(chdtrc(df, chi2))

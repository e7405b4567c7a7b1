"""The division of numbers' ranges: which parts to halve next, and what quantiles and histograms follow.

A quantile q of n values lies at h = (n - 1) q between the values of ranks floor(h) + 1 and ceil(h) + 1, as
numpy's default has it. Each of them lies in one part; where that is one step wide, the value is the least
point of the grid with at least as many values at or below it, and the quantile is less than a step too large.
Else the part is an interval, which holds too few persons at some site to be halved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.classical.columns import Variable
from task.classical.survey import DEPTH, Part, Survey, cut_of


@dataclass(frozen=True)
class Leaf:
    """A part that is not halved, or not yet."""

    part: Part
    count: int  # of all sites
    whole: bool  # whether it must stay so: fewer persons than allowed are in a half at some site


@dataclass(frozen=True)
class Quantile:
    """Where a quantile lies; `value` is None where that is known as an interval alone."""

    q: Fraction
    low: float
    high: float
    value: float | None


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: values above `low`, the first one's at it, too, up to `high`."""

    low: float
    high: float
    count: int


def rows_of(leaves: Sequence[Leaf]) -> npt.NDArray[np.int64]:
    """Return leaves as a state has them, int64 [leaves, 5]."""
    rows = [(v.part.variable, v.part.depth, v.part.place, v.count, v.whole) for v in leaves]
    return np.array(rows, np.int64).reshape(-1, 5)


def parts_of(rows: npt.NDArray[np.int64]) -> list[Leaf]:
    """Return the leaves of what `rows_of` made."""
    return [Leaf(Part(*part), count, bool(whole)) for *part, count, whole in rows.tolist()]


def next_parts(survey: Survey, leaves: Sequence[Leaf]) -> list[Part]:
    """Return the parts to halve, in order: those wider than a bar, and those with a rank of a quantile."""
    found = []
    bars = survey.bins.bit_length() - 1 if survey.bins else 0
    for variable in survey.numbers:
        at = 0
        ranks = survey.ranks(sum(leaf.count for leaf in leaves if leaf.part.variable == variable))
        for leaf in _of(variable, leaves):
            needed = leaf.part.depth < bars or any(at < k <= at + leaf.count for k in ranks)
            if leaf.count and not leaf.whole and leaf.part.depth < DEPTH and needed:
                found.append(leaf.part)
            at += leaf.count
    return found


def quantiles_of(survey: Survey, variable: int, leaves: Sequence[Leaf]) -> Iterator[Quantile]:
    """Yield the quantiles of a number; none of one without values or whose counts are closed."""
    v, ordered = survey.variables[variable], _of(variable, leaves)
    n = sum(leaf.count for leaf in ordered)
    if not n:
        return
    for q in survey.quantiles:
        h = (n - 1) * q
        share = float(h - math.floor(h))
        first, second = (_with_rank(ordered, k).part for k in (math.floor(h) + 1, math.ceil(h) + 1))
        ends = zip(_edges(v, first), _edges(v, second), strict=True)
        low, high = (min(a + share * (b - a), v.high) for a, b in ends)
        yield Quantile(q, low, high, high if first.depth == second.depth == DEPTH else None)


def histogram_of(survey: Survey, variable: int, leaves: Sequence[Leaf]) -> list[Bar]:
    """Return the bars of a number; a bar is wider where fewer persons than allowed are in its halves."""
    v, bars = survey.variables[variable], survey.bins.bit_length() - 1 if survey.bins else 0
    found: dict[Part, int] = {}
    for leaf in _of(variable, leaves):
        up = max(leaf.part.depth - bars, 0)
        part = Part(variable, leaf.part.depth - up, leaf.part.place >> up)
        found[part] = found.get(part, 0) + leaf.count
    bars_of = [Bar(*_edges(v, part), count) for part, count in found.items()]
    return [bar for bar in bars_of if bar.low < v.high or bar.count] if bars else []


def _of(variable: int, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Return the leaves of a number from its least values to its largest."""
    mine = [leaf for leaf in leaves if leaf.part.variable == variable]
    return sorted(mine, key=lambda leaf: leaf.part.place << (DEPTH - leaf.part.depth))


def _with_rank(ordered: Sequence[Leaf], rank: int) -> Leaf:
    at = 0
    for leaf in ordered:
        at += leaf.count
        if rank <= at:
            return leaf
    return ordered[-1]


def _edges(v: Variable, part: Part) -> tuple[float, float]:
    width = 1 << (DEPTH - part.depth)
    return cut_of(v, part.place * width), cut_of(v, (part.place + 1) * width)

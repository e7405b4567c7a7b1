"""The division of numbers' ranges: which parts to cut next, and what quantiles and histograms follow.

A quantile q of n values lies at h = (n - 1) q between the values of ranks floor(h) + 1 and ceil(h) + 1, as
numpy's default has it. Each of them lies in one part; where that is one step wide, the value is the least
point of the grid with at least as many values at or below it, and the quantile is less than a step too large.
Else the part is an interval, which holds too few persons at some site to be cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.classical.columns import Variable
from task.classical.survey import (
    DEPTH,
    QUARTERS,
    Cut,
    RangePart,
    Survey,
    cut_of,
    path_of_numbers,
    path_to_numbers,
)
from task.errors import DataError
from task.numerics.arrays import NamedArrays


@dataclass(frozen=True)
class Leaf:
    """A part that is not cut, or not yet."""

    part: RangePart
    count: int  # of all sites
    tried: int = 0  # at how many of `QUARTERS` it must not be cut, as a site says

    @property
    def cut(self) -> Cut | None:
        """The cut to try next; None = it stays whole."""
        ways = (Cut(self.part, where) for where in range(self.tried, len(QUARTERS)))
        return next((cut for cut in ways if cut.possible), None)


@dataclass(frozen=True)
class Quantile:
    """Where a quantile lies; `value` is None where that is known as an interval alone."""

    q: Fraction
    low: float
    high: float
    value: float | None


@dataclass(frozen=True)
class HistogramBar:
    """A bar of a histogram: values above `low`, the first one's at it, too, up to `high`."""

    low: float
    high: float
    count: int


def rows_of(leaves: Sequence[Leaf]) -> npt.NDArray[np.int64]:
    """Return leaves as a state has them, int64 [leaves, 5]."""
    rows = [(x.part.variable, *path_to_numbers(x.part.path), x.count, x.tried) for x in leaves]
    return np.array(rows, np.int64).reshape(-1, 5)


def parts_of(rows: npt.NDArray[np.int64]) -> list[Leaf]:
    """Return the leaves of what `rows_of` made."""
    return [
        Leaf(RangePart(variable, path_of_numbers(first, second)), count, tried)
        for variable, first, second, count, tried in rows.tolist()
    ]


def rows_of_sites(sites: Sequence[Sequence[Leaf]]) -> npt.NDArray[np.int64]:
    """Return each site's leaves as a state has them, int64 [leaves, 6], with the site's place."""
    rows = [np.insert(rows_of(leaves), 0, place, axis=1) for place, leaves in enumerate(sites)]
    return np.concatenate([np.zeros((0, 6), np.int64), *rows])


def parts_of_sites(arrays: NamedArrays) -> list[list[Leaf]]:
    """Return each site's leaves in a result; none where they were not asked for."""
    rows = arrays.get("site-parts", np.zeros((0, 6), np.int64))
    return [parts_of(rows[rows[:, 0] == place, 1:]) for place in range(len(arrays["site-sums"]))]


def whole_range(variable: int, count: int, *, closed: bool) -> Leaf:
    """Return the part that is all of a number's range; where its count is closed, it is never cut."""
    return Leaf(RangePart(variable), count, len(QUARTERS) if closed else 0)


def next_cuts(survey: Survey, leaves: Sequence[Leaf], least: float = 1, finest: int = 1) -> list[Cut]:
    """Return the cuts to ask for: of parts wider than a bar, and of those with a quantile's rank.

    Parts of fewer than `least` persons, and of at most `finest` steps, stay whole.
    """
    found = []
    for variable in survey.numbers:
        at, ordered = 0, _of(variable, leaves)
        ranks = survey.ranks(sum(leaf.count for leaf in ordered))
        for leaf in ordered:
            needed = leaf.part.width > _bar(survey) or any(at < k <= at + leaf.count for k in ranks)
            if leaf.count >= least and leaf.part.width > finest and needed and (cut := leaf.cut):
                found.append(cut)
            at += leaf.count
    return found


def after(
    survey: Survey, leaves: Sequence[Leaf], cuts: Sequence[Cut], shut: Sequence[int], lower: Sequence[int]
) -> list[Leaf]:
    """Return the leaves after cuts, with how many sites closed each, and the counts of the lower pieces.

    Raises:
        DataError: A count is none that rows have.
    """
    answers = {cut: (closed, below) for cut, closed, below in zip(cuts, shut, lower, strict=True)}
    found = []
    for leaf in leaves:
        if (cut := leaf.cut) is None or cut not in answers:
            found.append(leaf)
            continue
        closed, below = answers[cut]
        if not 0 <= below <= leaf.count:
            raise DataError(
                f"column {survey.variables[cut.part.variable].name}: expected counts of 0 to the "
                f"{leaf.count} values of a part of its range; got {below}. Is each node's app the "
                "installed one?"
            )
        if closed:
            found.append(replace(leaf, tried=cut.where + 1))
        else:
            first, second = cut.pieces
            found += [Leaf(first, below), Leaf(second, leaf.count - below)]
    return found


def _bar(survey: Survey) -> int:
    """Return the width of a bar; one that no part has where no histogram is asked for."""
    return (1 << DEPTH) // survey.bins if survey.bins else 1 << DEPTH


def quantiles_of(
    survey: Survey, variable: int, leaves: Sequence[Leaf], slack: float = 0
) -> Iterator[Quantile]:
    """Yield the quantiles of a number; none of one without values or whose counts are closed.

    Where counts have noise, `slack` is by how many ranks they may be off: each is an interval then.
    """
    v, ordered = survey.variables[variable], _of(variable, leaves)
    n = sum(leaf.count for leaf in ordered)
    if not n:
        return
    for q in survey.quantiles:
        h = (n - 1) * q
        share = float(h - math.floor(h))
        if slack:
            first, second = (_with_rank(ordered, k).part for k in (h + 1 - slack, h + 1 + slack))
            yield Quantile(q, _edges(v, first)[0], min(_edges(v, second)[1], v.high), None)
            continue
        first, second = (_with_rank(ordered, k).part for k in (math.floor(h) + 1, math.ceil(h) + 1))
        ends = zip(
            (*_edges(v, first), _point(v, first)), (*_edges(v, second), _point(v, second)), strict=True
        )
        low, high, value = (min(a + share * (b - a), v.high) for a, b in ends)
        yield Quantile(q, low, high, value if first.width == second.width == 1 else None)


def histogram_of(survey: Survey, variable: int, leaves: Sequence[Leaf]) -> list[HistogramBar]:
    """Return the bars of a number; a bar is wider where it could not be cut for few persons."""
    v, found = survey.variables[variable], dict[tuple[int, int], int]()
    for leaf in _of(variable, leaves):
        path = leaf.part.path
        ways = (RangePart(variable, path[:i]) for i in range(len(path) + 1))
        part = next((p for p in ways if p.width <= _bar(survey)), leaf.part)
        found[part.ends] = found.get(part.ends, 0) + leaf.count
    bars = [HistogramBar(cut_of(v, low), cut_of(v, high), count) for (low, high), count in found.items()]
    return [bar for bar in bars if bar.low < v.high or bar.count] if survey.bins else []


def _of(variable: int, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Return the leaves of a number from its least values to its largest."""
    return sorted((x for x in leaves if x.part.variable == variable), key=lambda x: x.part.ends)


def _with_rank(ordered: Sequence[Leaf], rank: float | Fraction) -> Leaf:
    at = 0
    for leaf in ordered:
        at += leaf.count
        if rank <= at:
            return leaf
    return ordered[-1]


def _edges(v: Variable, part: RangePart) -> tuple[float, float]:
    low, high = part.ends
    return cut_of(v, low), cut_of(v, high)


def _point(v: Variable, part: RangePart) -> float:
    """Return what stands for the values of a part one step wide: its end, of the first one its beginning."""
    low, high = part.ends
    return cut_of(v, high if low else 0)

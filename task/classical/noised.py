"""Statistics with noise that protects each row: what goes up, how far one row moves it, and what follows.

Neighbours differ by one person, whose row has all its values or none at all; how many rows a site has is
public. So counts of missing values need no question: they are the rows less the others. Values are clipped to
the declared range, and an undeclared level counts as none, since an error would tell of them.

Of each row there are terms of at most 1 in size, as multiples of 2^-`GRID` rounded towards zero, so that the
bounds hold of the integers. One question is one Gaussian mechanism: each of its numbers gets noise of z times
the root of the squared L2 sensitivity.

=================  ====================================================  ====================================
of                 numbers                                               squared L2 sensitivity
=================  ====================================================  ====================================
a number           1, t, t^2, and the bar of its histogram               3, and 1 with a histogram
a category         its level                                             1
a cross-table      its cell                                              1
correlations       1, t_i, t_i t_j of p numbers                          1 + p + p (p + 1) / 2
cuts of a number   [value is in the lower piece]                         most lower pieces that overlap
=================  ====================================================  ====================================

t is `task.classical.survey.scaled`. The last two numbers of an answer are the rows, and the variance of the
noise in units of its own, which tells what sites or nodes added in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from task.classical.columns import Floats
from task.classical.parts import Leaf, next_cuts, parts_of, parts_of_sites
from task.classical.survey import DEPTH, ROOM, Cut, RangePart, SiteColumns, Survey, cut_of, scaled
from task.numerics.arrays import NamedArrays
from task.numerics.row_sums import UNIT_BITS

GRID = 24  # noise is at least 2^-9 wide (`task.privacy.bounded_integers.LEAST_NOISE`), 2^15 of these units
ENDS = 2  # numbers after those with noise: the rows, and the variance in units of 2^-`GRID`
HALVINGS = 10  # of a range with noise: each round costs epsilon, whatever it finds
SURE = 4.0  # standard deviations of the noise that a part must hold to be cut
WIDE = 2.0  # the same that ranks are widened by, for an interval that holds a quantile in 95 of 100 runs
_EXACT = int(math.log2(ROOM)) + UNIT_BITS - GRID  # binary digits from this grid to that of exact sums


def _left_out(survey: Survey) -> list[tuple[tuple[int, ...], int]]:
    """Return the cells that follow from the rows and others: those others, and the cell."""
    found = [(cells[:-1], cells[-1]) for cells, total in survey.equations if total < 0]
    for cross in survey.crosses:
        cells = range(cross.start, cross.start + cross.shape[0] * cross.shape[1])
        found.append((tuple(cells[:-1]), cells[-1]))
    return found


def cells_sent(survey: Survey) -> list[int]:
    """Return the cells whose counts go up."""
    gone = {last for _, last in _left_out(survey)}
    return [cell for cell in range(survey.counts) if cell not in gone]


def table_size(survey: Survey) -> int:
    """Return how many numbers of the tables go up with noise."""
    sums = survey.size - 1 - survey.counts
    return len(cells_sent(survey)) + sums + survey.bins * len(survey.numbers)


def table_sensitivity(survey: Survey) -> int:
    """Return the squared L2 sensitivity of the tables.

    >>> from task.classical.columns import Variable
    >>> table_sensitivity(Survey((Variable("age", "", 0, 120), Variable("sex", "", levels=("f", "m")))))
    4
    """
    p = len(survey.numbers)
    found = len(survey.variables) - p + len(survey.crosses) + (3 + (survey.bins > 0)) * p
    return found + survey.correlation * (1 + p + p * (p + 1) // 2)


def cuts_sensitivity(cuts: Sequence[Cut]) -> int:
    """Return the squared L2 sensitivity of counts in the lower pieces of any cuts, nested ones too."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for cut in cuts:
        ends.setdefault(cut.part.variable, []).extend([(cut.part.ends[0], 1), (cut.at, -1)])
    return sum(max(accumulate(step for _, step in sorted(own))) for own in ends.values())


def _total(terms: Floats) -> int:
    return sum(np.trunc(np.ldexp(terms, GRID)).astype(np.int64).tolist())


def table_totals(site: SiteColumns) -> list[int]:
    """Return a client's numbers of the tables before the noise, in units of 2^-`GRID`."""
    survey, counts = site.survey, site.counts
    found = [counts[cell] << GRID for cell in cells_sent(survey)]
    there = [scaled(survey.variables[i], site.columns[i][~np.isnan(site.columns[i])]) for i in survey.numbers]
    for t in there:
        found += [_total(t), _total(t * t)]
    if survey.correlation:
        whole = [scaled(survey.variables[i], site.columns[i][site.complete]) for i in survey.numbers]
        found += [_total(t) for t in whole]
        found += [_total(t * u) for i, t in enumerate(whole) for u in whole[i:]]
    for i in survey.numbers:
        edges = [site.below(i, cut_of(survey.variables[i], at)) for at in _bar_ends(survey)]
        found += [count << GRID for count in np.diff([0, *edges]).tolist()]
    return found


def cut_totals(site: SiteColumns, cuts: Sequence[Cut]) -> list[int]:
    """Return a client's counts in the lower pieces, in the same units."""
    return [site.split(cut)[0] << GRID for cut in cuts]


def _bar_ends(survey: Survey) -> list[int]:
    """Return the points of the grid at which the bars of a histogram end."""
    return [(bar + 1 << DEPTH) // survey.bins for bar in range(survey.bins)]


def noise_of(z: float, squared: int, variance: int) -> float:
    """Return the standard deviation of the noise on a count, of all who added some.

    Args:
        z: The noise multiplier.
        squared: The squared sensitivity of the question.
        variance: The last number of the answer.
    """
    return z * math.sqrt(max(squared * variance, 0) / 2.0**GRID)


def persons(total: int, most: int) -> int:
    """Return a count with noise as one of 0 to `most` persons."""
    return min(max((total + (1 << GRID - 1)) >> GRID, 0), most)


def tables_in(survey: Survey, totals: Sequence[int]) -> tuple[list[int], list[Leaf]]:
    """Return the numbers of `Survey.size` that follow from those with noise, and the parts to cut first."""
    rows, sent = max(totals[-ENDS], 0), cells_sent(survey)
    counts = [0] * survey.counts
    for cell, total in zip(sent, totals, strict=False):
        counts[cell] = persons(total, rows)
    for cells, last in _left_out(survey):
        counts[last] = max(rows - sum(counts[cell] for cell in cells), 0)
    bars_at = table_size(survey) - survey.bins * len(survey.numbers)
    leaves = []
    for place, i in enumerate(survey.numbers):
        if not survey.bins:
            leaves.append(Leaf(RangePart(i), counts[survey.starts[i]]))
        v = survey.variables[i]
        for bar in range(survey.bins):
            depth = survey.bins.bit_length() - 1
            part = RangePart(i, tuple(bar >> depth - 1 - level & 1 for level in range(depth)))
            count = persons(totals[bars_at + place * survey.bins + bar], rows)
            leaves.append(Leaf(part, count if cut_of(v, part.ends[0]) < v.high else 0))
    return [rows, *counts, *(total << _EXACT for total in totals[len(sent) : bars_at])], leaves


def is_cut(survey: Survey, arrays: NamedArrays) -> bool:
    """Return whether there is nothing left to cut in a result."""
    return not cuts_left(survey, arrays) and not any(next_cuts(survey, own) for own in parts_of_sites(arrays))


def cuts_left(survey: Survey, arrays: NamedArrays) -> list[Cut]:
    """Return the cuts to ask all sites for next in a result so far."""
    leaves = parts_of(arrays["parts"])
    if (noise := arrays.get("noise")) is None:
        return next_cuts(survey, leaves)
    return next_cuts(survey, leaves, max(SURE * float(noise[1]), 1), 1 << (DEPTH - HALVINGS))


def slack(survey: Survey, of_table: float, of_cuts: float) -> float:
    """Return by how many ranks counts of parts may be off, given the noise on those of tables and of cuts."""
    bars = max(survey.bins, 1)
    cuts = max(HALVINGS - bars.bit_length() + 1, 0)
    return WIDE * math.sqrt(bars * of_table**2 + cuts * of_cuts**2)


def spread(
    figure: Callable[..., float | None], sums: Sequence[float], errors: Sequence[float]
) -> float | None:
    """Return the standard error of a figure of several sums with independent noise, to first order.

    Each derivative is a difference over one standard error up and down; None where the figure is undefined.

    >>> spread(lambda a, b: a + 2 * b, [5.0, 1.0], [3.0, 2.0])
    5.0
    """
    square = 0.0
    for k, error in enumerate(errors):
        ends = [figure(*sums[:k], sums[k] + step, *sums[k + 1 :]) for step in (error, -error)]
        if ends[0] is None or ends[1] is None:
            return None
        square += ((ends[0] - ends[1]) / 2) ** 2
    return math.sqrt(square)

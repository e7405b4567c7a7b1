"""Which cells of a site's tables must not be shown, so that none of few persons can be told.

A cell of 1 to m - 1 persons is closed (threshold rule), and so are others by which it could be computed from
what is left (complementary suppression). The rules are those of statistical offices (Hundepool et al. 2012,
Statistical Disclosure Control, chapters 4 and 5):

* of cells and their sum, all of them known but one, that one is known: where one is closed, so is the
  smallest other;
* the least and the largest value that a closed cell may have, by all that is known, are at least m apart.
  That is a linear programme;
* a row of a cross-table with all its persons in one level tells everybody's: such a row is closed;
* a sum is closed whose two largest terms are more than 85 % of it (dominance rule);
* rows for correlations that differ by 1 to m - 1 persons from those of a mean are closed.

A part of a range is cut only where both pieces have no person or at least m, and so has what is between the
cut and all earlier ones. So all that is known of a column's values are the counts of parts that do not
overlap, each of none or of at least m persons.

Each site decides by its own rows. What it closes holds against those who know all other sites' rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats
from task.classical.survey import Cut, Equation, SiteColumns, Survey, cut_of

DOMINANT, SHARE = 2, 0.85  # the largest terms of a sum, and the most of it that they may be
Flags = npt.NDArray[np.bool_]


def few(count: int, least: int) -> bool:
    """Return whether a cell has persons, but fewer than `least`."""
    return 0 < count < least


def closed_cells(site: SiteColumns, least: int, *, missing: bool = False) -> Flags:
    """Return which cells of a survey a site must not show, bool [cells].

    `missing` says that counts of missing values may be shown however small.
    """
    survey, counts = site.survey, np.array(site.counts, np.int64)
    found = np.zeros(survey.cells, bool)
    if least <= 1:
        return found
    vetoes = vetoes_of(site, least, missing=missing)
    sensitive = np.array(
        [few(c, least) and i not in vetoes.free for i, c in enumerate(counts.tolist())], bool
    )
    found[list(vetoes.hard)] = True
    closed = sensitive | found[: survey.counts]
    for line in lines_of(survey):
        closed[line] |= is_line_of_one(counts[line] > 0)
    closed = complemented(counts, closed, sensitive, survey.equations, least)
    found[: survey.counts] = closed
    for place, i in enumerate(survey.numbers):
        found[survey.sums_cell(place)] |= closed[survey.starts[i]]
    if survey.correlation:
        found[survey.sums_cell(len(survey.numbers))] |= closed[survey.complete]
    return found


@dataclass(frozen=True)
class Vetoes:
    """Cells of a site that the number of persons in them does not decide."""

    free: frozenset[int]  # which may be shown whatever their count is
    hard: frozenset[int]  # which must not


def vetoes_of(site: SiteColumns, least: int, *, missing: bool = False) -> Vetoes:
    """Return which cells a site may or must not show whatever they count; `missing` as of `closed_cells`."""
    survey, hard = site.survey, set[int]()
    free = set(survey.missing_cells()) if missing else set[int]()
    if missing and survey.correlation:
        free.add(survey.complete + 1)
    if least <= 1:
        return Vetoes(frozenset(free), frozenset())
    if survey.correlation and _reveals_rows(site, least):
        hard |= {survey.complete, survey.sums_cell(len(survey.numbers))}
    for place, i in enumerate(survey.numbers):
        values = site.columns[i][~np.isnan(site.columns[i])]
        if dominated(values - survey.variables[i].low):
            hard.add(survey.sums_cell(place))
    if survey.correlation:
        columns = [site.columns[i][site.complete] - survey.variables[i].low for i in survey.numbers]
        if any(dominated(a * b) for a in columns for b in (1.0, a)):
            hard.add(survey.sums_cell(len(survey.numbers)))
    return Vetoes(frozenset(free), frozenset(hard))


def closed_cuts(
    site: SiteColumns, cuts: Sequence[Cut], closed: Flags, least: int, earlier: Mapping[int, Sequence[float]]
) -> Flags:
    """Return at which cuts a site must not count, bool [cuts].

    `closed` are the cells of `closed_cells`, and `earlier` the cuts at which the site has counted a number
    before, sorted: another run may have declared another range, and a server may cut one part in two ways.
    """
    survey, found = site.survey, np.zeros(len(cuts), bool)
    if least <= 1:
        return found
    before = {i: list(values) for i, values in earlier.items()}
    for j, cut in enumerate(cuts):
        variable = cut.part.variable
        ways = (*cut.part.above(), cut)
        found[j] = closed[survey.starts[variable]] or any(few(n, least) for c in ways for n in site.split(c))
        if not found[j]:
            known, value = before.setdefault(variable, []), cut_of(survey.variables[variable], cut.at)
            at = bisect_left(known, value)
            near = (
                site.below(variable, v) - site.below(variable, value) for v in known[max(at - 1, 0) : at + 1]
            )
            found[j] = any(few(abs(n), least) for n in near)
        if not found[j]:
            known.insert(at, value)
    return found


def dominated(terms: Floats) -> bool:
    """Return whether the largest of these terms, of at least 0, are nearly all of their sum."""
    if len(terms) <= DOMINANT:
        return bool(len(terms))
    largest = np.partition(terms, -DOMINANT)[-DOMINANT:]
    return bool(largest.sum() > SHARE * terms.sum())


def complemented(
    counts: npt.NDArray[np.int64], closed: Flags, sensitive: Flags, equations: Sequence[Equation], least: int
) -> Flags:
    """Return closed cells that leave `least` values to each sensitive one, or more, bool [counts]."""
    found = closed.copy()
    while True:
        _close_pairs(counts, found, equations)
        cell = next(
            (i for i in np.flatnonzero(sensitive).tolist() if _width(i, counts, found, equations) < least),
            None,
        )
        if cell is None:
            return found
        near = {i for cells, total in equations for i in (*cells, total) if cell in (*cells, total)}
        # With none left to close beside it, those further away hold it together.
        rest = _open(near, found) or _open(range(len(counts)), found)
        if not rest:
            return found
        found[_smallest(counts, rest)] = True


def _close_pairs(counts: npt.NDArray[np.int64], closed: Flags, equations: Sequence[Equation]) -> None:
    """Close a second cell wherever one cell and what is known of the others give it away."""
    again = True
    while again:
        again = False
        for cells, total in equations:
            members = [*cells, total] if total >= 0 else list(cells)
            rest = _open(members, closed)
            if len(rest) == len(members) - 1 and rest:
                closed[_smallest(counts, rest)] = again = True


def _open(cells: Sequence[int] | set[int] | range, closed: Flags) -> list[int]:
    return sorted(i for i in cells if i >= 0 and not closed[i])


def _smallest(counts: npt.NDArray[np.int64], cells: Sequence[int]) -> int:
    """Return the cell with the fewest persons, rather one with some; the first of several."""
    return min(cells, key=lambda i: (counts[i] == 0, counts[i], i))


def _width(cell: int, counts: npt.NDArray[np.int64], closed: Flags, equations: Sequence[Equation]) -> float:
    """Return how far apart the least and the largest value of a closed cell are, by what is known."""
    from scipy.optimize import linprog  # half a second to import

    hidden = _linked(cell, closed, equations)
    place = {i: j for j, i in enumerate(hidden)}
    rows, known = [], []
    for cells, total in equations:
        signed = [*((i, 1.0) for i in cells), *([(total, -1.0)] if total >= 0 else [])]
        if any(i in place for i, _ in signed):
            row = np.zeros(len(hidden))
            for i, sign in signed:
                if i in place:
                    row[place[i]] += sign
            rows.append(row)
            known.append(float(sum(sign * counts[i] for i, sign in signed if i in place)))
    if not rows:
        return float("inf")
    cost = np.zeros(len(hidden))
    cost[place[cell]] = 1.0
    ends = [linprog(sign * cost, A_eq=np.array(rows), b_eq=known, bounds=(0, None)) for sign in (1.0, -1.0)]
    least, most = ends
    if most.status == 3:  # unbounded
        return float("inf")
    return round(float(-most.fun - least.fun), 6)


def _linked(cell: int, closed: Flags, equations: Sequence[Equation]) -> list[int]:
    """Return the closed cells that equations link with one, itself among them."""
    found, left = {cell}, [cell]
    while left:
        one = left.pop()
        for cells, total in equations:
            members = (*cells, total)
            if one in members:
                more = {i for i in members if i >= 0 and closed[i]} - found
                found |= more
                left += more
    return sorted(found)


def lines_of(survey: Survey) -> list[npt.NDArray[np.int64]]:
    """Return the levels' cells of each row and column of the cross-tables."""
    found = []
    for cross in survey.crosses:
        grid = np.arange(cross.shape[0] * cross.shape[1]).reshape(cross.shape)[:-1, :-1] + cross.start
        found += [*grid, *grid.T]
    return found


def is_line_of_one(there: Flags) -> bool:
    """Return whether all persons of a row or column are in one level, given which levels have some."""
    return int(np.count_nonzero(there)) == 1


def _reveals_rows(site: SiteColumns, least: int) -> bool:
    """Return whether the rows without one number are almost those without any."""
    complete, survey = int(site.complete.sum()), site.survey
    return any(few(site.counts[survey.starts[i]] - complete, least) for i in survey.numbers)

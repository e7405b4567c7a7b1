"""The tables of statistics, from the arrays of their result.

mean = c + h S1 / n and variance = h^2 (S2 - S1^2 / n) / (n - 1), in rationals, rounded once; r = covariance
over the root of the product of variances, of complete rows. A closed number is `CLOSED`, never a number.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from task.classical.noised import slack, spread
from task.classical.parts import (
    HistogramBar,
    Leaf,
    Quantile,
    histogram_of,
    parts_of,
    parts_of_sites,
    quantiles_of,
)
from task.classical.survey import ROOM, Survey, centre_of, step_of, unit_of
from task.numerics.arrays import NamedArrays, text_in
from task.numerics.row_sums import from_wire, value

CLOSED = "<m"  # fewer persons than an owner allows, or what would give such a cell away
ALL = "all"  # of all sites together
HEAD = ("site", "column", "statistic", "of", "value", "low", "high")
NOISED_HEAD = (*HEAD, "noise_error")
Shown = int | float | str | None  # a number, `CLOSED`, or None where it is not defined


@dataclass(frozen=True)
class Described:
    """One column at one site, or at all of them."""

    name: str
    count: Shown
    missing: Shown
    mean: Shown = None
    sd: Shown = None
    errors: tuple[Shown, Shown] | None = None  # standard errors of these by noise; None = they have none
    levels: Mapping[str, Shown] | None = None  # of a category
    step: float = 0.0  # by which quantiles may be off; 0 = of a category
    quantiles: tuple[Quantile, ...] = ()
    bars: tuple[HistogramBar, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found: dict[str, Any] = {"column": self.name, "count": self.count, "missing": self.missing}
        if self.levels is not None:
            return found | {"levels": dict(self.levels)}
        found |= {"mean": self.mean, "sd": self.sd}
        if self.errors:
            found |= dict(zip(("mean_error", "sd_error"), self.errors, strict=True))
        if self.quantiles:
            found["quantiles"] = [
                {"q": str(q.q), "value": q.value, "low": q.low, "high": q.high} for q in self.quantiles
            ]
            found["step"] = self.step
        if self.bars:
            found["histogram"] = [{"low": b.low, "high": b.high, "count": b.count} for b in self.bars]
        return found


@dataclass(frozen=True)
class CrossTable:
    """Counts of two categories together; the last row and column are those without a value."""

    a: str
    b: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Shown, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        cells = [list(row) for row in self.cells]
        return {"columns": [self.a, self.b], "rows": self.rows, "heads": self.columns, "cells": cells}


@dataclass(frozen=True)
class Correlations:
    """Correlations of complete rows."""

    names: tuple[str, ...]
    rows: Shown
    matrix: tuple[tuple[Shown, ...], ...]
    errors: tuple[tuple[Shown, ...], ...] = ()  # standard errors by noise; () = there is none

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found = {"columns": self.names, "rows": self.rows, "matrix": [list(row) for row in self.matrix]}
        return found | ({"errors": [list(row) for row in self.errors]} if self.errors else {})


@dataclass(frozen=True)
class SiteTable:
    """All figures of one site, or of all together."""

    site: str
    rows: int
    columns: tuple[Described, ...]
    crosses: tuple[CrossTable, ...] = ()
    correlations: Correlations | None = None
    error: float = 0.0  # standard error of each count, by noise

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found: dict[str, Any] = {"site": self.site, "rows": self.rows}
        found |= {"count_error": self.error} if self.error else {}
        found["columns"] = [column.as_dict() for column in self.columns]
        if self.crosses:
            found["cross"] = [cross.as_dict() for cross in self.crosses]
        if self.correlations:
            found["correlation"] = self.correlations.as_dict()
        return found

    def lines(self) -> Iterator[tuple[Any, ...]]:
        """Yield the lines of a csv file in the order of `HEAD`, with noise in that of `NOISED_HEAD`."""
        for line, error in self._lines():
            yield (*line, error) if self.error else line

    def _lines(self) -> Iterator[tuple[tuple[Any, ...], Shown]]:
        """Yield the lines, each with its standard error by noise."""
        for c in self.columns:
            for name, shown in (("count", c.count), ("missing", c.missing)):
                yield (self.site, c.name, name, "", shown, "", ""), self.error
            for level, shown in (c.levels or {}).items():
                yield (self.site, c.name, "level", level, shown, "", ""), self.error
            if c.levels is None:
                moments, errors = (("mean", c.mean), ("sd", c.sd)), c.errors or (None, None)
                for (name, shown), error in zip(moments, errors, strict=True):
                    yield (self.site, c.name, name, "", shown, "", ""), error
            for q in c.quantiles:
                yield (self.site, c.name, "quantile", str(q.q), q.value, q.low, q.high), None
            for bar in c.bars:
                yield (self.site, c.name, "bar", "", bar.count, bar.low, bar.high), None
        for cross in self.crosses:
            for a, row in zip(cross.rows, cross.cells, strict=True):
                for b, shown in zip(cross.columns, row, strict=True):
                    line = self.site, f"{cross.a}*{cross.b}", "cell", f"{a}*{b}", shown, "", ""
                    yield line, self.error
        if found := self.correlations:
            for i, a in enumerate(found.names):
                for j, b in enumerate(found.names[:i]):
                    error = found.errors[i][j] if found.errors else None
                    yield (self.site, f"{b}*{a}", "correlation", "", found.matrix[i][j], "", ""), error


@dataclass(frozen=True)
class Report:
    """All tables of a run."""

    tables: tuple[SiteTable, ...]  # of all sites first, then of each
    closed: int  # how many cells of the first are closed
    digest: str  # SHA-256 of all integers

    def csv(self) -> str:
        """Return all figures with all digits, one a line; an empty value is one that is not defined."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(NOISED_HEAD if self.tables[0].error else HEAD)
        for table in self.tables:
            for line in table.lines():
                writer.writerow(["" if c is None else repr(c) if isinstance(c, float) else c for c in line])
        return text.getvalue()

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found = self.tables[0].as_dict() | {"closed_cells": self.closed, "sums_sha256": self.digest}
        if len(self.tables) > 1:
            found["by_site"] = [table.as_dict() for table in self.tables[1:]]
        return found


def begun(arrays: NamedArrays) -> bool:
    """Return whether the first round has ended."""
    return bool(arrays["sites"].size)


def described(survey: Survey, arrays: NamedArrays) -> Report:
    """Return the tables of a result."""
    cells, sums = arrays["cells"].tolist(), from_wire(arrays["sums"])
    error, of_cuts, of_site = arrays["noise"].tolist() if "noise" in arrays else (0.0, 0.0, 0.0)
    ranks = slack(survey, error, of_cuts)
    table = _table(ALL, survey, cells, sums, error)
    whole = _divided(survey, table, cells, parts_of(arrays["parts"]), ranks)
    names = text_in(arrays["sites"]).split("\n")
    sites = [
        _divided(survey, _table(name, survey, shut, from_wire(own), of_site), shut, leaves)
        for name, shut, own, leaves in zip(
            names, arrays["site-cells"].tolist(), arrays["site-sums"], parts_of_sites(arrays), strict=False
        )
    ]
    digest = arrays["sums-sha256"].tobytes().hex()
    return Report((whole, *sites), int(np.count_nonzero(cells)), digest)


def _divided(
    survey: Survey, table: SiteTable, cells: Sequence[int], leaves: Sequence[Leaf], ranks: float = 0.0
) -> SiteTable:
    """Return a table with the quantiles and histograms that follow from the parts of ranges, if any."""
    columns = []
    for i, (v, column) in enumerate(zip(survey.variables, table.columns, strict=True)):
        if leaves and not v.levels and not cells[survey.starts[i]]:
            quantiles, bars = quantiles_of(survey, i, leaves, ranks), histogram_of(survey, i, leaves)
            column = replace(column, step=step_of(v), quantiles=tuple(quantiles), bars=tuple(bars))
        columns.append(column)
    return replace(table, columns=tuple(columns))


def _table(site: str, survey: Survey, shut: Sequence[int], sums: Sequence[int], error: float) -> SiteTable:
    def shown(cell: int) -> Shown:
        return CLOSED if shut[cell] else sums[1 + cell]

    columns = []
    for i, v in enumerate(survey.variables):
        start, last = survey.starts[i], survey.starts[i + 1] - 1
        if v.levels:
            levels = {level: shown(start + j) for j, level in enumerate(v.levels)}
            count = CLOSED if shut[last] else sums[0] - sums[1 + last]
            columns.append(Described(v.name, count, shown(last), levels=levels))
        else:
            found = _noised_moments(survey, i, sums, error) if error else _moments(survey, i, shut, sums)
            columns.append(Described(v.name, shown(start), shown(last), *found))
    crosses = []
    for cross in survey.crosses:
        a, b = survey.variables[cross.a], survey.variables[cross.b]
        grid = [
            tuple(shown(cross.start + i * cross.shape[1] + j) for j in range(cross.shape[1]))
            for i in range(cross.shape[0])
        ]
        names = (*a.levels, "missing"), (*b.levels, "missing")
        crosses.append(CrossTable(a.name, b.name, *names, tuple(grid)))
    correlations = None
    if survey.correlation:
        correlations = (
            _noised_correlations(survey, sums, error) if error else _correlations(survey, shut, sums)
        )
    return SiteTable(site, sums[0], tuple(columns), tuple(crosses), correlations, error)


def _moments(survey: Survey, variable: int, shut: Sequence[int], sums: Sequence[int]) -> tuple[Shown, Shown]:
    """Return mean and standard deviation of a number."""
    place = survey.numbers.index(variable)
    if shut[survey.sums_cell(place)]:
        return CLOSED, CLOSED
    v, at = survey.variables[variable], survey.number_at(place)
    n = sums[1 + survey.starts[variable]]
    s1, s2 = (value(total) / Fraction(ROOM) for total in sums[at : at + 2])
    if not n:
        return None, None
    mean = float(Fraction(centre_of(v)[0]) + unit_of(v) * s1 / n)
    if n < 2:
        return mean, None
    variance = unit_of(v) ** 2 * (s2 - s1 * s1 / n) / (n - 1)
    return mean, math.sqrt(max(variance, Fraction(0)))


def _noised_moments(
    survey: Survey, variable: int, sums: Sequence[int], error: float
) -> tuple[Shown, Shown, tuple[Shown, Shown]]:
    """Return the same of sums with noise, and their standard errors."""
    v, at = survey.variables[variable], survey.number_at(survey.numbers.index(variable))
    centre, unit = centre_of(v)[0], float(unit_of(v))

    def mean(n: float, s1: float) -> float | None:
        return min(max(centre + unit * s1 / n, v.low), v.high) if n > 0 else None

    def sd(n: float, s1: float, s2: float) -> float | None:
        return unit * math.sqrt(max((s2 - s1 * s1 / n) / (n - 1), 0.0)) if n > 1 else None

    n, s1, s2 = float(sums[1 + survey.starts[variable]]), *_floats(sums[at : at + 2])
    of_mean = spread(mean, (n, s1), (error,) * 2)
    return mean(n, s1), sd(n, s1, s2), (of_mean, spread(sd, (n, s1, s2), (error,) * 3))


def _floats(sums: Sequence[int]) -> list[float]:
    return [float(value(total) / Fraction(ROOM)) for total in sums]


def _noised_correlations(survey: Survey, sums: Sequence[int], error: float) -> Correlations:
    """Return correlations of sums with noise, and their standard errors."""
    names, at = tuple(survey.variables[i].name for i in survey.numbers), survey.products_at
    p, rows = len(names), float(sums[1 + survey.complete])
    s1, products = _floats(sums[at : at + p]), iter(_floats(sums[at + p : at + p + p * (p + 1) // 2]))
    both = {(i, j): next(products) for i in range(p) for j in range(i, p)}

    def r(n: float, a: float, b: float, aa: float, bb: float, ab: float) -> float | None:
        squares = (aa - a * a / n) * (bb - b * b / n) if n > 0 else 0.0
        return min(max((ab - a * b / n) / math.sqrt(squares), -1.0), 1.0) if squares > 0 else None

    matrix: list[list[Shown]] = [[1.0] * p for _ in names]
    errors: list[list[Shown]] = [[0.0] * p for _ in names]
    for i, j in combinations(range(p), 2):
        found = rows, s1[i], s1[j], both[i, i], both[j, j], both[i, j]
        matrix[i][j] = matrix[j][i] = r(*found)
        errors[i][j] = errors[j][i] = spread(r, found, (error,) * len(found))
    return Correlations(names, int(rows), *(tuple(map(tuple, of)) for of in (matrix, errors)))


def _correlations(survey: Survey, shut: Sequence[int], sums: Sequence[int]) -> Correlations:
    names = tuple(survey.variables[i].name for i in survey.numbers)
    p, at = len(names), survey.products_at
    rows = CLOSED if shut[survey.complete] else sums[1 + survey.complete]
    if shut[survey.sums_cell(p)] or isinstance(rows, str):
        return Correlations(names, rows, ((CLOSED,) * p,) * p)
    s1 = [value(total) for total in sums[at : at + p]]
    upper = iter(sums[at + p : at + p + p * (p + 1) // 2])
    centred = [[Fraction(0)] * p for _ in range(p)]
    for i in range(p):
        for j in range(i, p):
            # Sums are times ROOM, which a square has once and a product of two sums twice.
            mean = s1[i] * s1[j] / (rows * Fraction(ROOM)) if rows else Fraction(0)
            centred[i][j] = centred[j][i] = value(next(upper)) - mean
    matrix = [[_ratio(centred[i][j], centred[i][i] * centred[j][j]) for j in range(p)] for i in range(p)]
    return Correlations(names, rows, tuple(map(tuple, matrix)))


def _ratio(covariance: Fraction, product: Fraction) -> float | None:
    """Return a correlation; None where a column is the same in all rows."""
    if product <= 0:
        return None
    square = covariance * covariance / product
    return math.copysign(math.sqrt(min(square, Fraction(1))), covariance)

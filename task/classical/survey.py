"""Descriptive statistics that a run asks for: cells of tables, sums over rows, and parts of columns' ranges.

Cells, of which each has a count of persons, in this order:

===============  ==========================================================================
of               cells
===============  ==========================================================================
a number         those with a value, those without
a category       each level, those without one
a cross-table    each pair of levels, the last row and the last column for those without one
correlations     rows that lack none of the numbers, and the others
sums             of each number, and of correlations: no count, but whether they may be shown
===============  ==========================================================================

Numbers that go up with them: the rows, the counts, S1 and S2 of each number, S1 and the products of complete
rows. With the declared range's centre c and half of its width h, S1 is of (x - c) / h, S2 of its square and a
product of two, each times `ROOM`, so that their rounding to 2^-51 is far below that of float64.

Quantiles and histograms share one division of a column's range. A step is the power of two that divides the
range into at most 2^22; a *part* of depth d and place i holds the values in (low + i w, low + (i + 1) w],
w = 2^(22-d) steps, the first one those at `low`, too. A part is halved, or it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats, NamedColumns, Variable, variables_of
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.row_sums import row_sums

ROOM = 2.0**30
DEPTH = 22  # halvings of a range down to one step
MOST_CELLS = 20_000
_BLOCK = 4096  # rows whose products are in memory at once; any number gives the same sums
Equation = tuple[tuple[int, ...], int]  # cells, and the cell that is their sum; -1 = all rows


@dataclass(frozen=True)
class Cross:
    """A table of two categories, by their places among the variables, and its first cell."""

    a: int
    b: int
    start: int
    shape: tuple[int, int]  # levels and those without one


@dataclass(frozen=True)
class Survey:
    """What a run asks for."""

    variables: tuple[Variable, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    quantiles: tuple[Fraction, ...] = ()
    bins: int = 0
    correlation: bool = False
    by_site: bool = False

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Places of the variables that are numbers."""
        return tuple(i for i, v in enumerate(self.variables) if not v.levels)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first cell of each variable; the last of its cells are those without a value."""
        found, at = [], 0
        for v in self.variables:
            found.append(at)
            at += len(v.levels) + 1 if v.levels else 2
        return (*found, at)

    @cached_property
    def crosses(self) -> tuple[Cross, ...]:
        """The cross-tables."""
        found, at = [], self.starts[-1]
        for a, b in self.pairs:
            shape = len(self.variables[a].levels) + 1, len(self.variables[b].levels) + 1
            found.append(Cross(a, b, at, shape))
            at += shape[0] * shape[1]
        return tuple(found)

    @cached_property
    def complete(self) -> int:
        """The cell of complete rows; the next one has the others. -1 = correlations are not asked for."""
        if not self.correlation:
            return -1
        return self.starts[-1] + sum(c.shape[0] * c.shape[1] for c in self.crosses)

    @cached_property
    def counts(self) -> int:
        """How many cells have a count."""
        crossed = self.starts[-1] + sum(c.shape[0] * c.shape[1] for c in self.crosses)
        return crossed + 2 * self.correlation

    @cached_property
    def cells(self) -> int:
        """How many cells there are, those of sums among them."""
        return self.counts + len(self.numbers) + self.correlation

    def sums_cell(self, place: int) -> int:
        """Return the cell of a number's sums; `place` is that among the numbers, or their number."""
        return self.counts + place

    @cached_property
    def size(self) -> int:
        """How many numbers go up with the tables."""
        p = len(self.numbers)
        return 1 + self.counts + 2 * p + self.correlation * (p + p * (p + 1) // 2)

    def number_at(self, place: int) -> int:
        """Return where S1 of a number is among what goes up, by its place among the numbers; S2 is next."""
        return 1 + self.counts + 2 * place

    @cached_property
    def products_at(self) -> int:
        """Where S1 of complete rows begin among what goes up; the products come after them."""
        return 1 + self.counts + 2 * len(self.numbers)

    def cell_of_sum(self) -> npt.NDArray[np.int64]:
        """Return for each number that goes up the cell with which it is closed; -1 = none."""
        p = len(self.numbers)
        sums = np.repeat(self.counts + np.arange(p), 2)
        products = np.full(self.size - 1 - self.counts - 2 * p, self.counts + p)
        return np.concatenate([[-1], np.arange(self.counts), sums, products])

    def missing_cells(self) -> tuple[int, ...]:
        """Return the cells of those without a value of a variable."""
        return tuple(after - 1 for after in self.starts[1:])

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """What anybody knows of the counts: cells and the cell that is their sum; -1 = all rows."""
        found = [
            (tuple(range(start, after)), -1)
            for start, after in zip(self.starts, self.starts[1:], strict=False)
        ]
        for cross in self.crosses:
            grid = np.arange(cross.shape[0] * cross.shape[1]).reshape(cross.shape) + cross.start
            of_a, of_b = self.starts[cross.a], self.starts[cross.b]
            found += [(tuple(row.tolist()), of_a + i) for i, row in enumerate(grid)]
            found += [(tuple(row.tolist()), of_b + j) for j, row in enumerate(grid.T)]
        if self.correlation:
            found.append(((self.complete, self.complete + 1), -1))
        return tuple(found)

    def ranks(self, n: int) -> list[int]:
        """Return the ranks, from 1, of the values between which the quantiles of n values lie, sorted."""
        found = set()
        for q in self.quantiles:
            h = (n - 1) * q
            found |= {math.floor(h) + 1, math.ceil(h) + 1}
        return sorted(found)


@dataclass(frozen=True)
class SiteColumns:
    """One client's columns of a survey: numbers, or places among levels; NaN = there is no value."""

    survey: Survey
    columns: tuple[Floats, ...]

    @classmethod
    def of(cls, survey: Survey, table: NamedColumns) -> SiteColumns:
        """Return those of a table; raises what `NamedColumns.of` does."""
        return cls(survey, tuple(table.of(v, missing=True) for v in survey.variables))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.columns[0])

    @cached_property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Which rows lack none of the numbers."""
        found = np.ones(self.rows, bool)
        for i in self.survey.numbers:
            found &= ~np.isnan(self.columns[i])
        return found

    @cached_property
    def counts(self) -> list[int]:
        """The counts of the cells."""
        survey, found = self.survey, list[int]()
        coded = {}
        for i, (v, column) in enumerate(zip(survey.variables, self.columns, strict=True)):
            missing = np.isnan(column)
            if v.levels:
                coded[i] = np.where(missing, len(v.levels), column).astype(np.int64)
                found += np.bincount(coded[i], minlength=len(v.levels) + 1).tolist()
            else:
                found += [int((~missing).sum()), int(missing.sum())]
        for cross in survey.crosses:
            pairs = coded[cross.a] * cross.shape[1] + coded[cross.b]
            found += np.bincount(pairs, minlength=cross.shape[0] * cross.shape[1]).tolist()
        if survey.correlation:
            found += [int(self.complete.sum()), int((~self.complete).sum())]
        return found

    def sums(self) -> list[int]:
        """Return what goes up with the tables, as if no cell were closed.

        Raises:
            FieldError: A term does not fit.
        """
        survey = self.survey
        found = [self.rows, *self.counts]
        for i in survey.numbers:
            t = scaled(survey.variables[i], self.columns[i][~np.isnan(self.columns[i])])
            found += row_sums(np.stack([t * ROOM, t * t * ROOM], axis=1), survey.variables[i].name)
        if survey.correlation:
            found += self._products()
        return found

    def _products(self) -> list[int]:
        numbers = [(self.survey.variables[i], self.columns[i][self.complete]) for i in self.survey.numbers]
        p, n = len(numbers), int(self.complete.sum())
        totals = [0] * (p + p * (p + 1) // 2)
        for start in range(0, n, _BLOCK):
            block = [scaled(v, x[start : start + _BLOCK]) for v, x in numbers]
            terms = [t * ROOM for t in block]
            terms += [block[i] * block[j] * ROOM for i in range(p) for j in range(i, p)]
            found = row_sums(np.stack(terms, axis=1), "correlation")
            totals = [a + b for a, b in zip(totals, found, strict=True)]
        return totals

    @cached_property
    def _sorted(self) -> Mapping[int, Floats]:
        return {i: np.sort(self.columns[i][~np.isnan(self.columns[i])]) for i in self.survey.numbers}

    def below(self, variable: int, cut: float) -> int:
        """Return how many values are at most a cut."""
        return int(np.searchsorted(self._sorted[variable], cut, "right"))

    def halves(self, part: Part) -> tuple[int, int]:
        """Return how many values are in the lower and the upper half of a part."""
        v = self.survey.variables[part.variable]
        low, middle, high = part.edges(v)
        first = self.below(part.variable, low) if part.place else 0
        between = self.below(part.variable, middle)
        return between - first, self.below(part.variable, high) - between


@dataclass(frozen=True, order=True)
class Part:
    """A part of a number's range; `variable` is the number's place among the variables."""

    variable: int
    depth: int
    place: int

    def edges(self, v: Variable) -> tuple[float, float, float]:
        """Return where it begins, where it is halved and where it ends."""
        width = 1 << (DEPTH - self.depth)
        at = self.place * width
        return cut_of(v, at), cut_of(v, at + width // 2), cut_of(v, at + width)

    def halves(self) -> tuple[Part, Part]:
        """Return the lower and the upper half."""
        lower = 2 * self.place
        return Part(self.variable, self.depth + 1, lower), Part(self.variable, self.depth + 1, lower + 1)

    def above(self) -> Iterator[Part]:
        """Yield the part itself and those that it is a half of, up to the whole range."""
        for depth in range(self.depth, -1, -1):
            yield Part(self.variable, depth, self.place >> (self.depth - depth))


def parts_in(survey: Survey, asked: Floats) -> list[Part]:
    """Return the parts of what came with a question.

    Raises:
        ValueError: One is no part of a number's range.
    """
    found = []
    for row in asked.tolist():
        variable, depth, place = (int(a) for a in row)
        if [variable, depth, place] != row or variable not in survey.numbers:
            raise ValueError(row)
        if not (0 <= depth < DEPTH and 0 <= place < 1 << depth):
            raise ValueError(row)
        found.append(Part(variable, depth, place))
    return found


def step_of(v: Variable) -> float:
    """Return the step of a number's range: the power of two that divides it into at most 2^22."""
    mantissa, exponent = math.frexp(v.high - v.low)
    return math.ldexp(1.0, exponent - (mantissa == 0.5) - DEPTH)


def cut_of(v: Variable, at: int) -> float:
    """Return a point of the grid."""
    return v.low + at * step_of(v)


def centre_of(v: Variable) -> tuple[float, float]:
    """Return the centre of a number's range, and half of its width."""
    return v.low / 2 + v.high / 2, v.high / 2 - v.low / 2


def scaled(v: Variable, x: Floats) -> Floats:
    """Return (x - c) / h, at most 1 in size; h is rounded up to a power of two, so that dividing is exact."""
    centre, half = centre_of(v)
    mantissa, exponent = math.frexp(half)
    return np.ldexp(x - centre, -(exponent - (mantissa == 0.5)))


def unit_of(v: Variable) -> Fraction:
    """Return what `scaled` divides by."""
    mantissa, exponent = math.frexp(centre_of(v)[1])
    return Fraction(2) ** (exponent - (mantissa == 0.5))


def survey_of(config: Config) -> Survey:
    """Return the statistics that a run asks for.

    Raises:
        ConfigError: Columns, quantiles or tables are not declared as they should be.
    """
    keys = config.statistics
    variables = variables_of("statistics.columns", keys.columns)
    names = [v.name for v in variables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f'run-config key "statistics.columns": expected each column once; got {twice[0]!r} twice'
        )
    if keys.bins & (keys.bins - 1) or keys.bins == 1:
        raise ConfigError(f'run-config key "statistics.bins": expected 0, 2, 4, 8 or so on; got {keys.bins}')
    if keys.by_site and config.server.secagg:
        raise ConfigError(
            'run-config key "statistics.by-site": expected false with secagg = true, under which the server '
            "sees sums over sites only; got true"
        )
    numbers = [v for v in variables if not v.levels]
    if keys.correlation and len(numbers) < 2:
        raise ConfigError(
            'run-config key "statistics.correlation": expected false, or two columns of numbers and more in '
            f'"statistics.columns"; got {len(numbers)}'
        )
    survey = Survey(
        variables,
        tuple(_pair(text, variables) for text in keys.cross.split(",") if text.strip()),
        _quantiles(keys.quantiles),
        keys.bins,
        keys.correlation,
        keys.by_site,
    )
    if survey.cells > MOST_CELLS:
        raise ConfigError(
            f'run-config key "statistics.columns": expected tables of at most {MOST_CELLS:,} cells together; '
            f"got {survey.cells:,}. Leave out columns or cross-tables"
        )
    return survey


def _pair(text: str, variables: Sequence[Variable]) -> tuple[int, int]:
    names = [v.name for v in variables if v.levels]
    found = [part.strip() for part in text.split("*")]
    if len(found) != 2 or found[0] == found[1] or not set(found) <= set(names):
        raise ConfigError(
            'run-config key "statistics.cross": expected pairs of categories of "statistics.columns" '
            f'({", ".join(names) or "there are none"}), as in "sex*job"; got {text.strip()!r}'
        )
    of = [v.name for v in variables]
    return of.index(found[0]), of.index(found[1])


def _quantiles(text: str) -> tuple[Fraction, ...]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            q = Fraction(part)
        except (ValueError, ZeroDivisionError):
            q = Fraction(-1)
        if not 0 <= q <= 1:
            raise ConfigError(
                f'run-config key "statistics.quantiles": expected numbers from 0 to 1; got {part!r}'
            )
        found.append(q)
    return tuple(sorted(set(found)))

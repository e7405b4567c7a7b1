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
range into at most 2^22. A *part* of the range is cut in two in its middle; where that would show too few
persons, after its first quarter, or before its last; else it stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats, NamedColumns, Variable, check_once, variables_of
from task.config.knobs import Config
from task.errors import ConfigError, DataError
from task.numerics.row_sums import row_sums

ROOM = 2.0**30
DEPTH = 22  # halvings of a range down to one step
QUARTERS = (2, 1, 3)  # of a part, at which it may be cut, in the order in which that is tried
LONGEST = 36  # cuts of a part
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
    site_quantiles: bool = False
    pooled_least: int = 0  # M of `task.classical.pooled`; 0 = each site closes cells for all

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
    def of(cls, survey: Survey, table: NamedColumns, *, clipped: bool = False) -> SiteColumns:
        """Return those of a table; arguments and errors are as of `NamedColumns.of`."""
        return cls(survey, tuple(table.of(v, missing=True, clipped=clipped) for v in survey.variables))

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

    def split(self, cut: Cut) -> tuple[int, int]:
        """Return how many values of a part are at most at a cut of it, and how many above."""
        v = self.survey.variables[cut.part.variable]
        low, high = cut.part.ends
        first = self.below(cut.part.variable, cut_of(v, low)) if low else 0
        between = self.below(cut.part.variable, cut_of(v, cut.at))
        return between - first, self.below(cut.part.variable, cut_of(v, high)) - between


@dataclass(frozen=True)
class RangePart:
    """A part of a number's range: the cuts by which it came about, each times two, and one if it is above."""

    variable: int  # place of the number among the variables
    path: tuple[int, ...] = ()

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The points of the grid at which it begins and ends."""
        low, high = 0, 1 << DEPTH
        for step in self.path:
            at = _at(low, high, step // 2)
            low, high = (at, high) if step % 2 else (low, at)
        return low, high

    @property
    def width(self) -> int:
        """How many steps wide it is."""
        return self.ends[1] - self.ends[0]

    def above(self) -> Iterator[Cut]:
        """Yield the cuts by which it came about."""
        for i, step in enumerate(self.path):
            yield Cut(RangePart(self.variable, self.path[:i]), step // 2)


@dataclass(frozen=True)
class Cut:
    """A cut of a part in two: 0 = in the middle, 1 = after a quarter, 2 = before the last quarter."""

    part: RangePart
    where: int = 0

    @property
    def at(self) -> int:
        """The point of the grid up to which the lower piece goes."""
        return _at(*self.part.ends, self.where)

    @property
    def possible(self) -> bool:
        """Whether both pieces are a step wide at least, and their path is not too long."""
        low, high = self.part.ends
        return low < self.at < high and len(self.part.path) < LONGEST

    @property
    def pieces(self) -> tuple[RangePart, RangePart]:
        """The lower and the upper piece."""
        lower, path = 2 * self.where, self.part.path
        return RangePart(self.part.variable, (*path, lower)), RangePart(
            self.part.variable, (*path, lower + 1)
        )


def _at(low: int, high: int, where: int) -> int:
    return low + (high - low) * QUARTERS[where] // 4


def rows_of_cuts(cuts: Sequence[Cut]) -> Floats:
    """Return cuts as they go down with a question, float64 [cuts, 4]."""
    rows = [(c.part.variable, *path_to_numbers(c.part.path), c.where) for c in cuts]
    return np.array(rows, np.float64).reshape(-1, 4)


def cuts_in(survey: Survey, rows: Floats) -> list[Cut]:
    """Return the cuts of what `rows_of_cuts` made.

    Raises:
        ValueError: One is no cut of a number's range.
    """
    found = []
    for row in rows.tolist():
        variable, first, second, where = (int(a) for a in row)
        if (
            [variable, first, second, where] != row
            or variable not in survey.numbers
            or min(first, second) < 0
        ):
            raise ValueError(row)
        path = path_of_numbers(first, second)
        if where not in range(len(QUARTERS)) or len(path) > LONGEST or min(path, default=0) < 0:
            raise ValueError(row)
        if path_to_numbers(path) != (first, second):
            raise ValueError(row)
        cut = Cut(RangePart(variable, path), where)
        if not cut.possible or not all(c.possible for c in cut.part.above()):
            raise ValueError(row)
        found.append(cut)
    return found


def path_to_numbers(path: Sequence[int]) -> tuple[int, int]:
    """Return two numbers below 2^53 that say what a path is."""
    halves = path[: LONGEST // 2], path[LONGEST // 2 :]
    first, second = (sum((step + 1) * 7**i for i, step in enumerate(half)) for half in halves)
    return first, second


def path_of_numbers(first: int, second: int) -> tuple[int, ...]:
    """Return the path of what `path_to_numbers` made."""
    found = []
    for number in (first, second):
        while number:
            number, digit = divmod(number, 7)
            found.append(digit - 1)
    return tuple(found)


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
    check_once('run-config key "statistics.columns"', variables)
    if keys.bins & (keys.bins - 1) or keys.bins == 1:
        raise ConfigError(f'run-config key "statistics.bins": expected 0, 2, 4, 8 or so on; got {keys.bins}')
    if keys.by_site and config.server.secagg:
        raise ConfigError(
            'run-config key "statistics.by-site": expected false with secagg = true, under which the server '
            "sees sums over sites only; got true"
        )
    if keys.pooled_least and (not config.server.secagg or config.dp.local):
        raise ConfigError(
            'run-config key "statistics.pooled-least": expected 0 without secagg = true, where the server '
            f"sees single sites' counts, and with noise, where no cell is closed; got {keys.pooled_least}"
        )
    if keys.by_site and keys.site_quantiles and config.dp.local:
        raise ConfigError(
            'run-config key "statistics.site-quantiles": expected false with noise (dp.unit = "example"), as '
            "each site would answer two questions a round, and a row would cost more; got true"
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
        keys.by_site and keys.site_quantiles,
        keys.pooled_least,
    )
    if survey.cells > MOST_CELLS:
        raise ConfigError(
            f'run-config key "statistics.columns": expected tables of at most {MOST_CELLS:,} cells together; '
            f"got {survey.cells:,}. Leave out columns or cross-tables"
        )
    return survey


def check_counts(survey: Survey, shut: Sequence[int], sums: Sequence[int], sites: int, whose: str) -> None:
    """Refuse counts that no rows have: each must be from 0 to the rows, and cells must add up.

    Raises:
        DataError: Naming `whose` they are.
    """
    rows, counts = sums[0], sums[1 : 1 + survey.counts]
    sound = all(0 <= flag <= sites for flag in shut) and all(0 <= count <= rows for count in counts)
    for cells, total in survey.equations:
        if sound and not any(shut[i] for i in (*cells, *([total] if total >= 0 else []))):
            sound = sum(counts[i] for i in cells) == (counts[total] if total >= 0 else rows)
    if not sound:
        raise DataError(
            f"{whose}: expected counts of 0 to all rows, of which those of a table add up; got others. Is "
            "the node's app the installed one?"
        )


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


ANALYSES = {"description": survey_of}

"""The columns of a regression as the run declares them: names, ranges or levels, in this order.

``age(0..120), sex(Female|Male), dose(-1..1)``: a number with its range, or a category with all its levels,
whose first one by its UTF-8 bytes is the baseline; the others are columns of 0 and 1, ``sex=Male``. The
intercept, ``const``, is the first column of every design.

A range is declared, never found in the data, whose largest value is somebody's. It gives the column's scale,
a power of two, so that a scaled value is exact and at most 1; a value beyond its range is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.errors import ConfigError, DataError, local

Floats = npt.NDArray[np.float64]
CONST = "const"
MOST_COLUMNS = 128  # of a design: the server inverts its matrix exactly
_PART = re.compile(r"\s*([^(),]*?)\s*\(([^()]*)\)\s*(?:,|$)")
_FORM = 'names with ranges or levels, as in "age(0..120), sex(Female|Male)"'


@dataclass(frozen=True)
class Variable:
    """One column of the clients' tables."""

    name: str
    low: float = 0.0
    high: float = 1.0
    levels: tuple[str, ...] = ()  # of a category, sorted; () = it is a number

    @property
    def scale(self) -> float:
        """A power of two by which values become at most 1 in size."""
        return 1.0 if self.levels else scale_of(max(abs(self.low), abs(self.high)))


@dataclass(frozen=True)
class NamedColumns:
    """Columns of one client's rows, by name: numbers, or places among levels; -1 = a value of none."""

    numbers: Mapping[str, Floats]
    places: Mapping[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]]  # with the levels that the file lists

    def of(self, variable: Variable) -> Floats:
        """Return a variable's numbers, or its places among the declared levels, float64 [rows].

        Raises:
            ConfigError: The table has no such column, or one of another kind.
            DataError: Values are beyond the declared range, or of no declared level. How many is not said: a
                count of few persons must not leave the site.
        """
        name = variable.name
        if variable.levels:
            return self._levels(variable)
        if name in self.places and name not in self.numbers:
            raise ConfigError(
                f'run-config key "regression.columns": expected the levels of {name!r}, a category on this '
                f"node, as in {name}(a|b); got a range"
            )
        if name not in self.numbers:
            raise _missing(name)
        values = self.numbers[name]
        if not ((values >= variable.low) & (values <= variable.high)).all():
            raise DataError(
                f"column {local(name)}: expected numbers from {variable.low:g} to {variable.high:g}, the "
                f"range that the run declares; got others. Correct the data, or declare a wider range"
            )
        return values

    def _levels(self, variable: Variable) -> Floats:
        if variable.name not in self.places:
            if variable.name not in self.numbers:
                raise _missing(variable.name)
            raise ConfigError(
                f'run-config key "regression.columns": expected a range of {variable.name!r}, a number on '
                f"this node, as in {variable.name}(0..1); got levels. Type the column in the header of the "
                f"csv file for a category: {variable.name}:category({'|'.join(variable.levels)})"
            )
        places, levels = self.places[variable.name]
        to = np.array([variable.levels.index(v) if v in variable.levels else -1 for v in levels])
        found = to[places]
        if (found < 0).any():
            raise DataError(
                f"column {local(variable.name)}: expected the levels that the run declares, "
                f"{', '.join(variable.levels)}; got others. Correct the data, or declare all levels"
            )
        return found.astype(np.float64)


@dataclass(frozen=True)
class Design:
    """The columns of X, the target and, of a binomial share, the column of trials."""

    variables: tuple[Variable, ...]
    target: Variable
    trials: Variable | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        found = [CONST]
        for v in self.variables:
            found += [f"{v.name}={level}" for level in v.levels[1:]] if v.levels else [v.name]
        return tuple(found)

    @cached_property
    def scales(self) -> tuple[float, ...]:
        """The scales of the columns of X."""
        found = [1.0]
        for v in self.variables:
            found += [1.0] * (len(v.levels) - 1) if v.levels else [v.scale]
        return tuple(found)

    def columns(self, table: NamedColumns, rows: int) -> list[Floats]:
        """Return the columns of X as they are, unscaled; raises what `NamedColumns.of` does."""
        found = [np.ones(rows)]
        for v in self.variables:
            values = table.of(v)
            if v.levels:
                found += [(values == place).astype(np.float64) for place in range(1, len(v.levels))]
            else:
                found.append(values)
        return found


def scale_of(largest: float) -> float:
    """Return 2^-k with the least k for which `largest` times it is at most 1; 1 for 0."""
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(largest)
    return 2.0 ** -(exponent - (mantissa == 0.5))


def design_of(columns: str, target: str, trials: str = "") -> Design:
    """Read the declarations.

    Raises:
        ConfigError: One is not of the form, has no range, or names a column twice.
    """
    variables = _variables("regression.columns", columns)
    (found,) = _one("regression.target", target)
    of_trials = _one("regression.trials", trials)[0] if trials else None
    all_ = [*variables, found, *([of_trials] if of_trials else [])]
    names = [v.name for v in all_]
    if twice := sorted({name for name in names if names.count(name) > 1 or name == CONST}):
        raise ConfigError(
            f'run-config key "regression.columns": expected each column once, and none called "{CONST}", '
            f"the intercept; got {', '.join(twice)}"
        )
    if of_trials and (of_trials.levels or of_trials.low < 0 or found.levels):
        raise ConfigError(
            'run-config key "regression.trials": expected counts of successes and of trials, both with '
            f"ranges from 0; got {target!r} and {trials!r}"
        )
    if len(found.levels) > 2:
        raise ConfigError(
            f'run-config key "regression.target": expected a number, or two levels; got {target!r}'
        )
    made = Design(variables, found, of_trials)
    if len(made.names) > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "regression.columns": expected at most {MOST_COLUMNS} columns with the intercept'
            f" and the levels; got {len(made.names)}"
        )
    return made


def _one(key: str, text: str) -> tuple[Variable, ...]:
    found = _variables(key, text)
    if len(found) != 1:
        raise ConfigError(
            f'run-config key "{key}": expected one column with its range, "name(low..high)"; got {text!r}'
        )
    return found


def _variables(key: str, text: str) -> tuple[Variable, ...]:
    found, at = [], 0
    while at < len(text.rstrip()):
        part = _PART.match(text, at)
        if part is None or not part[1]:
            raise ConfigError(f'run-config key "{key}": expected {_FORM}; got {text[at:].strip()!r}')
        found.append(_variable(key, part[1], part[2]))
        at = part.end()
    if not found:
        raise ConfigError(f'run-config key "{key}": expected {_FORM}; got {text!r}')
    return tuple(found)


def _variable(key: str, name: str, inside: str) -> Variable:
    if ".." in inside:
        low, _, high = inside.partition("..")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = (math.nan, math.nan)
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
            raise ConfigError(
                f'run-config key "{key}": expected a range of numbers, "{name}(low..high)"; got {inside!r}'
            )
        return Variable(name, *ends)
    levels = tuple(level.strip() for level in inside.split("|"))
    if len(levels) < 2 or "" in levels or len(set(levels)) < len(levels):
        raise ConfigError(
            f'run-config key "{key}": expected a range, "{name}(0..1)", or two levels and more, each once, '
            f'"{name}(a|b)"; got {inside!r}'
        )
    return Variable(name, levels=tuple(sorted(levels, key=str.encode)))


def _missing(name: str) -> ConfigError:
    return ConfigError(
        f'run-config key "regression.columns": expected columns that every node\'s table has; got {name!r}, '
        "which this node's has not. Compare the names with the header of the csv file"
    )

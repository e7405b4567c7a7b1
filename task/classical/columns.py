"""Columns of clients' tables as a run declares them, by name, with a range or all levels.

``age(0..120), sex(Female|Male), dose(-1..1)``: a number with its range, or a category with all its levels,
sorted by their UTF-8 bytes.

A range is declared, never found in the data, whose largest value is somebody's. It gives the column's scale,
a power of two, so that a scaled value is exact and at most 1; a value beyond its range is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.errors import ConfigError, DataError, local

Floats = npt.NDArray[np.float64]
_PART = re.compile(r"\s*([^(),]*?)\s*\(([^()]*)\)\s*(?:,|$)")
_FORM = 'names with ranges or levels, as in "age(0..120), sex(Female|Male)"'


@dataclass(frozen=True)
class Variable:
    """One column of the clients' tables."""

    name: str
    key: str  # run-config key that declares it
    low: float = 0.0
    high: float = 1.0
    levels: tuple[str, ...] = ()  # of a category, sorted; () = it is a number

    @property
    def scale(self) -> float:
        """A power of two by which values become at most 1 in size."""
        return 1.0 if self.levels else scale_of(max(abs(self.low), abs(self.high)))


@dataclass(frozen=True)
class NamedColumns:
    """Columns of one client's rows, by name: numbers, or places among levels; NaN and -1 = no value."""

    numbers: Mapping[str, Floats]
    places: Mapping[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]]  # with the levels that the file lists

    @property
    def rows(self) -> int:
        """How many rows there are."""
        columns = [*self.numbers.values(), *(place for place, _ in self.places.values())]
        return len(columns[0]) if columns else 0

    def there(self, name: str) -> npt.NDArray[np.bool_]:
        """Return which rows have a value of a column, bool [rows]."""
        if name in self.places:
            found: npt.NDArray[np.bool_] = self.places[name][0] >= 0
            return found
        return ~np.isnan(self.numbers[name])

    def of(self, variable: Variable, *, missing: bool = False, clipped: bool = False) -> Floats:
        """Return a variable's numbers, or its places among the declared levels, float64 [rows].

        NaN is a value that is not there, which only goes with `missing`. `clipped`, nothing is said of values
        that are not as declared: numbers are moved into their range, and other levels count as no value.

        Raises:
            ConfigError: The table has no such column, or one of another kind.
            DataError: Values are beyond the declared range, of no declared level, or not there. How many is
                not said: a count of few persons must not leave the site.
        """
        find = self._levels if variable.levels else self._numbers
        found = find(variable, clipped=clipped)
        if not missing and np.isnan(found).any():
            raise DataError(
                f"column {local(variable.name)}: expected a value in each row; got rows without one"
            )
        return found

    def _numbers(self, variable: Variable, *, clipped: bool) -> Floats:
        name = variable.name
        if name in self.places and name not in self.numbers:
            raise ConfigError(
                f'run-config key "{variable.key}": expected the levels of {name!r}, a category on this '
                f"node, as in {name}(a|b); got a range"
            )
        if name not in self.numbers:
            raise _missing(variable)
        values = self.numbers[name]
        if clipped:
            return np.clip(values, variable.low, variable.high)
        if not (((values >= variable.low) & (values <= variable.high)) | np.isnan(values)).all():
            raise DataError(
                f"column {local(name)}: expected numbers from {variable.low:g} to {variable.high:g}, the "
                f"range that the run declares; got others. Correct the data, or declare a wider range"
            )
        return values

    def _levels(self, variable: Variable, *, clipped: bool) -> Floats:
        if variable.name not in self.places:
            if variable.name not in self.numbers:
                raise _missing(variable)
            raise ConfigError(
                f'run-config key "{variable.key}": expected a range of {variable.name!r}, a number on '
                f"this node, as in {variable.name}(0..1); got levels. Type the column, in the run-config "
                f'key column-types="{variable.name}:category({"|".join(variable.levels)})" or in the header '
                "of the csv file"
            )
        places, levels = self.places[variable.name]
        to = np.array([variable.levels.index(v) if v in variable.levels else -1 for v in levels])
        found = np.where(places < 0, np.nan, to[places])
        if clipped:
            return np.where(found < 0, np.nan, found)
        if (found < 0).any():
            raise DataError(
                f"column {local(variable.name)}: expected the levels that the run declares, "
                f"{', '.join(variable.levels)}; got others. Correct the data, or declare all levels"
            )
        return found


def scale_of(largest: float) -> float:
    """Return 2^-k with the least k for which `largest` times it is at most 1; 1 for 0."""
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(largest)
    return 2.0 ** -(exponent - (mantissa == 0.5))


def variable_of(key: str, text: str) -> Variable:
    """Read the declaration of one column.

    Raises:
        ConfigError: It is not of the form, or there are several.
    """
    found = variables_of(key, text)
    if len(found) != 1:
        raise ConfigError(
            f'run-config key "{key}": expected one column with its range, "name(low..high)"; got {text!r}'
        )
    return found[0]


def variables_of(key: str, text: str) -> tuple[Variable, ...]:
    """Read the declarations of a run-config key.

    Raises:
        ConfigError: One is not of the form, or has neither range nor levels.
    """
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


def check_once(
    declared: str, variables: Iterable[Variable], also: str = "", reserved: Sequence[str] = ()
) -> None:
    """Refuse columns that several keys, or one, declare twice.

    Raises:
        ConfigError: A name is there twice or is `reserved`; `declared` says which run-config keys the names
            are from, `also` what else was expected.
    """
    names = [v.name for v in variables]
    if wrong := sorted({name for name in names if names.count(name) > 1 or name in reserved}):
        raise ConfigError(f"{declared}: expected each column once{also}; got {', '.join(wrong)}")


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
        return Variable(name, key, *ends)
    levels = tuple(level.strip() for level in inside.split("|"))
    if len(levels) < 2 or "" in levels or len(set(levels)) < len(levels):
        raise ConfigError(
            f'run-config key "{key}": expected a range, "{name}(0..1)", or two levels and more, each once, '
            f'"{name}(a|b)"; got {inside!r}'
        )
    return Variable(name, key, levels=tuple(sorted(levels, key=str.encode)))


def _missing(variable: Variable) -> ConfigError:
    return ConfigError(
        f'run-config key "{variable.key}": expected columns that every node\'s table has; got '
        f"{variable.name!r}, which this node's has not. Compare the names with the header of the csv file"
    )

"""The groups of people that a run compares, and which of them a row is of: run-config key ``groups``.

===========================  ======================================================================
``sex(Female|Male)``         a group for each of these values of a column
``sex``                      the same with the values that the data have; of pooled data only
``age>65``                   those above and those not above; also ``>=``, ``<`` and ``<=``
``sex(Female|Male)*age>65``  a group for each pair
===========================  ======================================================================

A comparison divides all rows among its groups, except those without a value. Columns are those of a table, be
they inputs or typed ``name:group`` in the header of a csv file, which no model reads.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from task.datasets.header import MISSING, read_column
from task.errors import ConfigError, DataError, local
from task.inputs import read_form

if TYPE_CHECKING:
    from task.datasets.base import Decoded

KEY = "groups"
MOST_CELLS = 64  # groups of one run: each client sends some 1.4 kB for each
MOST_LEVELS = 16  # values of a column that is named without them
_COMPARED: dict[str, Callable[[Any, float], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_OTHERWISE = {">=": "<", "<=": ">", ">": "<=", "<": ">="}
_PART = re.compile(
    r"(?P<name>[^()<>=*]*[^()<>=*\s])\s*(?:\((?P<levels>[^()]*)\)|(?P<sign>[<>]=?)(?P<cut>.*))?"
)
_FORM = 'columns with values or a threshold, as in "sex(Female|Male), age>65, sex(Female|Male)*age>65"'

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """How one column divides the rows."""

    column: str
    levels: tuple[str, ...] = ()  # names of the groups; () = not known yet
    sign: str = ""  # of a threshold
    cut: float = 0.0

    def __str__(self) -> str:
        if self.sign:
            return f"{self.column}{self.sign}{self.cut:g}"
        return f"{self.column}({'|'.join(self.levels)})" if self.levels else self.column

    @property
    def title(self) -> str:
        """What people read: the column, with its threshold."""
        return str(self) if self.sign else self.column


@dataclass(frozen=True)
class Comparison:
    """Groups that are compared with each other."""

    divisions: tuple[Division, ...]

    def __str__(self) -> str:
        return "*".join(map(str, self.divisions))

    @property
    def title(self) -> str:
        """What people read."""
        return "*".join(division.title for division in self.divisions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its groups."""
        return tuple(", ".join(pair) for pair in product(*(d.levels for d in self.divisions)))


def comparisons_of(key: str) -> tuple[Comparison, ...]:
    """Read the run-config key.

    Raises:
        ConfigError: A part is not of the form, a comparison is there twice, or there are too many groups.
    """
    found = [
        Comparison(tuple(map(_division, _split(part, "*")))) for part in _split(key, ",") if part.strip()
    ]
    titles = [comparison.title for comparison in found]
    twice = next((title for title in titles if titles.count(title) > 1), "")
    repeated = next((c.title for c in found if len({d.column for d in c.divisions}) < len(c.divisions)), "")
    if not found or twice or repeated:
        raise ConfigError(f'run-config key "{KEY}": expected {_FORM}, each once; got {key!r}')
    cells = sum(len(comparison.names) for comparison in found)
    if cells > MOST_CELLS:
        raise ConfigError(f'run-config key "{KEY}": expected at most {MOST_CELLS} groups; got {cells}')
    return tuple(found)


def _split(text: str, mark: str) -> list[str]:
    """Return the parts between marks that are not in parentheses."""
    return re.split(rf"{re.escape(mark)}(?![^(]*\))", text)


def _division(text: str) -> Division:
    found = _PART.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f'run-config key "{KEY}": expected {_FORM}; got {text.strip()!r}')
    name = found["name"].strip()
    if found["sign"]:
        try:
            cut = float(found["cut"])
        except ValueError:
            cut = float("nan")
        if not np.isfinite(cut):
            raise ConfigError(
                f'run-config key "{KEY}": expected a number after "{name}{found["sign"]}"; got '
                f"{found['cut'].strip()!r}"
            )
        sign = found["sign"]
        both = (f"{name} {_OTHERWISE[sign]} {cut:g}", f"{name} {sign} {cut:g}")
        return Division(name, both, sign, cut)
    if found["levels"] is None:
        return Division(name)
    levels = tuple(level.strip() for level in found["levels"].split("|"))
    if len(levels) < 2 or "" in levels or len(set(levels)) < len(levels):
        raise ConfigError(
            f'run-config key "{KEY}": expected two values and more, each once, as in "{name}(a|b)"; got '
            f"{found['levels']!r}"
        )
    return Division(name, tuple(sorted(levels, key=str.encode)))


def named(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons, whose groups are all known.

    Raises:
        ConfigError: The values of a column are not named, and only nodes have data.
    """
    for division in (d for c in comparisons for d in c.divisions if not d.levels):
        raise ConfigError(
            f'run-config key "{KEY}": expected the values of {division.column!r}, as in '
            f'"{division.column}(a|b)", because nodes bring data of their own and must agree on them; got '
            "none"
        )
    return tuple(comparisons)


def with_levels(key: str, data: Decoded) -> str:
    """Return the run-config key with the values of columns that it names without them.

    Raises:
        ConfigError: The data have no such column, or too many values in it.
    """

    def of(division: Division) -> Division:
        column = column_of(data, division.column, slice(None))
        if division.levels:
            return division
        listed = _listed(data, division.column) or sorted({text for text in _texts(column) if text})
        if not 2 <= len(listed) <= MOST_LEVELS:
            raise ConfigError(
                f'run-config key "{KEY}": expected a column of 2 to {MOST_LEVELS} values, or a threshold, as '
                f'in "{division.column}>0"; got {division.column!r} with {len(listed)}'
            )
        return replace(division, levels=tuple(sorted(listed, key=str.encode)))

    found = [Comparison(tuple(map(of, c.divisions))) for c in comparisons_of(key)]
    return ", ".join(map(str, found))


def places_of(comparison: Comparison, data: Decoded, rows: npt.NDArray[np.int64] | slice) -> Places:
    """Return the group of each row, a place in `Comparison.names`; -1 = a value is missing.

    Raises:
        ConfigError: The data have no such column, or one of another kind.
        DataError: A value is none of those that the run names. How many are not is left out: a count of few
            persons must not leave the site.
    """
    place, missing = np.zeros(1, np.int64), np.zeros(1, bool)
    for division in comparison.divisions:
        column = column_of(data, division.column, rows)
        mine = _above(division, column) if division.sign else _level(division, column)
        missing = missing | (mine < 0)
        place = place * len(division.levels) + mine
    return np.where(missing, -1, place)


def _above(division: Division, column: npt.NDArray[Any]) -> Places:
    numbers = column if column.dtype.kind == "f" else np.array([_number(text) for text in column.tolist()])
    if column.dtype.kind != "f" and any(
        np.isnan(n) and not _is_missing(text) for n, text in zip(numbers, column.tolist(), strict=True)
    ):
        raise ConfigError(
            f'run-config key "{KEY}": expected values of {division.column!r}, as in '
            f'"{division.column}(a|b)", because its cells are no numbers; got "{division}"'
        )
    found: Places = np.where(np.isnan(numbers), -1, _COMPARED[division.sign](numbers, division.cut))
    return found.astype(np.int64)


def _level(division: Division, column: npt.NDArray[Any]) -> Places:
    places = {level: place for place, level in enumerate(division.levels)}
    found = np.array([places.get(text, -1 if not text else -2) for text in _texts(column)], np.int64)
    if (found == -2).any():
        raise DataError(
            f"column {local(division.column)}: expected the values that the run names, "
            f"{', '.join(division.levels)}; got others. Correct the data, or name all values in the "
            f'run-config key "{KEY}"'
        )
    return found


def _texts(column: npt.NDArray[Any]) -> list[str]:
    """Return the values as text, "" where one is missing."""
    if column.dtype.kind == "f":
        return ["" if np.isnan(v) else f"{v:.7g}" for v in column.tolist()]
    return ["" if _is_missing(text) else text for text in column.tolist()]


def _is_missing(text: str) -> bool:
    return text.lower() in MISSING


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _listed(data: Decoded, name: str) -> tuple[str, ...]:
    """Return the values of a category as the data list them; () of any other column."""
    return next((c.values for c in map(read_column, data.columns[:-1]) if c.name == name), ())


def column_of(data: Decoded, name: str, rows: npt.NDArray[np.int64] | slice) -> npt.NDArray[Any]:
    """Return a column: numbers, float64, NaN where one is missing, or texts.

    Raises:
        ConfigError: There is none of this name.
    """
    if data.aside is not None and name in data.aside_names:
        return np.asarray(data.aside[rows, data.aside_names.index(name)])
    at = 0
    for column in map(read_column, data.columns[:-1]):
        width = len(column.inputs)
        if column.name == name and column.type != "category":
            return np.asarray(data.x[rows, at], np.float64)
        if column.name == name:
            hot = np.asarray(data.x[rows, at : at + width])
            words = np.array([*column.values, ""])
            return words[np.where(np.isnan(hot[:, 0]), len(column.values), hot.argmax(1))]
        at += width
    for one in read_form(data.form):
        if one.name == name and one.size == 1:
            return np.asarray(data.x[rows, at], np.float64)
        at += one.size
    known = [*data.aside_names, *(read_column(c).name for c in data.columns[:-1])]
    known += [one.name for one in read_form(data.form) if one.name and one.size == 1]
    raise ConfigError(
        f'run-config key "{KEY}": expected columns of the data, '
        f"{local(', '.join(known)) or 'which have no names of columns here'}; got {name!r}. A column of a "
        f"csv file that no model reads is typed {name}:group in its header"
    )

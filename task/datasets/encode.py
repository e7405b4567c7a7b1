"""Encode the cells of a csv file: numbers, and one-hot inputs for categories."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.header import MISSING, TypedColumn
from task.errors import WITHHELD, DataError, local
from task.inputs import LARGEST_ID

Floats = npt.NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)


_MARKED = re.compile(r"[+-]?[\d.,'\s]*\d[\d.,'\s]*")  # digits with marks between them


def number(cell: str) -> float:
    """Return the number that a cell is, NaN if it is none. Underscores between digits are Python's alone."""
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan


def is_text(cell: str) -> bool:
    """Return whether a cell is neither a number nor one with other marks between its digits."""
    return math.isnan(number(cell)) and not _MARKED.fullmatch(cell.replace("_", ""))


def spelling(label: str) -> str:
    """Return what labels or values have in common that differ in capitals, spaces or the form of a number."""
    plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    value = number({"true": "1", "false": "0"}.get(plain, plain))
    return plain if math.isnan(value) else repr(value)


def alike(values: Iterable[str]) -> list[tuple[str, str]]:
    """Return those values that differ in spelling only from one before them, each after that one."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(spelling(value), value), value) for value in values]
    return [(one, other) for one, other in pairs if one != other]


TYPELESS = "Correct it; a column of text needs a type"
SHOWN = 5  # columns with the same remedy that an error names


class CellError(ValueError):
    """A cell does not fit its column; the text says what was expected and found, `todo` what to do."""

    def __init__(self, said: str, todo: str) -> None:
        super().__init__(said)
        self.todo = todo


class WrongCells:
    """Everything that is wrong in the cells of a table, for one error: a line for each remedy and column.

    It shows the first cell; how many there are stays on this machine.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, str]] = {}
        self._count: Counter[tuple[str, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, column: str, said: str, todo: str) -> None:
        """Note a cell; `said` has its place, what was expected and what was found."""
        self._first.setdefault(todo, {}).setdefault(column, said)
        self._count[todo, column] += 1

    def has(self, todo: str) -> bool:
        """Return whether a cell has this remedy."""
        return todo in self._first

    def pop(self, todo: str, columns: Collection[str]) -> str:
        """Forget these columns' cells with a remedy; return what was said of the first, or ""."""
        found = self._first.get(todo, {})
        gone = [found.pop(name) for name in list(found) if name in columns]
        if not found:
            self._first.pop(todo, None)
        return gone[0] if gone else ""

    def __str__(self) -> str:
        return "\n".join(f"{self._cells(todo)}. {todo}." for todo in self._first)

    def _cells(self, todo: str) -> str:
        columns = self._first[todo]
        said = []
        for column, first in list(columns.items())[:SHOWN]:
            more = self._count[todo, column] - 1
            said.append(first + (local(f" (and {more} more)") if more else ""))
        if len(columns) > SHOWN:
            said.append(f"and {len(columns) - SHOWN} more columns")
        return ";\n".join(said)


class Encoder:
    """Encodes the features of a table, row by row; the values of a category may be those that it meets.

    With `keep_missing` a cell without a value becomes NaN, in each of the columns of a category; with
    `doubles` numbers stay float64.
    """

    def __init__(self, features: Sequence[TypedColumn], *, keep_missing: bool, doubles: bool = False) -> None:
        self.features, self.keep_missing = tuple(features), keep_missing
        self._dtype = np.float64 if doubles else np.float32
        self._places = {
            c.name: {value: place for place, value in enumerate(c.values)}
            for c in features
            if c.type == "category"
        }

    def code(self, column: TypedColumn, cell: str) -> float:
        """Return a number, or the place of a category's value among those so far.

        Raises:
            CellError: The cell is neither, or empty.
        """
        places = self._places.get(column.name)
        if column.type == "token":
            value = number(cell)
            if 0 <= value <= LARGEST_ID and value.is_integer():
                return value
            said = f'the id of a token, a number 0, 1, ...; got "{local(cell)}"'
            raise CellError(said, "Correct the cell")
        if places is None:
            value = number(cell)
            if abs(value) <= LARGEST:
                return value
        elif cell in places:
            return places[cell]
        missing = cell.lower() in MISSING
        if missing and self.keep_missing:
            return math.nan
        expected = "a number"
        if places is not None:
            if not missing and not column.values and "|" not in cell:
                return places.setdefault(cell, len(places))
            listed = f"one of {local(', '.join(places), 'the values in its list')}"
            expected = listed if column.values else 'a value without "|"'
        todo = TYPELESS
        if places is not None:
            todo = "Correct it, or add the value to the list of the column's type, at all sites alike"
        if places is None and _MARKED.fullmatch(cell):
            todo = "Write numbers with a decimal point and without other marks, as in 1234.5"
        if missing:
            expected = "a value"
            todo = 'Fill it in, or set the run-config key missing="mean" (or "zero")'
        quoted = local(f'"{cell}"', "another" if column.values else WITHHELD)
        got = f"got {quoted}" if cell else "the cell is empty"
        raise CellError(f"{expected}; {got}", todo)

    def encoded(self, codes: Sequence[Sequence[float]]) -> Floats:
        """Return the codes of all rows, [N, features], as a model reads them, [N, d]."""
        raw = np.array(codes, dtype=np.float64)
        parts: list[npt.NDArray[Any]] = [np.zeros((len(codes), 0), self._dtype)]
        for j, column in enumerate(self.known()):
            places = self._places.get(column.name)
            if places is None:
                parts.append(raw[:, j : j + 1].astype(self._dtype))
            else:
                parts.append(_one_hot(raw[:, j], [places[value] for value in column.values]))
        return np.concatenate(parts, axis=1)

    def tokens(self, where: str, codes: Sequence[Sequence[float]]) -> npt.NDArray[np.int32] | None:
        """Return the ids of all rows, [N, T], in the order of the columns; None if these have no tokens.

        Raises:
            DataError: Only some columns are tokens.
        """
        others = [c.name for c in self.features if c.type != "token"]
        if len(others) == len(self.features):
            return None
        if others:
            raise DataError(
                f"{local(where)}, line 1: expected all features to be tokens, or none; got others, "
                f"{local(others[:5])}. Type them NAME:ignore, or save inputs by name in an npz file"
            )
        return np.array(codes, dtype=np.int32)

    def known(self) -> tuple[TypedColumn, ...]:
        """Return the features, each category with its values: those listed, else those met, sorted."""
        return tuple(
            TypedColumn(c.name, c.type, c.values or tuple(sorted(self._places.get(c.name, ()))))
            for c in self.features
        )


def _one_hot(codes: npt.NDArray[np.float64], places: Sequence[int]) -> Floats:
    """Return a column for each place, 1 where the code is that place, and NaN where it is NaN."""
    hot: Floats = (codes[:, None] == np.asarray(places, dtype=np.float64)).astype(np.float32)
    hot[np.isnan(codes)] = np.nan
    return hot

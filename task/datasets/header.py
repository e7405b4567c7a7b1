"""The header of a csv file: the names of its columns and, after a colon, their types.

A run or a node's owner may declare the types instead, in the same words (`task.datasets.column_types`).

==================================  =====================================================================
header                              cells
==================================  =====================================================================
``age``, ``age:number``             a number
``job:category(clerk|nurse)``       one of the values; a model reads a 1 in the value's column, 0 in others
``job:category``                    the same with the values that the file has; of pooled data only
``income:target``                   what is predicted; without it the column ``label``, else the last one;
                                    several are numbers or labels (`task.datasets.targets`)
``outcome:target(ill|well)``        the same with the names of the classes 0, 1, ...
``w1:token``                        the id of a token, a whole number that stays one; then of all features
``patient:ignore``                  anything; not read; ``:ignore`` is a column without a name
``sex:group``                       anything; no model reads it, but a run may compare people by it
``patient:id``                      who the row is of, each once: parties with different columns of the same
                                    people match their rows by it. Such a file may be without a target, or
                                    without a feature; the target is typed or called ``label``
``client``, ``ward:client``         the owner's name
``split``, ``fold:split``           "train" or "test"
==================================  =====================================================================

A list of values makes all nodes encode a column alike. A colon before any other word is a part of the name.
A column called ``client`` or ``split`` that has another type is one like others.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from task.errors import BouquetError, DataError, local

CLIENT, SPLIT = RESERVED = ("client", "split")  # types, and names of columns that have them
OF_PARTS = "training or test"  # what facts about the data say that a column of type split is for
TYPES = ("category", CLIENT, "group", "id", "ignore", "number", SPLIT, "target", "token")
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null"})  # cells without a value, in lower case
OTHER_MARKS = (";", "\t", "|")  # separators that some programs use instead of commas
LABELS = ("class", "label", "labels", "target", "targets")  # usual names of targets
_NAMELESS = re.compile(r"Unnamed: \d+")  # pandas' name for a column without a name
_HEADER = "Put the column names into the first line"
_TYPED = re.compile(r"(?P<name>.*\S|)\s*:\s*(?P<type>[A-Za-z]+)\s*(?P<list>\((?P<values>.*)\))?")


@dataclass(frozen=True)
class TypedColumn:
    """One column of a csv file."""

    name: str  # without the type
    type: str = ""  # one of `TYPES`; "" = the header does not say
    values: tuple[str, ...] = ()  # of a category, or the names of the classes; () = the header does not say

    def __str__(self) -> str:
        return self.spelled if self.type == "category" else self.name

    @property
    def spelled(self) -> str:
        """Its declaration, as a cell of a header."""
        listed = f"({'|'.join(self.values)})" if self.values else ""
        return f"{self.name}:{self.type}{listed}" if self.type else self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what a model reads of it."""
        listed = self.type == "category"
        return tuple(f"{self.name}={value}" for value in self.values) if listed else (self.name,)

    @property
    def role(self) -> str:
        """Its type, or the one that its name stands for; "" = a number, or what is predicted."""
        return self.type or (self.name if self.name in RESERVED else "")

    @property
    def feature(self) -> bool:
        """Whether a model reads it, unless it is the target."""
        return self.role in ("", "category", "number", "token")


class DeclaredTypes(NamedTuple):
    """Types of columns that are declared outside a header."""

    where: str  # the run-config key, or the node's option
    columns: tuple[TypedColumn, ...]
    private: bool = False  # whether the server must not learn them


def typed_columns(
    path: Path, cells: Sequence[str], declared: Sequence[DeclaredTypes] = ()
) -> tuple[TypedColumn, ...]:
    """Return the columns of a header that may lack a target; raises what `parse_header` does of types.

    Columns that the header does not type have the types that are `declared` elsewhere.
    """
    columns = tuple(column_in(_place(path, i), cell) for i, cell in enumerate(cells, 1))
    for one in declared:
        types = {column.name: column for column in one.columns}
        columns = tuple(_agreed(path, c, types[c.name], one) if c.name in types else c for c in columns)
    return columns


def parse_header(
    path: Path, cells: Sequence[str], declared: Sequence[DeclaredTypes] = ()
) -> tuple[TypedColumn, ...]:
    """Return the columns of a header.

    Raises:
        DataError: A type or a list of values is wrong, contradicts what is `declared` elsewhere, or a name is
            there twice.
    """
    columns = typed_columns(path, cells, declared)
    names = [column.name for column in columns]
    marks = OTHER_MARKS if len(names) == 1 else OTHER_MARKS[:2]
    other = next((m for m in marks if sum(name.count(m) for name in names) >= len(names)), "")
    if len(names) < 2 or len(set(names) - {""}) != len(names) - names.count("") or other:
        remedy = f"Save it with commas between the cells, not {other!r}" if other else _HEADER
        raise DataError(
            f"{local(path)}, line 1: expected a header with at least one feature and a label, each name "
            f"once; got {local(list(cells))}. {remedy}."
        )
    _check_names(path, columns)
    if all(map(is_number, names)) and names != [str(i) for i in range(len(names))]:
        raise DataError(
            f"{local(path)}, line 1: expected names of columns; got numbers, {local(list(cells))}. {_HEADER}."
        )
    _check_roles(path, columns)
    targets_of(path, columns)
    return columns


def is_number(text: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_names(path: Path, columns: Sequence[TypedColumn]) -> None:
    """Refuse columns without a name, and names that differ from reserved ones in capitals only."""
    for number, column in enumerate(columns, 1):
        if column.type == "ignore":
            continue
        if not column.name or _NAMELESS.fullmatch(column.name):
            cause = ""
            if number == 1:
                cause = "Is it the index that pandas writes? Save with to_csv(index=False), or n"
            elif number == len(columns):
                cause = "Does the line end with a comma? Remove it from all lines, or n"
            todo = f'{cause or "N"}ame the column rest:ignore, or set column-types="{column.name}:ignore".'
            raise _wrong(_place(path, number), "the name of a column", column.name, todo)
        if not column.type and column.name.lower() in RESERVED and column.name not in RESERVED:
            low = column.name.lower()
            expected, todo = f'"{low}" in small letters, or a type', f"Type it {column.name}:{low}."
            raise _wrong(_place(path, number), expected, column.name, todo)


def _check_roles(path: Path, columns: Sequence[TypedColumn]) -> None:
    """Refuse several columns of ids, owners or parts."""
    of = {role: [c.name for c in columns if c.role == role] for role in ("id", *RESERVED)}
    for role, names in of.items():
        if len(names) > 1:
            raise DataError(
                f"{local(path)}, line 1: expected one column of type {role}; got {local(names)}. Type the "
                "others NAME:ignore."
            )


def targets_of(path: Path, columns: Sequence[TypedColumn]) -> tuple[TypedColumn, ...]:
    """Return the columns that are predicted; several only if they are typed so.

    Raises:
        DataError: None can be taken for one, or no feature is left. A file with ids may lack one of both.
    """
    targets, ids = [c for c in columns if c.type == "target"], any(c.type == "id" for c in columns)
    if not targets:
        usable = [c for c in columns if c.feature]
        targets = [c for c in usable if c.name == "label"] or ([] if ids else usable[-1:])
        others = [c for c in usable if c.name.lower() in LABELS and c not in targets]
        if targets and targets[0].name.lower() not in LABELS and others:
            raise DataError(
                f"{local(path)}, line 1: expected one column to predict, named label or the last; got "
                f"{local(repr(others[0].name))}, and {local(repr(targets[0].name))} at the end. Type one of "
                "them, as in NAME:target"
            )
    if ids and (targets or usable):
        return tuple(targets)
    if not targets or targets[0].type not in ("", "target"):
        raise DataError(
            f"{local(path)}, line 1: expected a column to predict, named label or typed NAME:target; got "
            f"{local([c.name for c in targets])}"
        )
    if not [c for c in columns if c.feature and c not in targets]:
        names = local([c.name for c in columns])
        raise DataError(
            f"{local(path)}, line 1: expected at least one feature column besides {names}; got none"
        )
    return tuple(targets)


def check_alike(path: Path, first: Sequence[TypedColumn], columns: Sequence[TypedColumn]) -> None:
    """Refuse a file whose columns are not those of the first file; their order is free.

    Raises:
        DataError: Naming the file and the columns that differ.
    """
    want, got = (_roles(path, header) for header in (first, columns))
    differing = [name for name in want.keys() & got.keys() if want[name] != got[name]]
    parts = {
        "missing": want.keys() - got.keys(),
        "not in the first file": got.keys() - want.keys(),
        "of another type or with other values": differing,
    }
    if odd := "; ".join(f"{what}: {local(sorted(names))}" for what, names in parts.items() if names):
        raise DataError(
            f"{local(path)}, line 1: expected the columns of the files before it, in any order, which are "
            f"{local(sorted(want))}; got others: {odd}. Give all files the same columns."
        )


def _roles(path: Path, columns: Sequence[TypedColumn]) -> dict[str, tuple[str, frozenset[str]]]:
    """Return what each column that is read is for, with the values that it lists."""
    targets = [column.name for column in targets_of(path, columns)]
    return {
        c.name: ("target" if c.name in targets else c.role or "number", frozenset(c.values))
        for c in columns
        if c.type != "ignore"
    }


def read_column(text: str) -> TypedColumn:
    """Return the column whose `str` this is."""
    found = _TYPED.fullmatch(text)
    if found and found["type"] == "category" and found["values"]:
        return TypedColumn(found["name"], "category", tuple(found["values"].split("|")))
    return TypedColumn(text)


def column_in(place: str, cell: str, error: type[BouquetError] = DataError) -> TypedColumn:
    """Return the column that a cell of a header declares; `place` is where it is, for an `error`.

    Raises:
        BouquetError: Its type or its list of values is wrong.
    """
    cell = cell.strip()
    found = _TYPED.fullmatch(cell)
    word = found["type"].lower() if found else ""
    if found is None or word not in TYPES:
        near = difflib.get_close_matches(word, TYPES, n=1, cutoff=0.75) if word else []
        if near:
            raise _wrong(place, f"a type among {', '.join(TYPES)}", cell, f'Write ":{near[0]}".', error)
        return TypedColumn(cell)
    if not found["list"]:
        return TypedColumn(found["name"], word)
    values = tuple(value.strip() for value in found["values"].split("|"))
    listed = word in ("category", "target") and len(values) > 1 and "" not in values
    if not listed or len(set(values)) < len(values):
        expected = "two or more values, each once, after category or target, as in job:category(clerk|nurse)"
        raise _wrong(place, expected, cell, "Correct the list.", error)
    return TypedColumn(found["name"], word, values)


def _agreed(path: Path, mine: TypedColumn, theirs: TypedColumn, declared: DeclaredTypes) -> TypedColumn:
    """Return a column with its type, by the header and what is declared elsewhere; they must agree."""
    if not mine.type:
        return theirs
    listed = mine.values and theirs.values
    if mine.type != theirs.type or (listed and set(mine.values) != set(theirs.values)):
        got = local(theirs.spelled) if declared.private else theirs.spelled
        raise DataError(
            f"{declared.where}: expected the type that the column has by line 1 of {local(path)}, or by the "
            f"node's owner; got {got}, where {local(mine.spelled)} is declared already. Leave the column out "
            "of one, or declare the same in both"
        )
    return mine if mine.values else theirs


def _place(path: Path, number: int) -> str:
    return f"{local(path)}, line 1, column {number}"


def _wrong(
    place: str, expected: str, cell: str, todo: str, error: type[BouquetError] = DataError
) -> BouquetError:
    return error(f"{place}: expected {expected}; got {local(repr(cell))}. {todo}")

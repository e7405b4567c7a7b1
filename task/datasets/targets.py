"""The targets of a csv file: class numbers, numbers to predict, or labels 0 and 1.

One column of class numbers or names, or of numbers; or several columns typed ``target``, which are numbers
[N, d], or with ``task = "multi-label"`` labels [N, C], or with ``task = "survival"`` times and events [N, 2].
Where the run leaves the task open, one column typed
``target`` has numbers if one of them is negative or has a fraction; any other column has classes.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from task.datasets.base import Request
from task.datasets.column_types import KEY, MOST_VALUES, untyped
from task.datasets.encode import LARGEST, is_text, number, spelling
from task.datasets.header import MISSING, TypedColumn
from task.errors import DataError, local
from task.inputs import NUMBERS

Ints = npt.NDArray[np.int64]
MOST_CLASSES = 2**31  # until a run sets the number
_WHOLE = re.compile(r"^([+-]?\d+)\.0*$")


class Row(NamedTuple):
    """A row of a csv file."""

    path: Path
    line: int
    x: list[float]  # numbers, and of categories the value's place; NaN = missing
    labels: tuple[str, ...]  # the cells of the targets
    owner: str | None  # None: the file does not say
    part: str  # of `task.datasets.parts`; "" = the file does not say
    id: str = ""  # who it is of; "" = the file does not say
    aside: tuple[str, ...] = ()  # of the columns by which a run may compare groups of people


def targets(
    rows: Sequence[Row], columns: Sequence[TypedColumn], request: Request
) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return the targets as of `task.datasets.base.Decoded.y`, and the classes' names, if they have any.

    Raises:
        DataError: Naming line and column of a cell that is no target of the run's task.
    """
    first = columns[0]
    if request.doubles and first.values:  # a column like others, whose values are places
        there = [row for row in rows if not _lacks(row, first, request)]
        places, classes = _classes(there, first, replace(request, num_classes=0))
        found = np.full(len(rows), np.nan)
        found[[not _lacks(row, first, request) for row in rows]] = places
        return found, classes
    if request.task in NUMBERS:
        return _numbers(rows, columns, request), ()
    if len(columns) > 1 and request.task == "classification":
        raise DataError(
            f'{local(rows[0].path)}, line 1: task = "classification" expects one column to predict; got '
            f'{len(columns)}. Choose "regression" or "multi-label", or type the others NAME:ignore.'
        )
    if len(columns) > 1 or (request.task == "auto" and first.type == "target" and _are_numbers(rows, first)):
        return _numbers(rows, columns, request), ()
    return _classes(rows, first, request)


def _lacks(row: Row, column: TypedColumn, request: Request) -> bool:
    """Return whether a row lacks its target where it may."""
    label = row.labels[0]
    return request.keep_missing and label.lower() in MISSING and label not in column.values


def _are_numbers(rows: Sequence[Row], column: TypedColumn) -> bool:
    """Return whether a column has numbers and at least one is not a class number."""
    if column.values:
        return False
    values = [number(row.labels[0]) for row in rows]
    if any(map(math.isnan, values)):
        return False
    return any(value < 0 or not value.is_integer() for value in values)


def _numbers(rows: Sequence[Row], columns: Sequence[TypedColumn], request: Request) -> npt.NDArray[Any]:
    """Return numbers or labels as float32, [N] of one column, else [N, d]; or as float64."""
    labels = request.task == "multi-label"
    if (labels and len(columns) < 2) or any(column.values for column in columns):
        expected = "several columns typed NAME:target" if labels else "NAME:target without a list of classes"
        raise DataError(
            f'{local(rows[0].path)}, line 1: task = "{request.task}" expects {expected}; got '
            f"{local([c.name for c in columns])}. Correct the types or choose another task."
        )
    if request.num_classes not in (0, len(columns)):
        raise DataError(
            f'{local(rows[0].path)}: run-config key "num-classes": expected {len(columns)}, the number of '
            f"columns to predict, or 0; got {request.num_classes}"
        )
    expected = "a label 0 or 1" if labels else "a number"
    kept = request.doubles and request.keep_missing
    y = np.empty((len(rows), len(columns)), np.float64)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row.labels):
            y[i, j] = number(cell)
            if kept and cell.lower() in MISSING:
                continue
            if not abs(y[i, j]) <= LARGEST or (labels and y[i, j] not in (0, 1)):
                raise DataError(
                    f"{_place(row, columns[j].name)}: expected "
                    f'{expected} to predict; got "{local(cell)}". Correct the cell or remove the line.'
                )
    y = y if request.doubles else y.astype(np.float32)
    if request.task == "survival":
        check_lifetimes(y, lambda i: f"{local(rows[i].path)}, line {rows[i].line}")
    return y if len(columns) > 1 else y[:, 0]


def check_lifetimes(y: npt.NDArray[Any], where: Callable[[int], str]) -> None:
    """Refuse targets of survival other than times above 0 and events 0 or 1, [N, 2].

    `where` gives the place of an example.

    Raises:
        DataError: Naming the first wrong one.
    """
    if y.ndim != 2 or y.shape[1] != 2:
        raise DataError(
            f'{where(0)}: task = "survival" expects two targets, a time above 0 and whether the event '
            f"happened then, 1 or 0; got targets of shape {list(y.shape)}"
        )
    wrong = np.flatnonzero((y[:, 0] <= 0) | ~np.isin(y[:, 1], (0, 1)))
    if wrong.size:
        raise DataError(
            f'{where(int(wrong[0]))}: task = "survival" expects a time above 0 and then 1 if the event '
            f"happened, else 0; got {y[wrong[0]].tolist()}. {wrong.size - 1} more examples are like it"
        )


def _classes(rows: Sequence[Row], target: TypedColumn, request: Request) -> tuple[Ints, tuple[str, ...]]:
    """Return class numbers and class names; pooled labels are numbered in sorted order."""
    if target.values:
        return _listed(rows, target, request), target.values
    column = target.name
    values: list[int] = []
    with suppress(ValueError):
        for row in rows:
            values.append(_whole(row.labels[0]))
    whole = len(values) == len(rows)
    if request.owner and not whole:
        row, found = rows[len(values)], tuple(sorted({row.labels[0] for row in rows}))
        said = (
            f"{_place(row, column)}: labels of a node's own data "
            f"must be integers {_range(request)}, or classes that are listed, so that all nodes number the "
            "classes alike"
        )
        texts = sum(is_text(row.labels[0]) for row in rows)
        if 2 * texts > len(rows) and 1 < len(found) <= MOST_VALUES["target"]:
            _checkspelling(rows, column)
            raise untyped(
                f'{said}; got "{local(row.labels[0])}"', (TypedColumn(column, "target", found),), request
            )
        raise DataError(
            f'{said}; got "{local(row.labels[0])}". List the classes, as in the run-config key '
            f'{KEY}="name:target(a|b)" or the header; a number to predict is name:target.'
        )
    if whole and (request.owner or request.num_classes):
        most = request.num_classes or MOST_CLASSES
        for value, row in zip(values, rows, strict=True):
            if not 0 <= value < most:
                raise DataError(
                    f"{_place(row, column)}: expected a label "
                    f'{_range(request)}; got {local(value)}. Renumber the labels or raise "num-classes".'
                )
        return np.array(values, dtype=np.int64), ()
    if not whole:
        _checkspelling(rows, column)
    labels = np.array(values if whole else [row.labels[0] for row in rows], dtype=object)
    classes, y = np.unique(labels, return_inverse=True)
    if 0 < request.num_classes < len(classes):
        raise DataError(
            f"{local(rows[0].path)}: expected at most num-classes = {request.num_classes} "
            f'different labels; got {len(classes)}. Raise the run-config key "num-classes" or set it to 0.'
        )
    return y.astype(np.int64), tuple(map(str, classes))


def label_of(cell: str) -> str:
    """Return a label as it is compared: a whole number without a fraction, so that 1.0 is 1."""
    return _WHOLE.sub(lambda found: str(int(found[1])), cell)


def _whole(label: str) -> int:
    if "_" in label:
        raise ValueError
    return int(label)


def _checkspelling(rows: Sequence[Row], column: str) -> None:
    """Refuse labels that differ in spelling only."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(spelling(row.labels[0]), row)
        if known.labels != row.labels:
            raise DataError(
                f"{_place(row, column)}: expected labels that differ "
                f'in more than spelling; got "{local(row.labels[0])}", and "{local(known.labels[0])}" in '
                f"{local(known.path.name)}, line {known.line}. Write them alike."
            )


def _listed(rows: Sequence[Row], target: TypedColumn, request: Request) -> Ints:
    """Return the places of the labels in the header's list of classes."""
    if request.num_classes not in (0, len(target.values)):
        raise DataError(
            f"{local(rows[0].path)}, line 1: expected num-classes = {request.num_classes} names of classes "
            f"after target; got {len(target.values)}. Correct the list or the run-config key."
        )
    places = {label_of(value): place for place, value in enumerate(target.values)}
    for row in rows:
        if row.labels[0] not in places:
            found = local(f'"{row.labels[0]}"', "another")
            raise DataError(
                f"{_place(row, target.name)}: expected one of "
                f"{local(', '.join(target.values), 'the values in its list')}; got {found}. Correct the cell "
                "or the list of classes."
            )
    return np.array([places[row.labels[0]] for row in rows], dtype=np.int64)


def _place(row: Row, column: str) -> str:
    name = local(f'column "{column}"', "its target")
    return f"{local(row.path)}, line {row.line}, {name}"


def _range(request: Request) -> str:
    """Say which class numbers are good; a node reads its own data before a run says how many there are."""
    if not request.num_classes:
        return "from 0 to the run's num-classes - 1"
    return f"0..{request.num_classes - 1} (num-classes = {request.num_classes})"

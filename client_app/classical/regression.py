"""Sums over a client's rows for a regression; `strategies.rules.regression` has the whole.

The columns are those of the client's own table, by the names that the run declares. Where the node's owner
sets ``min-examples`` = m, nothing is sent

* if a column of 0 and 1, two of them together, or one with an outcome of 0 and 1 have a cell of fewer than m
  persons, as the sums have the count of each;
* if the design has more than a tenth as many columns as the client has rows; or
* if the coefficients that came give most of the weight to fewer than m rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from client_app.data.node import Node
from client_app.stages.stage import Outcome, each
from task.catalogue.classical import OPENING
from task.catalogue.entry import Algorithm
from task.classical.design import Design, NamedColumns
from task.classical.families import Rows, local_terms
from task.classical.fit import model_of
from task.classical.sums import size_of, sums_of
from task.datasets.base import Dataset
from task.datasets.header import read_column
from task.errors import DataError, RefusedError, WireError
from task.numerics.row_sums import DIGITS, to_wire
from task.wire import messages as wire
from task.wire.layouts import ROWS

ROWS_PER_COLUMN = 10  # fewest rows for each column of the design, where the owner sets a bound
Floats = npt.NDArray[np.float64]


def sum_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of a regression for each client."""
    model = model_of(node.config)
    design, family = model.design, model.family
    (record,) = entry.up
    beta = coefficients_in(order, design) if entry.down else []
    wanted = (size_of(record.name, len(design.names)), DIGITS)
    if order.rows.get(record.name) != wanted:
        raise WireError(
            f"training message: expected {wanted[0]} numbers of {record.name!r}, as many as this run's "
            f"columns have; got {order.rows.get(record.name)}",
            record.name,
        )

    def of(client: str) -> wire.ClientUpdate:
        chosen = node.clients.train(node.clients.index(client))
        rows = rows_of(node.dataset, chosen, design, family)
        if node.bounds.min_examples:
            check_cells(design, rows, node.bounds.min_examples, client)
            if record.name != OPENING:
                check_weights(family, rows, beta, node.bounds.min_examples, client)
        totals = to_wire(sums_of(record.name, family, rows, beta))
        return wire.ClientUpdate({record.name: {ROWS: totals}}, {wire.NUM_EXAMPLES: len(chosen)})

    return each(order.clients, of)


def rows_of(dataset: Dataset, chosen: npt.NDArray[np.int64], design: Design, family: str) -> Rows:
    """Return the chosen rows of a table as a design has them.

    Raises:
        ConfigError: A column is not there, or of another kind.
        DataError: The data are no table, or a value does not fit its declaration.
    """
    table = table_of(dataset, chosen)
    target = table.of(design.target)
    trials = table.of(design.trials) if design.trials else np.ones(len(chosen))
    unit = design.target.scale if family == "gaussian" else 1.0
    columns = design.columns(table, len(chosen))
    return Rows(columns, design.scales, target, trials, unit).checked(family, design.target.name)


def table_of(dataset: Dataset, chosen: npt.NDArray[np.int64]) -> NamedColumns:
    """Return the chosen rows by column; the target of the file is a column like others.

    Raises:
        DataError: The data set is no table of named columns.
    """
    if not dataset.columns or dataset.x.dtype.kind != "f" or dataset.x.ndim != 2:
        raise DataError(
            f'run-config key "dataset": expected a table with names of columns, "csv"; got {dataset.name!r}'
        )
    x = np.asarray(dataset.x[chosen], np.float64)
    y = np.asarray(dataset.y[chosen], np.float64)
    *features, targets = dataset.columns
    numbers: dict[str, Floats] = {}
    places: dict[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]] = {}
    at = 0
    for column in map(read_column, features):
        width = len(column.inputs)
        if column.type == "category":
            places[column.name] = x[:, at : at + width].argmax(axis=1), column.values
        else:
            numbers[column.name] = x[:, at]
        at += width
    for j, name in enumerate(targets.split(", ")):
        numbers[name] = y if y.ndim == 1 else y[:, j]
        if dataset.classes:
            places[name] = y.astype(np.int64), dataset.classes
    return NamedColumns(numbers, places)


def check_cells(design: Design, rows: Rows, least: int, client: str) -> None:
    """Refuse sums that have the count of fewer than `least` persons.

    Raises:
        RefusedError: Naming the rule and the columns; the same for none as for one person fewer than allowed.
    """
    n, p = len(rows.k), len(rows.columns)
    if n < ROWS_PER_COLUMN * p:
        raise RefusedError(
            f"policy: min-examples = {least}; a design of {p} columns needs {ROWS_PER_COLUMN * p} rows of "
            f"client {client}, which has fewer"
        )
    found = _indicators(design, rows)
    for name, _, ones in found:
        if min(int(ones.sum()), n - int(ones.sum())) < least and ones.any() and not ones.all():
            raise RefusedError(
                f"policy: min-examples = {least}; column {name} would have a cell of fewer persons of client "
                f"{client}"
            )
    for (first, variable, a), (second, other, b) in combinations(found, 2):
        if variable == other or not a.any() or not b.any() or a.all() or b.all():
            continue  # levels of one category exclude each other
        cells = (a & b, a & ~b, ~a & b, ~a & ~b)
        if min(int(cell.sum()) for cell in cells) < least:
            raise RefusedError(
                f"policy: min-examples = {least}; columns {first} and {second} together would have a cell of "
                f"fewer persons of client {client}"
            )


def _indicators(design: Design, rows: Rows) -> list[tuple[str, str, npt.NDArray[np.bool_]]]:
    """Return the columns of 0 and 1 after the intercept: name, variable, and where they are 1."""
    variables = [v.name for v in design.variables for _ in range(len(v.levels) - 1 if v.levels else 1)]
    named = [*zip(design.names[1:], variables, rows.columns[1:], strict=True)]
    named.append((design.target.name, design.target.name, rows.k))
    return [(name, of, x == 1) for name, of, x in named if ((x == 0) | (x == 1)).all()]


def check_weights(family: str, rows: Rows, beta: Sequence[float], least: int, client: str) -> None:
    """Refuse coefficients under which few rows have most of the weight.

    Raises:
        RefusedError: Naming the rule.
    """
    w = local_terms(family, rows, rows.linear(beta)).w
    if w.sum() ** 2 < least * (w * w).sum():
        raise RefusedError(
            f"policy: min-examples = {least}; with these coefficients fewer rows of client {client} would "
            "have most of the weight"
        )


def coefficients_in(order: wire.TrainOrder, design: Design) -> list[float]:
    """Return the coefficients that came.

    Raises:
        WireError: They are not one finite number for each column.
    """
    found = order.arrays["coefficients"][ROWS]
    if found.shape != (len(design.names), 1) or not np.isfinite(found).all():
        raise WireError(
            f"training message: expected {len(design.names)} finite coefficients; got {found.shape}",
            "coefficients",
        )
    return [float(b) for b in found[:, 0]]

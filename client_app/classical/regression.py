"""Sums over a client's rows for a regression; `strategies.rules.regression` has the whole.

Where the node's owner sets ``min-examples`` = m, nothing is sent

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

from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.regressions import OPENING
from task.classical.columns import NamedColumns
from task.classical.design import Design
from task.classical.families import Rows, local_terms
from task.classical.fit import model_of
from task.classical.sums import size_of, sums_of
from task.errors import RefusedError
from task.wire import messages as wire

ROWS_PER_COLUMN = 10  # fewest rows for each column of the design, where the owner sets a bound
Floats = npt.NDArray[np.float64]


def sum_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of a regression for each client."""
    model, least = model_of(node.config), node.bounds.min_examples
    design, family = model.design, model.family
    (record,) = entry.up
    beta = [float(b) for b in sent(order, "coefficients", model.p)[:, 0]] if entry.down else []

    def of(client: str, table: NamedColumns) -> list[int]:
        rows = rows_of(table, design, family)
        if least:
            check_cells(design, rows, least, client)
            if record.name != OPENING:
                check_weights(family, rows, beta, least, client)
        return sums_of(record.name, family, rows, beta)

    return answers(node, entry, order, size_of(record.name, model.p), of)


def rows_of(table: NamedColumns, design: Design, family: str) -> Rows:
    """Return a client's rows as a design has them.

    Raises:
        ConfigError: A column is not there, or of another kind.
        DataError: A value does not fit its declaration.
    """
    target = table.of(design.target)
    trials = table.of(design.trials) if design.trials else np.ones(table.rows)
    unit = design.target.scale if family == "gaussian" else 1.0
    return Rows(design.columns(table), design.scales, target, trials, unit).checked(
        family, design.target.name
    )


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

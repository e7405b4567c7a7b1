"""Sums over a client's rows for a regression; `strategies.rules.regression` has the whole.

Where the node's owner sets ``min-examples`` = m, nothing is sent

* if a column of 0 and 1, two of them together, or one with an outcome of 0 and 1 have a cell of fewer than m
  persons, as the sums have the count of each;
* if the design has more than a tenth as many columns as the client has rows; or
* if the coefficients that came, or columns of weights, give most of the weight to fewer than m rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from client_app.classical.cells import Indicator, check_counts, check_rows, indicators
from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.regressions import OPENING
from task.classical.columns import NamedColumns
from task.classical.design import Design
from task.classical.families import Rows, local_terms
from task.classical.fit import model_of, rows_of
from task.classical.sums import size_of, sums_of
from task.errors import RefusedError
from task.wire import messages as wire

Floats = npt.NDArray[np.float64]


def sum_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of a regression for each client."""
    model, least = model_of(node.config), node.bounds.min_examples
    design, family = model.design, model.family
    (record,) = entry.up
    beta = [float(b) for b in sent(order, "coefficients", model.p)[:, 0]] if entry.down else []

    def of(client: str, table: NamedColumns) -> list[int]:
        rows = rows_of(model, table)
        if least:
            check_cells(design, rows, least, client)
            if record.name == OPENING:
                check_size(rows.f * rows.v, least, client, "the columns of frequencies and weights")
            else:
                w = local_terms(family, rows, rows.linear(beta)).w
                check_size(w, least, client, "these coefficients")
        return sums_of(record.name, family, rows, beta, by_site=model.by_site)

    return answers(node, entry, order, size_of(record.name, model.p), of)


def check_cells(design: Design, rows: Rows, least: int, client: str) -> None:
    """Refuse sums that have the count of fewer than `least` persons; raises as `check_counts` does."""
    check_rows(len(rows.k), len(rows.columns), least, client)
    check_counts(_indicators(design, rows), len(rows.k), least, client)


def _indicators(design: Design, rows: Rows) -> list[Indicator]:
    """Return the columns of 0 and 1 after the intercept, and the target if it is one."""
    variables = [v.name for v in design.variables for _ in range(len(v.levels) - 1 if v.levels else 1)]
    named = [*zip(design.names[1:], variables, rows.columns[1:], strict=True)]
    return indicators([*named, (design.target.name, design.target.name, rows.k)])


def check_size(w: Floats, least: int, client: str, what: str) -> None:
    """Refuse weights `w` of the rows, which come with `what`, of which few rows have most.

    Raises:
        RefusedError: Naming the rule.
    """
    if w.sum() ** 2 < least * (w * w).sum():
        raise RefusedError(
            f"policy: min-examples = {least}; with {what} fewer rows of client {client} would have most of "
            "the weight"
        )


WORK = {"regression": sum_rows}

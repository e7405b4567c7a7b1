"""Answers to questions for exact sums over a client's rows (`strategies.rules.exact_sums`).

The columns are those of the client's own table, by the names that the run declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.classical.audit import audit
from client_app.data.node import Node
from client_app.data.noised import noise_of
from client_app.stages.stage import Outcome, each
from task.catalogue.entry import Algorithm
from task.classical.columns import Floats, NamedColumns
from task.datasets.base import Dataset
from task.datasets.header import read_column
from task.errors import DataError, WireError
from task.numerics.row_sums import DIGITS, to_wire
from task.wire import messages as wire
from task.wire.layouts import ROWS


def answers(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    size: int,
    sums: Callable[[str, NamedColumns], Sequence[int]],
    names: Sequence[str] = (),
    cuts: Mapping[str, list[float]] | None = None,
) -> Iterator[Outcome]:
    """Answer a question for each client by `sums`, of its name and rows: `size` integers, units of 2^-51."""
    return answer_rows(
        node, entry, order, (size, DIGITS), lambda client, table: to_wire(sums(client, table)), names, cuts
    )


def answer_rows(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    wanted: tuple[int, int],
    rows: Callable[[str, NamedColumns], npt.NDArray[np.int64]],
    names: Sequence[str] = (),
    cuts: Mapping[str, list[float]] | None = None,
) -> Iterator[Outcome]:
    """Answer a question for each client by `rows`, of its name and rows: int64 of the shape `wanted`.

    The node's ledger has each question before it is answered (`client_app.classical.audit`): `names` are
    columns of which rows may lack a value, and `cuts` those at which a column's values are counted.

    Raises:
        WireError: The server asks for another number of them.
    """
    (record,) = entry.up
    if order.rows.get(record.name) != wanted:
        raise WireError(
            f"training message: expected {wanted[0]} numbers of {record.name!r}, as many as this run's "
            f"columns have; got {order.rows.get(record.name)}",
            record.name,
        )

    def of(client: str) -> wire.ClientUpdate:
        chosen = node.clients.train(node.clients.index(client))
        table = table_of(node.dataset, chosen)
        if noise_of(node) is None:  # else what it costs is in the ledger of noise
            audit(node, entry, order, client, table, names, cuts or {})
        return wire.ClientUpdate({record.name: {ROWS: rows(client, table)}}, {wire.NUM_EXAMPLES: len(chosen)})

    return each(order.clients, of)


def sent(order: wire.TrainOrder, record: str, rows: int, width: int = 1) -> npt.NDArray[Any]:
    """Return what came with a question, numbers [rows, width].

    Raises:
        WireError: It has another shape, or a number is not finite.
    """
    found = order.arrays[record][ROWS]
    if found.shape != (rows, width) or not np.isfinite(found).all():
        raise WireError(
            f"training message: expected {rows} x {width} finite numbers of {record!r}; got {found.shape}",
            record,
        )
    return found


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
            hot = x[:, at : at + width]
            places[column.name] = np.where(np.isnan(hot[:, 0]), -1, hot.argmax(axis=1)), column.values
        else:
            numbers[column.name] = x[:, at]
        at += width
    for j, name in enumerate(targets.split(", ")):
        numbers[name] = y if y.ndim == 1 else y[:, j]
        if dataset.classes:
            places[name] = np.where(np.isnan(y), -1, y).astype(np.int64), dataset.classes
    return NamedColumns(numbers, places)

"""Columns of a client's table: ordered as in the run, summed, and prepared with all clients' moments."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

from client_app.data.node import Node
from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Outcome, each
from task.catalogue.columns import COLUMNS
from task.catalogue.entry import Algorithm
from task.errors import ConfigError, RefusedError
from task.numerics.moments import ColumnMoments, sums_of
from task.wire import messages as wire


def sum_columns(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Sum up the columns of each client's training examples."""
    preparation = node.dataset.preparation
    if preparation is None:
        raise ConfigError(f"the phase {COLUMNS!r}: expected a table on this node; got other data")

    def of(client: str) -> wire.ClientUpdate:
        rows = node.clients.train(node.clients.index(client))
        x = np.asarray(node.dataset.x[rows], dtype=np.float32)
        sums = sums_of(preparation.values(x), preparation.numeric)
        _check_counts(node, client, sums["column-sums"]["count"])
        up = {field.name: sums[field.name] for field in entry.up}
        return wire.ClientUpdate(up, {wire.NUM_EXAMPLES: len(rows)})

    return each(order.clients, of)


def _check_counts(node: Node, client: str, counts: np.ndarray) -> None:
    """Refuse a sum over fewer values than the owner of the node allows; one over none says nothing.

    Raises:
        RefusedError: Naming the column by its number.
    """
    least = node.bounds.min_examples
    few = np.flatnonzero((counts > 0) & (counts < least))
    if len(few):
        raise RefusedError(
            f"policy: min-examples = {least}; the sum of column {few[0] + 1} would be of {counts[few[0]]} "
            f"values (client {client}; others are missing)"
        )


def with_columns(node: Node, content: RecordDict) -> Node:
    """Return the node with its table prepared by the moments that a message brings.

    Raises:
        WireError: Their number is not that of the table's columns.
        DataError: They do not fit this node's table.
    """
    preparation = node.dataset.preparation
    if preparation is None or not preparation.learns:
        return node
    arrays = wire.read_columns(content, len(preparation.numeric))
    if arrays is None:
        return node
    moments = ColumnMoments(arrays["count"], arrays["mean"], arrays["std"])
    return replace(node, dataset=replace(node.dataset, preparation=preparation.with_moments(moments)))


class ColumnsNode(NodeStage):
    """Reads a node's table by name, prepared with all clients' moments."""

    name = "columns"

    def node(self, node: Node) -> Node:
        """Return the node with its table prepared."""
        return with_columns(node, self.asked.content)

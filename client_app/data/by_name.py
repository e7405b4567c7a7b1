"""Read a node's table by column name, in the run's common order."""

from dataclasses import replace

from flwr.app import RecordDict

from client_app.data.node import Node
from task.config.paths import cache_dir
from task.datasets.reorder import read_by_name
from task.wire.places import read_places


def in_order(node: Node, content: RecordDict) -> Node:
    """Return the node with its data read by name, in the order that a message asks for.

    Raises:
        WireError: The order is none.
        DataError: It is not one of this node's data.
    """
    order = read_places(content)
    if order is None:
        return node
    folder = cache_dir(node.config.data)
    return replace(node, dataset=read_by_name(node.dataset, order, folder))

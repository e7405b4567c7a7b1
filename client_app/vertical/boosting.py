"""The phases of growing trees over parties; `strategies.rules.secureboost` has the whole."""

from collections.abc import Iterator

from client_app.data.node import Node
from client_app.stages.stage import Outcome, each
from client_app.vertical.growing import TableWork
from client_app.vertical.split_search import SearchWork
from task.catalogue.entry import Algorithm
from task.wire import messages as wire


def run_trees(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Do one phase of growing trees over parties, for those of an order."""
    search, table = SearchWork(node, entry, order), TableWork(node, entry, order)
    if entry.work == "weigh":
        return each(order.clients, search.score)
    steps = {
        "bins": table.bins, "gradients": search.gradients, "histograms": table.histograms,
        "search": search.search, "divide": table.divide, "grow": search.grow, "close": table.close,
    }  # fmt: skip
    return search.run(steps[entry.work])

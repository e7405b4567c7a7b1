"""What a node writes down of each question for exact sums before it answers (`task.privacy.query_ledger`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from client_app.data.node import Node
from task.catalogue.entry import Algorithm
from task.classical.columns import NamedColumns
from task.privacy.query_ledger import digests, row_digests
from task.wire import messages as wire

ALL = "all columns"


def audit(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    client: str,
    table: NamedColumns,
    names: Sequence[str],
    cuts: Mapping[str, list[float]],
) -> None:
    """Write a question for a client's rows down; of `names`, columns, those with a value count by themselves.

    Raises:
        RefusedError: Its rows are almost those of an earlier one, or the owner's limit is reached.
    """
    owner = node.bounds
    if owner.queries is None or not (owner.min_examples or owner.queries.most):
        return
    of = node.clients.index(client)
    x, y = node.dataset.x, node.dataset.y
    chosen, tested = (
        row_digests(x[rows], y[rows]) for rows in (node.clients.train(of), node.clients.test(of))
    )
    used = {ALL: digests(chosen)}
    for name in {*names} & {*table.numbers, *table.places}:
        used[name] = digests(chosen[table.there(name)])
    everybody = np.concatenate([chosen, tested])
    (record,) = entry.up
    about = {"question": f"{entry.name}: {record.name}", "run": order.run, "round": order.round}
    owner.queries.ask(client, used, digests(everybody), owner.min_examples, about, cuts)

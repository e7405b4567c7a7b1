"""What a node writes down of each question for exact sums before it answers (`task.privacy.query_ledger`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from client_app.data.node import Node
from task.catalogue.entry import Algorithm
from task.classical.columns import NamedColumns
from task.datasets.base import Dataset
from task.privacy.query_ledger import Digests, digests
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
    chosen = _rows(node.dataset, node.clients.train(of))
    used = {ALL: digests(chosen)}
    for name in {*names} & {*table.numbers, *table.places}:
        used[name] = digests(chosen[table.there(name)])
    everybody = np.concatenate([chosen, _rows(node.dataset, node.clients.test(of))])
    (record,) = entry.up
    about = {"question": f"{entry.name}: {record.name}", "run": order.run, "round": order.round}
    owner.queries.ask(client, used, digests(everybody), owner.min_examples, about, cuts)


def _rows(dataset: Dataset, rows: npt.NDArray[np.int64]) -> Digests:
    """Return a digest of each row's contents, uint64 [rows]."""
    x, y = np.ascontiguousarray(dataset.x[rows]), np.ascontiguousarray(dataset.y[rows])
    pairs = zip(x, y, strict=True)
    found = [hashlib.blake2b(a.tobytes() + b.tobytes(), digest_size=8).digest() for a, b in pairs]
    return np.frombuffer(b"".join(found), np.uint64)

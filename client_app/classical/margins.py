"""Margins of a client's rows in its node's state folder, for nodes that run each message in a new process.

The file has the place and form of client state, but it is a cache. It is valid for one digest of trees and
one of rows. If it is missing, damaged or for others, the client says that it lacks the trees, and the server
sends all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from client_app.data.node import Node
from client_app.memory.memory import store_of
from task.errors import DataError, StateError
from task.numerics.arrays import Arrays
from task.storage.client_state import Header, read_kept, write_kept
from task.text import logger
from task.trees.orders import check_cuts
from task.trees.rows import BoostedRows
from task.wire import messages as wire

FIELD = "margins"  # of the file


@contextmanager
def margins_kept(node: Node, order: wire.TrainOrder, client: str, rows: BoostedRows) -> Iterator[None]:
    """Read a client's margins before the block, and write them after it if they have changed.

    The processes of a simulation live as long as the run, and need no files.
    """
    if node.owner.simulation:
        yield
        return
    path = store_of(node).path(client, order.run)
    if not rows.digest:
        try:
            header, fields = read_kept(path)
            if (header.client, header.run) == (client, order.run):
                restore(rows, fields[FIELD])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, StateError, DataError) as err:
            logger.warning("round %d: client %s: margins are not read: %s", order.round, client, err)
    before = rows.digest
    yield
    if rows.digest != before:
        header = Header(client, node.config.algorithm, order.run, order.round, 0, (FIELD,))
        try:
            write_kept(path, header, {FIELD: dumped(rows)}, durable=False)
        except OSError as err:
            logger.warning("round %d: client %s: margins are not written: %s", order.round, client, err)


def dumped(rows: BoostedRows) -> Arrays:
    """Return the margins, the cuts, and the digests of the trees and rows that they are of."""
    assert rows.layout is not None
    cuts = [rows.layout.cuts[j] for j in rows.boosting.numbers]
    return {
        "trees": np.frombuffer(rows.digest, np.uint8),
        "rows": np.frombuffer(rows.fingerprint, np.uint8),
        "margins": rows.margins,
        "cuts": np.concatenate([np.zeros(0, np.float32), *cuts]),
        "starts": np.cumsum([0, *map(len, cuts)], dtype=np.int64),
    }


def restore(rows: BoostedRows, found: Arrays) -> None:
    """Give rows what `dumped` has returned; nothing if that was of other rows.

    Raises:
        DataError: The arrays have other forms, or are no margins or cuts.
    """
    boosting = rows.boosting
    forms = {
        "trees": ("uint8", (hashlib.sha256().digest_size,)),
        "rows": ("uint8", (hashlib.sha256().digest_size,)),
        "margins": ("float64", (len(rows.y), boosting.objective.classes)),
        "cuts": ("float32", found["cuts"].shape[:1] if "cuts" in found else ()),
        "starts": ("int64", (len(boosting.numbers) + 1,)),
    }
    got = {name: (str(a.dtype), a.shape) for name, a in found.items()}
    same = got.keys() == forms.keys() and got["rows"] == forms["rows"]
    if same and found["rows"].tobytes() != rows.fingerprint:
        return
    if got != forms:
        raise DataError(f"expected arrays {forms}; got {got}")
    starts, cuts = found["starts"], found["cuts"]
    if not (np.isfinite(found["margins"]).all() and np.isfinite(cuts).all()):
        raise DataError("expected finite numbers; got others")
    if starts[0] != 0 or starts[-1] != len(cuts) or (np.diff(starts) < 0).any():
        raise DataError("expected where each column's cuts begin; got other numbers")
    parts = [cuts[i:k] for i, k in pairwise(starts.tolist())]
    check_cuts(boosting, parts)
    rows.begin(parts, found["margins"])
    rows.digest = found["trees"].tobytes()

"""A node's side of homomorphic encryption (`task.encryption`): models that it opens, sums that it seals."""

from collections.abc import Callable
from functools import partial

from flwr.app import ArrayRecord, RecordDict

from client_app.data.node import Node
from task.catalogue.entry import Algorithm
from task.encryption import ckks
from task.encryption.sums import TOTAL, Ciphertexts, Sealing
from task.errors import RefusedError, WireError
from task.numerics.arrays import NamedArrays
from task.wire import messages as wire


def opened(node: Node, content: RecordDict) -> RecordDict:
    """Return a message with its model in clear; the first one of a run is.

    Raises:
        WireError: It is of another key.
    """
    record = wire.records_of(content, ArrayRecord).get(wire.ARRAYS)
    if not node.config.server.he or record is None or ckks.CIPHERTEXT not in record:
        return content
    return RecordDict({**content, wire.ARRAYS: wire.pack_arrays(node.key().open(wire.read_arrays(record)))})


def ciphertexts_of(
    node: Node, entry: Algorithm, order: wire.TrainOrder
) -> Callable[[NamedArrays], Sealing | Ciphertexts]:
    """Return what encrypts a node's sums.

    Raises:
        RefusedError: The owner of the node allows no run without encryption.
        ConfigError: The node has no key.
        WireError: The order does not say by what the clients' weights are divided.
    """
    if node.owner.encrypted and not node.config.server.he:
        raise RefusedError('policy: he = true; expected a run with "he" = true; got false')
    if not entry.encrypted:
        return Ciphertexts
    total = order.scalars.get(TOTAL, 0.0)
    if not 1 <= total < 2**53 or total % 1:
        raise WireError(f"training message: expected {TOTAL!r}, a whole number; got {total:g}", TOTAL)
    return partial(Sealing, key=node.key(), total=int(total))

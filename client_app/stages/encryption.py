"""A node's side of homomorphic encryption (`task.encryption`): decrypts models, encrypts sums."""

from functools import partial

from flwr.app import ArrayRecord, RecordDict

from client_app.data.node import Node
from client_app.stages.merge import FoldPlan
from client_app.stages.node_stage import Asked, NodeStage
from task.encryption import ckks
from task.encryption.sums import TOTAL, Sealing
from task.errors import RefusedError, WireError
from task.wire import messages as wire
from task.wire.sealing import Sealed


def opened(node: Node, content: RecordDict) -> RecordDict:
    """Return a message with its model in clear; the first one of a run is.

    Raises:
        WireError: It is of another key.
    """
    record = wire.records_of(content, ArrayRecord).get(wire.ARRAYS)
    if record is None or ckks.CIPHERTEXT not in record:
        return content
    return RecordDict({**content, wire.ARRAYS: wire.pack_arrays(node.key().open(wire.read_arrays(record)))})


def sealed_by(node: Node, order: wire.TrainOrder) -> Sealed:
    """Return the encryption of a node's sums.

    Raises:
        ConfigError: The node has no key.
        WireError: The order does not say by what the clients' weights are divided.
    """
    total = order.scalars.get(TOTAL, 0.0)
    if not 1 <= total < 2**53 or total % 1:
        raise WireError(f"training message: expected {TOTAL!r}, a whole number; got {total:g}", TOTAL)
    return Sealed(partial(Sealing, key=node.key(), total=int(total)))


class EncryptionNode(NodeStage):
    """Decrypts models, and encrypts the clients' sums."""

    name = "encryption"

    @classmethod
    def absent(cls, asked: Asked) -> None:
        """Refuse a run without encryption where the owner allows no other.

        Raises:
            RefusedError: Naming the run-config key.
        """
        if asked.node.owner.encrypted:
            raise RefusedError('policy: he = true; expected a run with "he" = true; got false')

    def content(self, node: Node, content: RecordDict) -> RecordDict:
        """Return a message with its model in clear."""
        return opened(node, content)

    def plan(self, node: Node, plan: FoldPlan, order: wire.TrainOrder) -> None:
        """Have sums encrypted."""
        if self.asked.contract.encrypted:
            plan.encoding = sealed_by(node, order)

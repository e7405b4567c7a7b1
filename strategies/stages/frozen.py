"""Server half of the frozen part: what no client changes is no part of the rule's state, nor of any message.

An order names the frozen part by its SHA-256. It goes to a node once: with the first order, unless the node
has registered that it has it, and again where the node answers that it lacks it, be it late, restarted or a
substitute. A Flower client that is not Bouquet's is sent the whole model, and its answer is cut.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, RecordDict

from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.stage import Outgoing, ServerStage
from task.numerics.arrays import Arrays, sha256
from task.wire import messages as wire
from task.wire.frozen import DIGEST, FROZEN, LOST, with_frozen

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


class FrozenStage(ServerStage):
    """Sends the frozen part of the model to nodes that lack it."""

    name = "frozen"
    lacks = LOST

    def __init__(self, engine: "PhaseEngine") -> None:
        super().__init__(engine)
        self._digest = ""
        self._known: set[int] = set()  # nodes that have it
        self._record: ArrayRecord | None = None  # packed, while some nodes may lack it

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen part; "" = nothing is frozen, or the model is not made yet.

        Phases before that, as for sums of columns, have no frozen part.
        """
        if not self._digest and self.engine.fixed:
            self._digest = sha256(self.engine.fixed)
        return self._digest

    def completed(self, model: Arrays) -> Arrays:
        """Return the model with its frozen part; what is no model, as it is."""
        names = {*self.engine.trainable}
        return {**model, **self.engine.fixed} if names and names <= model.keys() else model

    def _packed(self) -> ArrayRecord:
        self._record = self._record or wire.pack_arrays(self.engine.fixed)
        return self._record

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Name the frozen part, and add it for a node that lacks it."""
        if not self.digest:
            return
        registration = self.engine.registry.membership.claims[out.node].registration
        if registration.stock:
            if opened.phase.records.get(wire.ARRAYS) is self.engine.model:
                out.records[wire.ARRAYS] = wire.pack_arrays(self.completed(self.engine.model))
            return
        out.entries[DIGEST] = self.digest
        if out.node not in self._known and self.digest not in registration.frozen:
            out.records[FROZEN] = self._packed()

    def whole(self, content: RecordDict) -> RecordDict:
        """Return an order's content with the frozen part, for a node that may lack it."""
        return with_frozen(content, self._packed()) if self.digest else content

    def check_reply(self, opened: Opened, node: str, clients: Sequence[str], content: RecordDict) -> None:
        """Remove the frozen part from what a client that is not Bouquet's has sent."""
        record = wire.records_of(content, ArrayRecord).get(wire.ARRAYS)
        if self.digest and record is not None and self.engine.fixed.keys() <= record.keys():
            content[wire.ARRAYS] = ArrayRecord(
                {n: a for n, a in record.items() if n not in self.engine.fixed}
            )

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Note which nodes have it: those that answered well."""
        self._known |= opened.reached if self.digest else set()
        if all(m.metadata.dst_node_id in self._known for m in opened.requests):
            self._record = None  # its memory; it is packed again where it is needed

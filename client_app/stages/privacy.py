"""Clips what a client sends, for differential privacy at the level of clients; run-config keys ``dp.*``.

Delta_k of all records together, the parameters' change from the received model or the record itself if that
is a change, is scaled to an L2 norm of C at most and goes up as integers (`task.privacy.bounded_integers`).
The bound and the grid come with the order. Nothing else of a client is sent: its example count is 1, and
there is no loss.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from client_app.data.node import Node
from client_app.stages.merge import FoldPlan
from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Outcome, Stage, changed
from task.catalogue.stages import UNCLIPPED
from task.errors import FieldError
from task.privacy.bounded_integers import BIT, CLIP, GRID, bound_of, clipped
from task.privacy.bounded_integers import exponent as grid_of
from task.privacy.shares import deviation
from task.resolve.contract import contract_of
from task.wire import messages as wire


class Clipping(Stage):
    """Clips the uploads as they go up, the last of all stages."""

    names = ("dp", "adaptive-dp")

    def send(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on the uploads, clipped."""
        return changed(outcomes, self._clipped)

    def _clipped(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        try:
            bound, exponent = float(self.order.scalars[CLIP]), int(self.order.scalars[GRID])
        except KeyError as err:
            raise FieldError(
                err.args[0], "the bound and the grid of the round, from Bouquet's own server", "none"
            ) from None
        dp = self.node.config.dp
        own = grid_of(deviation(dp, contract_of(self.node.config)))
        if dp.distributed and (bound, exponent) != (dp.clip, own):
            # With another grid or a larger norm, the nodes' noise would not suffice for an update.
            want = f"the bound {dp.clip:g} and the grid {own}, for which nodes add their noise"
            raise FieldError(CLIP, want, f"{bound:g} and {exponent}")
        changes = self.changes(client, upload, (r for r in self.entry.up if r != UNCLIPPED))
        sent, within = clipped(changes, bound, exponent)
        if UNCLIPPED in self.entry.up:
            (one,) = self.node.forms().like(UNCLIPPED.layout)
            sent[UNCLIPPED.name] = {one: np.array([BIT if within else -BIT], np.int32)}
        return wire.ClientUpdate(sent, {wire.NUM_EXAMPLES: 1})


class PrivacyNode(NodeStage):
    """Checks what the clients have clipped."""

    name = "privacy"

    def plan(self, node: Node, plan: FoldPlan, order: wire.TrainOrder) -> None:
        """Have each upload keep the bound of the order."""
        plan.bound = bound_of(self.asked.contract, order.scalars) or plan.bound

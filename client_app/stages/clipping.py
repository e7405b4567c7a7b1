"""Clips what a client sends, for differential privacy at the level of clients; run-config keys ``dp.*``.

Delta_k of all records together, the parameters' change from the received model or the record itself if that
is a change, is scaled to an L2 norm of C at most and goes up as integers (`task.privacy.grid`). The bound and
the grid come with the order. Nothing else of a client goes up: its example count says 1, and no loss.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from client_app.stages.stage import Outcome, Stage, changed
from task.errors import FieldError
from task.numerics.arrays import NamedArrays
from task.privacy.grid import BIT, CLIP, GRID, clipped
from task.spec.stages import UNCLIPPED
from task.wire import messages as wire
from task.wire.checks import check_arrays
from task.wire.layouts import base_of


class Clipping(Stage):
    """Clips the uploads as they go up, the last of all stages."""

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
        received, parameters = self.order.received(client), self.node.parts().trainable
        changes: dict[str, NamedArrays] = {}
        for r in (r for r in self.entry.up if r != UNCLIPPED):
            arrays = upload.arrays[r.name]
            check_arrays(r.name, arrays, arrays)
            base = base_of(r, received, parameters)
            assert base is not None  # else it was refused before round 1
            changes[r.name] = {
                n: np.subtract(a, base[n], dtype=np.float64) if n in base else a for n, a in arrays.items()
            }
        sent, within = clipped(changes, bound, exponent)
        if UNCLIPPED in self.entry.up:
            (one,) = self.node.forms().like(UNCLIPPED.layout)
            sent[UNCLIPPED.name] = {one: np.array([BIT if within else -BIT], np.int32)}
        return wire.ClientUpdate(sent, {wire.NUM_EXAMPLES: 1})

"""Rounds what a client sends to the grid of a sum of 64 or 32 bits; run-config key ``secagg-bits``.

The change of each record from what was received, times the client's weight, goes up as integers of the grid
that the order names (`task.secagg.fixed_point`). The bound on updates is checked before: integers have no
norm.
"""

from collections.abc import Iterable, Iterator

from client_app.stages.stage import Outcome, Stage, changed
from task.errors import FieldError
from task.secagg.fixed_point import SUM_GRID, rounded
from task.wire import messages as wire


class Rounding(Stage):
    """Rounds the uploads as they go up, the last of all stages."""

    names = ("grid",)

    def send(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on the uploads, rounded."""
        return changed(outcomes, self._rounded)

    def _rounded(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        if SUM_GRID not in self.order.scalars:
            raise FieldError(SUM_GRID, "the grid of the round, from Bouquet's own server", "none")
        server, entry, g = self.node.config.server, self.entry, int(self.order.scalars[SUM_GRID])
        weight = int(upload.scalars[wire.NUM_EXAMPLES]) if entry.weight == "examples" else 1
        changes = self.changes(client, upload, entry.up)
        for r in entry.up:
            self.bound.check(r, upload.arrays[r.name], [upload.scalars])
        sent = {name: rounded(name, c, weight, g, server.secagg_bits) for name, c in changes.items()}
        return wire.ClientUpdate(sent, upload.scalars)

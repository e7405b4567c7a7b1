"""The phase before round 1 in which the server learns means and deviations of the clients' columns.

All clients that are online and not held out are asked once (`task.catalogue.columns`). The result goes down
with every later message, so that a node that joins late, or starts again, works with the same numbers; a run
that is resumed takes them from its folder.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from strategies.engine.channel import Opened
from strategies.engine.refusals import refused_for_good, too_few_replies
from strategies.engine.rule import Phase
from strategies.engine.stage import Outgoing, ServerStage
from task.catalogue.columns import COLUMNS, SQUARES, SUMS
from task.numerics.moments import ColumnMoments, moments_of
from task.resolve.contract import contract_of
from task.text import logger
from task.wire.layouts import Forms

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


class ColumnsStage(ServerStage):
    """Sends moments of the clients' columns with every message, once it has them."""

    name = "columns"

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.count = 0  # columns of a table, as a model reads them; 0 = not known
        self.moments: ColumnMoments | None = None

    def learn(self, grid: Grid, known: ColumnMoments | None = None) -> None:
        """Have the moments that are `known`; else ask all clients for their sums.

        Raises:
            BouquetError: Fewer than ``min-replies`` clients answered; a `NodesError` if another try may help.
            ConfigError: It is not clear which shape the nodes' data have.
        """
        self.moments = self.moments or known
        if self.moments is not None:
            return
        engine, registry, server = self.engine, self.engine.registry, self.engine.config.server
        least = max(server.min_replies, 1)
        engine.register(grid, 0, least)
        engine.enrolled()
        shape, _ = registry.shape_of_data()
        self.count = math.prod(shape)
        contract = contract_of(engine.config).phases[COLUMNS]
        phase = Phase(COLUMNS, contract, tuple(sorted(registry.names)), least=least)
        folded = engine.run(phase, grid)
        reduced = folded.reduced
        if reduced is None or len(reduced.clients) < least:
            lines = {line.client: line for line in folded.quarantined}
            raise too_few_replies(
                f"sums of the columns, before round 1: expected those of at least {least} clients "
                f'(run-config key "min-replies"); got {len(reduced.clients) if reduced else 0} '
                f"of {len(phase.to)}",
                lines.values(),
                refused_for_good(lines, phase.to, least),
            )
        self.moments = moments_of(reduced.arrays[SUMS.name], reduced.arrays.get(SQUARES.name))
        logger.info(
            "columns: means of %d numeric columns over %d clients", int((self.moments.count > 0).sum()),
            len(reduced.clients),
        )  # fmt: skip

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Send the moments."""
        if self.moments:
            out.records[COLUMNS] = self.engine.record(self.moments.arrays, COLUMNS)

    def forms(self, forms: Forms) -> Forms:
        """Return the forms of sums over this number of columns."""
        return replace(forms, columns=self.count)

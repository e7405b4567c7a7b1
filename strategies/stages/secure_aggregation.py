"""Server half of secure aggregation, ``secagg = true``: masked sums over nodes in each phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from strategies.channels.masked import MaskedChannel
from strategies.channels.sum_grid import SumGrid
from strategies.engine.channel import Channel, Opened
from strategies.engine.rule import Phase
from strategies.engine.stage import ServerStage

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


class SecureAggregationStage(ServerStage):
    """Replaces the plain exchange by the masked one."""

    name = "secure_aggregation"
    replayed = False  # a transcript has the sums

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.sum_grid = SumGrid(engine.config, engine.registry)
        self.masked = MaskedChannel(engine, self.sum_grid)

    def before_send(self, phase: Phase) -> Phase:
        """Send the grid of sums that are rounded."""
        if not phase.contract.rounded:
            return phase
        grid = self.sum_grid.scalars(phase.contract, phase.to)
        return replace(phase, scalars={**phase.scalars, **grid})

    def channel(self, opened: Opened) -> Channel:
        """Return the masked exchange."""
        return self.masked

"""Server half of ``order-of-arrival = "real"``: asynchronous runs with real arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from strategies.channels.waiting import RealArrivals, WaitingChannel
from strategies.engine.channel import Channel, Opened
from strategies.engine.stage import ServerStage

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


class ArrivalsStage(ServerStage):
    """Passes updates to the rule as they arrive, from orders that outlive their round."""

    name = "arrivals"
    replayed = False

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.real: RealArrivals | None = None

    def follow(self, grid: Grid) -> None:
        """Begin to follow the nodes of a grid."""
        self.real = RealArrivals(self.engine, grid)

    def offers(self) -> Mapping[str, Any]:
        """Give the rule what says where updates arrive."""
        return {"arrivals": self.real}

    def channel(self, opened: Opened) -> Channel | None:
        """Return the exchange of a server step, whose clients were asked before."""
        waited = self.real.waited(opened.phase) if self.real else None
        return WaitingChannel(self.engine, waited) if waited else None

    def close(self) -> None:
        """Wait no more for orders that outlive their round."""
        if self.real:
            self.real.close()

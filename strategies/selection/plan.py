"""Who trains how much in a round."""

from collections.abc import Sequence
from dataclasses import dataclass

from task.config.knobs import Config
from task.numerics import seeds
from task.numerics.seeds import rng_for


@dataclass(frozen=True)
class RoundPlan:
    """The cohort of a round."""

    round: int  # server round t
    clients: tuple[str, ...]  # S_t, all selected clients by sorted name
    epochs: dict[str, int]  # of the clients that are slow; the others do as configured
    dropped: tuple[str, ...]  # selected clients that are not asked, because stragglers are dropped
    groups: tuple[tuple[str, ...], ...] = ()  # that train one after the other; empty = all at once

    @property
    def stragglers(self) -> tuple[str, ...]:
        """The slow clients, asked or dropped."""
        return tuple(sorted({*self.epochs, *self.dropped}))

    @property
    def cohort(self) -> tuple[str, ...]:
        """The clients that are asked to train, sorted."""
        dropped = set(self.dropped)
        return tuple(c for c in self.clients if c not in dropped)

    @property
    def asked(self) -> int:
        """Number of clients that are asked to train."""
        return len(self.clients) - len(self.dropped)


def plan_round(config: Config, server_round: int, clients: Sequence[str]) -> RoundPlan:
    """Draw the stragglers among the clients that a policy has drawn.

    Of the selected, round(stragglers * |S_t|) are slow. Each has time for x ~ U{1..E} epochs (Li et al.,
    FedProx, section 5.2; the authors' code draws from {1..E-1}, the paper says [1, E]). A strategy that
    does not wait drops them, FedProx takes their partial work.
    """
    server = config.server
    slow = round(server.stragglers * len(clients))
    if slow == 0:
        return RoundPlan(server_round, tuple(clients), {}, ())
    rng = rng_for(config.seed, seeds.STRAGGLERS, server_round)
    late = sorted(clients[i] for i in rng.choice(len(clients), size=slow, replace=False).tolist())
    draws = rng.integers(1, config.train.local_epochs, size=slow, endpoint=True).tolist()
    if server.drop_stragglers:
        return RoundPlan(server_round, tuple(clients), {}, tuple(late))
    return RoundPlan(server_round, tuple(clients), dict(zip(late, draws, strict=True)), ())

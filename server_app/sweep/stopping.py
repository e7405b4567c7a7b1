"""The median rule: a run that falls behind the runs before it is ended early.

Golovin et al. 2017, "Google Vizier", section 3.2, with the best value so far instead of the running average,
and with a fixed order, so that it can be explained afterwards. A run of some seed is compared with the runs
*before it in the queue* that have the same seed. At a round t from the warm-up on, it is hopeless if its best
value so far is below the median of their best values at t; there must be three of them that got so far. The
decision waits until each of them is past t or has ended. So which run is stopped, and at which round, follows
from the results and not from who was quicker; only how many rounds it did beyond t does, and that it may have
ended by itself before the decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from server_app.results.lines import Row
from server_app.results.summary import has_accuracy, measured_on, score

LEAST_PEERS = 3


@dataclass
class Curve:
    """The best value of a run by round, higher is better."""

    on: tuple[str, bool] | None = None  # where it was measured, and whether it is an accuracy
    best: dict[int, float] = field(default_factory=dict)
    ended: bool = False  # no further rounds will come
    last: int = -1

    def add(self, rows: Sequence[Row]) -> None:
        """Add finished rounds, given by their lines of rounds.jsonl."""
        for row in rows:
            self.last = max(self.last, row["round"])
            place = measured_on([row])
            if self.on is None and place is not None:
                self.on = place, has_accuracy([row], place)
            value = score(row, self.on[0]) if self.on else None
            if value is not None:
                self.best[row["round"]] = max([value, *list(self.best.values())[-1:]])


@dataclass(frozen=True)
class Verdict:
    """Why a run is stopped."""

    round: int
    value: float
    median: float
    peers: int

    def __str__(self) -> str:
        return (
            f"best {abs(self.value):.4g} by round {self.round}, worse than the median {abs(self.median):.4g} "
            f"of {self.peers} earlier runs"
        )


def verdict(
    name: str, order: Sequence[tuple[str, object]], curves: Mapping[str, Curve], warm_up: int
) -> Verdict | None:
    """Return why a run is hopeless, None if it is not, or not yet.

    Args:
        name: Of the run.
        order: Name and seed of every run, in the order of the queue.
        curves: By name of the run; one of a stopped run ends at the round that decided it.
        warm_up: The first round at which runs are compared.
    """
    names = [other for other, _ in order]
    at = names.index(name)
    mine, seed = curves[name], order[at][1]
    earlier = [curves[other] for other, its in order[:at] if its == seed and other in curves]
    unknown = any(its == seed and other not in curves for other, its in order[:at])
    for t, value in mine.best.items():
        if t < warm_up:
            continue
        if unknown or any(not curve.ended and curve.last < t for curve in earlier):
            return None
        peers = [curve.best[t] for curve in earlier if curve.on == mine.on and t in curve.best]
        if len(peers) >= LEAST_PEERS and value < (middle := median(peers)):
            return Verdict(t, value, middle, len(peers))
    return None

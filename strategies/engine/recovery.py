"""Rollback: the last model that clients could train from, so that one bad update does not end a run.

A model has *proved* itself once more than half of the clients that were asked have trained from it and sent a
usable reply. After each update the server holds the last proved state until the new one has proved itself;
if most of those that answer diverge from it instead, the run is rolled back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.engine.fold import Folded
from strategies.engine.journal import Snapshot
from strategies.engine.state import ServerState
from task.numerics.arrays import Arrays, NamedArrays

VOID = "recovery/void"
Mapped = Callable[[int, ServerState], ServerState]


@dataclass(frozen=True)
class Kept:
    """A state, and after which round the server had it."""

    round: int
    state: ServerState


def oldest_checkpoint(server_round: int, every: int) -> int:
    """Return the round of the oldest checkpoint from which a run may be resumed while it trains a round.

    The checkpoint of round t - 1 may still be unfinished while round t trains, so the one of round t - 2
    counts, or the last due before it. `every` is the run-config key ``checkpoint-every``; with 0 there is a
    checkpoint at the end only.
    """
    last = max(server_round - 2, 0)
    return last - last % every if every else last


class LastGood:
    """The rollback target.

    Args:
        private: The number of diverged clients must stay hidden: the run is never rolled back.
        every: Rounds between checkpoints; 0 = only at the end.
    """

    def __init__(self, *, private: bool = False, every: int = 1) -> None:
        self.private, self.every = private, every
        self.kept: Kept | None = None  # the last proved state, while the present one is not proved
        self.void: tuple[int, ...] = ()  # rolled-back rounds: clients drop their state of these
        self._start: Kept | None = None
        self._proved = False
        self._backs: dict[int, int] = {}  # by round, the rollback target at its end

    def begin(self, server_round: int, state: ServerState) -> None:
        """Note the state that a round sends."""
        self._start, self._proved = Kept(server_round - 1, state), False
        oldest = oldest_checkpoint(server_round, self.every)
        self._backs = {t: back for t, back in self._backs.items() if t >= oldest}
        self._backs[server_round - 1] = self.kept.round if self.kept else server_round - 1

    def oldest(self) -> int | None:
        """Return the oldest round whose kept state a client may still need; None before the first round.

        That is the rollback target of the present state or of a checkpoint that the run may be resumed from:
        the rounds after it may differ when repeated, as other clients may be online.
        """
        return min(self._backs.values(), default=None)

    def judge(self, folds: Sequence[Folded], asked: int) -> Kept | None:
        """Return the rollback target, or None.

        `folds` are the round's replies, `asked` the number of clients that were asked to train.
        """
        if self.private:
            return None
        bad = {q.client for folded in folds for q in folded.quarantined if q.diverged}
        good = {client for folded in folds for client in folded.metrics} - bad
        if len(bad) > len(good):
            back, self.kept = self.kept, None
            if back is not None and self._start is not None:
                self.void += tuple(range(back.round + 1, self._start.round + 2))
            return back
        if 2 * len(good) > asked:
            self._proved, self.kept = True, None
        return None

    def updated(self, stored: Mapped = lambda server_round, state: state) -> None:
        """Keep the state that the round began with, if it has proved good: the rule has made a new one.

        `stored` returns a round's state as its checkpoint has it (`strategies.engine.journal.Journal`).
        """
        if self._proved and (start := self._start) is not None:
            self.kept = Kept(start.round, stored(start.round, start.state))

    def dump(self) -> Arrays:
        """Return `void` for a checkpoint, under a name of its own; `snapshot` has the rollback target."""
        return {VOID: np.array(self.void, np.int64)} if self.void else {}

    def snapshot(self) -> Snapshot | None:
        """Return the rollback target for a checkpoint."""
        return Snapshot.of(self.kept.round, self.kept.state) if self.kept else None

    def load(self, arrays: NamedArrays, good: Snapshot | None, form: type[ServerState]) -> None:
        """Restore what `dump` and `snapshot` returned; `form` is the class of the rule's states."""
        self.kept = Kept(good.round, good.state(form)) if good else None
        self.void = tuple(int(r) for r in arrays.get(VOID, np.zeros(0, np.int64)))

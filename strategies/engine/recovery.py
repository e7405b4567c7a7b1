"""The last model that clients could train from, so that one bad update does not end a run.

A model has *proved* itself once more than half of the clients that were asked have trained from it and sent a
usable reply. After each update the server holds the last proved state until the new one has proved itself;
if most of those that answer diverge from it instead, the run goes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.engine.fold import Folded
from strategies.engine.state import ServerState
from task.numerics.arrays import Arrays, NamedArrays

VOID = "recovery/void"


@dataclass(frozen=True)
class Kept:
    """A state, and after which round the server had it."""

    round: int
    state: ServerState


def oldest_checkpoint(server_round: int, every: int) -> int:
    """Return the round of the oldest checkpoint from which a run may be resumed while it trains a round.

    That of round t - 1 may still be in the making while round t trains, so that that of round t - 2 counts,
    or the one before it that was due.
    `every` is the run-config key ``checkpoint-every``; with 0 there is a checkpoint at the end only.
    """
    last = max(server_round - 2, 0)
    return last - last % every if every else last


class LastGood:
    """What to go back to.

    Args:
        private: How many clients diverged must not show: the run never goes back.
        every: Rounds between checkpoints; 0 = only at the end.
    """

    def __init__(self, *, private: bool = False, every: int = 1) -> None:
        self.private, self.every = private, every
        self.kept: Kept | None = None  # the last proved state, while the present one is not proved
        self.void: tuple[int, ...] = ()  # rounds that the run has gone back from: clients drop what they kept
        self._start: Kept | None = None
        self._proved = False
        self._backs: dict[int, int] = {}  # by round, what the run may go back to from its end

    def begin(self, server_round: int, state: ServerState) -> None:
        """Take note of the state that a round sends."""
        self._start, self._proved = Kept(server_round - 1, state), False
        oldest = oldest_checkpoint(server_round, self.every)
        self._backs = {t: back for t, back in self._backs.items() if t >= oldest}
        self._backs[server_round - 1] = self.kept.round if self.kept else server_round - 1

    def oldest(self) -> int | None:
        """Return the oldest round whose kept state a client may still need; None before the first round.

        It is that to which the run may go back from the state at hand, or from a checkpoint that it is
        resumed from: the rounds after that may differ from the first time, as other clients may be online.
        """
        return min(self._backs.values(), default=None)

    def judge(self, folds: Sequence[Folded], asked: int) -> Kept | None:
        """Return what to go back to, or None.

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

    def updated(self) -> None:
        """Keep the state that the round began with, if it has proved itself: the rule has made a new one."""
        if self._proved:
            self.kept = self._start

    def dump(self) -> Arrays:
        """Return `void` for a checkpoint, under a name of its own."""
        return {VOID: np.array(self.void, np.int64)} if self.void else {}

    def load(self, arrays: NamedArrays, kept: Kept | None) -> None:
        """Take up what `dump` returned, and what to go back to."""
        self.kept = kept
        self.void = tuple(int(r) for r in arrays.get(VOID, np.zeros(0, np.int64)))

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


class LastGood:
    """What to go back to."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private  # how many clients diverged must not show: the run never goes back
        self.kept: Kept | None = None  # the last proved state, while the present one is not proved
        self.void: tuple[int, ...] = ()  # rounds that the run has gone back from: clients drop what they kept
        self._start: Kept | None = None
        self._proved = False

    def begin(self, server_round: int, state: ServerState) -> None:
        """Take note of the state that a round sends."""
        self._start, self._proved = Kept(server_round - 1, state), False

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

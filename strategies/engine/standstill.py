"""Rounds that leave the model as it was, and the error of a run whose later rounds can only do the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from strategies.engine.refusals import failed_again, refused_for_good, too_few_replies
from task.errors import BouquetError

if TYPE_CHECKING:
    from strategies.engine.rounds import RoundLog
    from task.wire.messages import RejectedReply

ALIKE = 10  # clients that stand for all, if none has given a usable reply in any round


class Standstill:
    """The rounds of a run since one last changed its model.

    Args:
        wanted: Usable replies that a round needs.
        remedy: What this run could do about numbers that are too large; "" = nothing is known.
    """

    def __init__(self, wanted: int, remedy: str) -> None:
        self.wanted, self.remedy = wanted, remedy
        self.trained = False  # whether a round has changed the model, or could have
        self._answered = False  # whether any client has given a usable reply
        self._rounds = 0  # in a row
        self._unused: dict[str, RejectedReply] = {}  # by client, its last reply in these that was not used
        self._again: set[str] = set()  # clients that failed twice for one reason

    def note(self, log: RoundLog) -> None:
        """Take in a round that has trained, or has not."""
        dropped = log.values["selected"] and not log.values["asked"]  # as the run's own keys will have it
        self._answered = self._answered or bool(log.values["answered"])
        if not log.values["skipped"] or dropped or log.values["rolled_back"] is not None:
            self.trained, self._rounds = True, 0
            self._unused, self._again = {}, set()
            return
        self._rounds += 1
        self._again |= failed_again(self._unused, log.quarantined)
        self._unused |= {line.client: line for line in log.quarantined}

    def error(self, done: int, names: Collection[str], why: str, *, last: bool) -> BouquetError | None:
        """Return the error of the rounds up to the one that is `done`; None if a later one may train.

        A run that has trained has two tries; as it may recover if it diverges, replies that the gate refused
        don't count.

        Args:
            done: The last round.
            names: The clients that are online.
            why: Why that round kept the model; "" = too few replies alone.
            last: Whether no round is left.
        """
        if self.trained and self._rounds < 2:
            return None
        unused = {c: line for c, line in self._unused.items() if not (self.trained and line.field)}
        lasting = self._lasting(unused, names, last=last)
        if not (lasting or (last and not self.trained)):
            return None
        begin = done + 1 - self._rounds
        rounds = f"round {begin}" if self._rounds == 1 else f"rounds {begin} to {done}"
        head = (
            f'{rounds}: expected {self.wanted} or more usable replies (run-config key "min-replies") in one '
            f"of them; the model is unchanged{f' ({why})' if why else ''}"
        )
        return too_few_replies(head, unused.values(), lasting, self.remedy)

    def _lasting(
        self, unused: Mapping[str, RejectedReply], names: Collection[str], *, last: bool
    ) -> list[RejectedReply]:
        again, least = self._again, self.wanted
        if not self._answered and self._rounds > 1 and len(unused) >= ALIKE:
            again, names, least = set(unused), tuple(unused), 1
        return refused_for_good(unused, names, least, before_end=not last, again=again)

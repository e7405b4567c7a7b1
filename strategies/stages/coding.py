"""Server half of codes: decodes replies, and reports unused ones to their clients.

With error feedback, a client subtracts what its code carries from its residual. If the reply comes late, is
refused, or its round keeps the model, the client must know, otherwise that mass is lost. So an order names
those rounds for its clients.
"""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from strategies.engine.channel import Opened
from strategies.engine.rule import Phase
from strategies.engine.stage import Outgoing, ServerStage
from task.catalogue.stages import LAST_CODE
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.wire import messages as wire
from task.wire.coding import Coder, coder_of

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

NAME = "lost-replies"
MOST = 8  # rounds by client from before a reply that was used, to which the run may go back


class LostReplies:
    """By client, the last rounds in which it was asked and its reply was not used."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[int]] = {}

    def note(self, server_round: int, asked: Collection[str], used: Collection[str]) -> None:
        """Take note of a round's clients."""
        for client in asked:
            rounds = self.rounds.get(client, [])
            if client not in used:  # its last code may be of any round since the last reply that was used
                self.rounds[client] = [*rounds, server_round]
            elif rounds:
                self.rounds[client] = rounds[-MOST:]

    def dump(self) -> Arrays:
        """Return all for a checkpoint, under a name of its own."""
        if not self.rounds:
            return {}
        return {NAME: of_text(json.dumps(self.rounds, sort_keys=True))}

    def load(self, arrays: NamedArrays) -> None:
        """Take up what `dump` returned."""
        self.rounds = json.loads(text_in(arrays[NAME])) if NAME in arrays else {}


class CodingStage(ServerStage):
    """Decodes replies, and reports unused ones to their clients."""

    name = "coding"

    def __init__(self, engine: "PhaseEngine") -> None:
        super().__init__(engine)
        self.lost = LostReplies()

    def encoding(self, phase: Phase) -> Coder | None:
        """Return what reads the coded records of the replies to a phase."""
        engine, models = self.engine, phase.models
        like = engine.like(phase.contract, phase.rows)
        own = (lambda client: {wire.ARRAYS: models.received(client)}) if models else None
        return coder_of(
            engine.config, phase.contract, like, phase.records, engine.trainable, engine.round, own
        )

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Name the rounds whose replies were not used."""
        if LAST_CODE in opened.phase.contract.keeps:
            out.order = replace(out.order, lost=self.lost.rounds)

    def used(self, *, used: bool) -> None:
        """Take note of the clients whose replies are not in the model: of all if the round is not `used`."""
        for phase, folded in self.engine.done:
            if LAST_CODE in phase.contract.keeps:
                self.lost.note(self.engine.round, phase.to, folded.metrics if used else ())

    def dump(self) -> Arrays:
        """Return the rounds, for a checkpoint."""
        return self.lost.dump()

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        self.lost.load(arrays)

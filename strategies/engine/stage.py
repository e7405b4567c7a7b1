"""A feature's server half: its hooks into the phases and the rounds of a run.

The engine runs the stages of a run in the order of `strategies.stages` and knows none of them by name. A
stage's state for one phase is in `Opened.of`, under its name; what must outlive the phase is in
`Folded.left`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid

from task.numerics.arrays import Arrays, NamedArrays
from task.wire import messages as wire
from task.wire.layouts import Forms

if TYPE_CHECKING:
    from strategies.engine.channel import Channel, Opened
    from strategies.engine.cohort import RoundPlan
    from strategies.engine.fold import Folded
    from strategies.engine.journal import Journal
    from strategies.engine.phases import PhaseEngine
    from strategies.engine.rounds import RoundLog
    from strategies.engine.rule import Phase, RoundContext
    from strategies.engine.rule_round import RuleRound
    from strategies.engine.state import AggregatedReplies, ServerState
    from strategies.selection.devices import Busy
    from task.wire.encoding import Encoding
    from task.wire.norms import NormBound

Leave = Callable[["Journal", Arrays], None]  # records a round, given the model after it
ContextOf = Callable[[int, float], "RoundContext"]  # given the round and its learning rate


@dataclass
class Outgoing:
    """The message of a phase to one node, before it is written."""

    node: int
    order: wire.TrainOrder
    records: dict[str, ArrayRecord]  # by field
    entries: dict[str, wire.ConfigValue]  # further ones of its ``config``


@dataclass(frozen=True)
class RoundEnd:
    """A round that is done but not yet recorded."""

    round: RuleRound | None  # None of round 0
    plan: RoundPlan
    state: ServerState  # the rule's, after it
    back: int | None  # the round that the run was rolled back to


class ServerStage:
    """A stage that does nothing; the base of every other."""

    name: ClassVar[str] = ""  # of its feature, see `task.features`
    hides: ClassVar[bool] = False  # whether it must not show who took part in a round
    lacks: ClassVar[str] = ""  # in the error of a node that lacks what its order builds on, see `whole`
    replayed: ClassVar[bool] = True  # whether a replay from a transcript needs it

    def __init__(self, engine: PhaseEngine) -> None:
        self.engine = engine

    # ------------------------------------------------------------------ the run

    def follow(self, grid: Grid) -> None:
        """Begin or resume a run, before its first round."""

    def learn(self, grid: Grid) -> None:
        """Learn what must be known before the first round."""

    def close(self) -> None:
        """End what outlives rounds."""

    def dump(self) -> Arrays:
        """Return what the next round depends on, for a checkpoint, under names of its own."""
        return {}

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Restore what `dump` returned after the round `done`."""

    def finished(self) -> bool:
        """Return whether the run must end before the next round."""
        return False

    def after_run(self, grid: Grid, last: int, context_of: ContextOf, lr: float, state: ServerState) -> None:
        """Run after the last round; `lr` is the learning rate of the next one."""

    # ------------------------------------------------------------------ a round

    def registered(self) -> None:
        """Look at the clients that are online now."""

    def enrolled(self) -> None:
        """Draw among the clients that are online, before they are asked."""

    def begin(self) -> None:
        """Begin a round; the engine's is its number, 0 before the first."""

    def offers(self) -> Mapping[str, Any]:
        """Return what the rule's `RoundContext` has of this feature, by field."""
        return {}

    def draw(self, names: Sequence[str]) -> Sequence[str] | None:
        """Return the round's cohort; None leaves it to the selection policy."""
        return None

    def coded(self, arrays: Arrays) -> Arrays:
        """Return the model that clients will have when a rule has made this one."""
        return arrays

    def completed(self, model: Arrays) -> Arrays:
        """Return the run's model as its file has it, with what does not travel."""
        return model

    def timed(self, log: RoundLog, busy: Mapping[str, Busy]) -> None:
        """Look at how long the round's clients were busy on their simulated devices."""

    def used(self, *, used: bool) -> None:
        """Note whether the replies of the round's phases are in the model."""

    def after_round(self, grid: Grid, state: ServerState, context: RoundContext, log: RoundLog) -> None:
        """Measure what is due after a round, with its new state."""

    def row(self) -> Mapping[str, Any]:
        """Return what the round's row says of this feature."""
        return {}

    def leaves(self, end: RoundEnd) -> Leave | None:
        """Return a function that records what a round leaves; None if it leaves nothing."""
        return None

    # ------------------------------------------------------------------ a phase

    def before_send(self, phase: Phase) -> Phase:
        """Return a phase with additional information for its clients."""
        return phase

    def opened(self, opened: Opened) -> None:
        """Start recording a phase."""

    def channel(self, opened: Opened) -> Channel | None:
        """Return a channel for a phase; None = the plain exchange."""
        return None

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Add to the message for a node."""

    def written(self, opened: Opened, content: RecordDict) -> None:
        """Look at a message as it will go out."""

    def whole(self, content: RecordDict) -> RecordDict:
        """Return a message's self-contained content, for a node that lost earlier state."""
        return content

    def forms(self, forms: Forms) -> Forms:
        """Return the forms of records that this feature changes."""
        return forms

    def encoding(self, phase: Phase) -> Encoding | None:
        """Return how records travel in the replies; None = as they are."""
        return None

    def bound(self, phase: Phase) -> NormBound | None:
        """Return the bound on what a client sends; None = `max-update-norm`, if that is set."""
        return None

    def bytes_down(self, model: Arrays) -> int | None:
        """Return the bytes of the run's model on its way down; None = of its arrays."""
        return None

    def check_reply(self, opened: Opened, node: str, clients: Sequence[str], content: RecordDict) -> None:
        """Remove from a reply what is not for the fold, and check it.

        Raises:
            FieldError: It is wrong; the reply is refused.
        """

    def may_open(self, opened: Opened) -> bool:
        """Return whether the sum of a phase whose replies are masked may be opened.

        Raises:
            SecureAggregationError: It must not, and why.
        """
        return True

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Change or note a phase's folded replies."""

    def for_rule(self, phase: Phase, folded: Folded, context: RoundContext) -> AggregatedReplies | None:
        """Return the replies as the rule is to see them; None leaves them as they are."""
        return None

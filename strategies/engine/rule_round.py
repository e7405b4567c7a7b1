"""Run one round of a rule, phase by phase, to its result or to the reason why the model stays.

The gate checks each reply alone, not their sum: an error of arithmetic or of values that the rule raises over
them ends the round, not the run. A bug, such as a name that does not exist, ends the run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from flwr.serverapp import Grid

from strategies.engine.fold import Folded
from strategies.engine.phases import PhaseEngine
from strategies.engine.rule import TRAIN, Phase, Phases, Round, RoundContext, Rule, TooFewRepliesError, few
from strategies.engine.state import AggregatedReplies, Number, ServerState, not_finite, too_few
from task.errors import LASTING, BouquetError, FieldError, NodesError
from task.text import logger

T = TypeVar("T")

# Errors that end the run: this machine lacks something (disk, memory, nodes), or a lasting reason.
OURS: tuple[type[Exception], ...] = (*LASTING.values(), NodesError, OSError, MemoryError)
# Errors that individually valid replies may cause. Anything else is a bug and is raised.
OF_REPLIES = (ArithmeticError, BouquetError, LookupError, ValueError)


def _cannot(err: Exception) -> str:
    """Return why a rule has no result: replies were checked one by one, but not their combination."""
    logger.warning("the rule raised", exc_info=True)
    return f"the rule cannot work with these replies: {type(err).__name__}: {err}"


def attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of replies, or None and the reason."""
    try:
        return work(), ""
    except OURS:
        raise
    except OF_REPLIES as err:
        return None, _cannot(err)


def run_until(name: str, phases: Phases, engine: PhaseEngine, grid: Grid) -> Phase | None:
    """Run phases outside a round's training; each needs `Phase.least` valid replies.

    Returns:
        The first phase of that name, which is still to be run; None if there is none.

    Raises:
        TooFewRepliesError: A phase had fewer, and the rule cannot do without.
    """
    try:
        phase = next(phases)
        while phase.name != name:
            folded = engine.run(phase, grid)
            good = len(folded.reduced.clients) if folded.reduced else 0
            if folded.reduced is None or good < phase.least:
                why = few(good, max(phase.least, 1))
                phase = phases.throw(TooFewRepliesError(why, folded.quarantined))
            else:
                phase = phases.send(folded.reduced)
        return phase
    except StopIteration:
        return None


def open_rule(rule: Rule, context_of: Callable[[int], RoundContext], engine: PhaseEngine, grid: Grid) -> None:
    """Run the phases of a rule that come before the first round, if it has any, with all that are online.

    Raises:
        BouquetError: What the rule says of their replies.
    """
    for stage in engine.stages:
        stage.follow(grid)
    if type(rule).opening is not Rule.opening:
        engine.register(grid, 0, engine.config.server.min_replies)
        context = context_of(0)
        run_until("", rule.opening(context), engine, grid)
        engine.registry.needed = rule.needs()


class RuleRound:
    """The generator of a rule's round, driven with the replies to its phases."""

    def __init__(
        self, rule: Rule, state: ServerState, context: RoundContext, engine: PhaseEngine, grid: Grid
    ) -> None:
        self.rule, self.context, self.engine, self.grid = rule, context, engine, grid
        # The new state and the rule's metrics, once the round is over with a model.
        self.result: tuple[ServerState, dict[str, Number]] | None = None
        self.spent: AggregatedReplies | None = None  # what it cost, if it ended without one
        self.why = ""  # why the round keeps the model; "" = it does not, or is not over
        self._phases: Round = rule.round(state, context)

    def begin(self) -> Phase | None:
        """Run the phases before the first training; return that, or None if the round is over."""
        phase = self._advance(None)
        while phase is not None and phase.name != TRAIN:
            phase = self._advance(self.engine.run(phase, self.grid))
        return phase

    def finish(self, folded: Folded | None) -> None:
        """Take the replies to the first training, if it was sent, and run the phases that follow it."""
        while folded is not None:
            phase = self._advance(folded)
            folded = self.engine.run(phase, self.grid) if phase else None
        self.engine.note_used(used=self.result is not None)

    def trained(self) -> AggregatedReplies | None:
        """Return the replies to the round's last training that had good ones, if any had."""
        done = [folded.reduced for phase, folded in self.engine.done if phase.name == TRAIN]
        return next((replies for replies in reversed(done) if replies), None)

    def skipped(self, state: ServerState, asked: int, came: AggregatedReplies | None) -> ServerState:
        """Return the state after a round without a new model; `came` are the replies that arrived."""
        engine = self.engine
        spent = self.spent = engine.spent(engine.nobody(), asked)
        after: ServerState | None
        after, why = attempt(lambda: self.rule.on_round_skipped(state, spent, came))
        if after is None:
            logger.warning("round %d keeps the rule's state: %s", engine.round, why)
            return state
        return after

    def _for_rule(self, phase: Phase, folded: Folded) -> AggregatedReplies:
        """Return the replies as the rule is to see them."""
        assert folded.reduced is not None
        found = (stage.for_rule(phase, folded, self.context) for stage in self.engine.stages)
        return next((replies for replies in found if replies), folded.reduced)

    def _advance(self, folded: Folded | None) -> Phase | None:
        """Give the rule the replies to its last phase; return its next one.

        None means that its round is over: with a result, or with a reason why the model stays.
        """
        self.result, self.why = None, ""
        try:
            if folded is None:
                return next(self._phases)
            phase, _ = self.engine.done[-1]
            good = len(folded.reduced.clients) if folded.reduced else 0
            why = too_few(phase.contract, self.engine.config, good, len(phase.to))
            if folded.reduced is None or good < phase.least:
                why = why or few(good, phase.least)
            if why or folded.reduced is None:
                return self._phases.throw(TooFewRepliesError(why, folded.quarantined))
            return self._phases.send(self._for_rule(phase, folded))
        except StopIteration as done:
            state, metrics = done.value
            if bad := not_finite(state):
                self.why = f"the rule's result has NaN or infinity in {bad!r}"
                return None
            try:
                self.result = replace(state, arrays=self.engine.coded(state.arrays)), metrics
            except FieldError as err:
                self.why = f"codec.down cannot code the rule's result: {err}"
        except TooFewRepliesError as err:
            self.why = str(err)
        except OURS:
            raise
        except OF_REPLIES as err:
            self.why = _cannot(err)
        return None

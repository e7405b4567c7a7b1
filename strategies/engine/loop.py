"""The round loop: train, evaluate, and record a round while the next one trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from strategies.engine.journal import Journal, Snapshot
from strategies.engine.refusals import refused_for_good, too_few_replies
from strategies.engine.rounds import RoundLog
from strategies.engine.rule import RoundContext
from strategies.engine.stage import Leave
from strategies.engine.standstill import Standstill
from strategies.engine.state import ServerState
from strategies.membership.client_registry import ClientRegistry
from task.config.attack_section import ATTACK_SUCCESS
from task.config.sections import ServerConfig
from task.features import against_divergence
from task.numerics.arrays import Arrays
from task.numerics.plateau import MEASURES, plateau
from task.text import logger
from task.wire.messages import pack_arrays

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine
    from task.tasks.metrics import Measures

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def is_due(server: ServerConfig, server_round: int, last: bool) -> bool:
    """Return whether the server measures models in a round."""
    return bool(server.evaluate_every) and (last or server_round % server.evaluate_every == 0)


def measuring(
    evaluate_fn: EvaluateFn | None, server: ServerConfig, server_round: int
) -> Callable[[Arrays], dict[str, float]]:
    """Return a function that evaluates models on the server's test set in a round.

    It returns nothing if there is no such set, or the round is not evaluated.
    """

    def measure(arrays: Arrays) -> dict[str, float]:
        if evaluate_fn is None or not is_due(server, server_round, server_round == server.num_server_rounds):
            return {}
        found = evaluate_fn(server_round, pack_arrays(arrays))
        values = {k: found.get(k) for k in ("loss", "accuracy")} if found else {}
        return {k: float(v) for k, v in values.items() if isinstance(v, int | float)}

    return measure


class RoundRunner(Protocol):
    """The interface that the loop needs of `strategies.strategy.Strategy`; see its methods."""

    engine: PhaseEngine
    registry: ClientRegistry
    state: ServerState | None
    why_kept: str

    def context(self, server_round: int, lr: float = 0.0) -> RoundContext: ...  # noqa: D102
    def evaluate_round(self, grid: Grid, config: ConfigRecord, log: RoundLog) -> MetricRecord | None: ...  # noqa: D102
    def finished(self) -> bool: ...  # noqa: D102
    def leaves(self) -> list[Leave]: ...  # noqa: D102
    def lr(self, server_round: int) -> float: ...  # noqa: D102
    def record(self) -> ArrayRecord: ...  # noqa: D102
    def restore(self, snapshot: Snapshot) -> None: ...  # noqa: D102
    def snapshot(self, server_round: int) -> Snapshot: ...  # noqa: D102
    def train_round(self, grid: Grid, config: ConfigRecord, log: RoundLog) -> MetricRecord | None: ...  # noqa: D102


@dataclass
class Loop:
    """One run of a strategy, from the start or from its journal's snapshot.

    With `overlap` the central evaluation runs in a thread of its own while the next round trains.
    """

    rounds: RoundRunner
    server: ServerConfig
    journal: Journal
    grid: Grid
    num_rounds: int
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    overlap: bool
    measures: Measures | None = None

    def __post_init__(self) -> None:
        self.result = Result()
        self._closing: Future[Any] | None = None  # the end of the last round
        self._ended = 0.0  # when the last round was done, on the rounds' clock
        self._last: int | None = None  # the last round that was done
        self._begin = 0  # the first round of this start; 0 is before the training
        self._measured: list[dict[str, Any]] = []  # by round, what `task.numerics.plateau` goes by
        config = self.rounds.engine.config
        self._still = Standstill(max(self.server.min_replies, 1), against_divergence(config))
        self._stuck = False  # whether later rounds cannot change the model
        self._warned = False  # whether a remark has said that the loss is not finite

    def run(self) -> Result:
        """Run the remaining rounds.

        Raises:
            NodesError: Too few nodes; or no round had enough good replies, and the journal takes that
                for an error: the last round is not written down then, so that a resume does it again.
            BouquetError: The same, for reasons that last, such as what the owners of the nodes allow; that
                ends the run as soon as it is clear.
        """
        target, rounds = self.server.target_accuracy, self.rounds
        waits = bool(target or self.server.plateau_rounds)  # whether the next round depends on the accuracy
        stop = self._restore()
        with ThreadPoolExecutor(1, "evaluation") as background:
            for server_round in range(self._begin, self.num_rounds + 1):
                if stop:
                    logger.info(
                        "the run ends before round %d: target or plateau reached, or budget spent",
                        server_round,
                    )
                    break
                log = self._round(server_round)
                self._last, over = server_round, rounds.finished() or self._stuck
                write_down = partial(self._write_down, log, rounds.snapshot(server_round))
                evaluate = partial(self._evaluate, log, rounds.record(), over)
                later: list[Callable[[], None]] = [write_down]
                if self.overlap and not waits:
                    later.insert(0, evaluate)
                else:
                    evaluate()
                central = self.evaluate_fn is not None and self.server.evaluate_every
                accuracy = log.values["accuracy" if central else "client_accuracy"]
                reached = bool(target) and accuracy is not None and accuracy >= target
                stop = reached or self._on_plateau(log) or over
                self._await_recording()  # the last round is written down first
                self._closing = background.submit(lambda steps: [step() for step in steps], later)
            self._await_recording()
        self._after_run()
        self.result.arrays = rounds.record()
        return self.result

    def _restore(self) -> bool:
        """Go back to the journal's snapshot, if there is one; return whether the run is over."""
        snapshot = self.journal.restore()
        if snapshot is None:
            return False
        self._begin = snapshot.round + 1
        self._still.trained = self.journal.trained()
        self.rounds.restore(snapshot)
        self._measured = [_measures(row) for row in self.journal.rows()] if self.server.plateau_rounds else []
        still = bool(self._measured) and self._plateau()
        return self.journal.reached(self.server.target_accuracy) or still or self.rounds.finished()

    def _on_plateau(self, log: RoundLog) -> bool:
        """Note a round's measures; return whether the metric has plateaued."""
        if not self.server.plateau_rounds:
            return False
        self._measured.append(_measures({"round": log.round, **log.values}))
        return self._plateau()

    def _plateau(self) -> bool:
        return plateau(self._measured, self.server.plateau_rounds, self.server.plateau_delta)

    def _after_run(self) -> None:
        """Run the stages' hooks after the last round."""
        rounds, last = self.rounds, self._last if self._last is not None else self._begin - 1
        assert rounds.state is not None
        for stage in rounds.engine.stages:
            stage.after_run(self.grid, last, rounds.context, rounds.lr(last + 1), rounds.state)

    def _after_round(self, log: RoundLog) -> None:
        """Let the stages measure, if the round is evaluated."""
        rounds, last = self.rounds, log.round == self.num_rounds
        if not is_due(self.server, log.round, last):
            return
        assert rounds.state is not None
        context = rounds.context(log.round)
        for stage in rounds.engine.stages:
            stage.after_round(self.grid, rounds.state, context, log)

    def _await_recording(self) -> None:
        """Wait until the last round is recorded; raise its errors here."""
        if self._closing is not None:
            self._closing.result()
            self._closing = None

    def _round(self, server_round: int) -> RoundLog:
        """Run one round except for its recording.

        Round 0 is only the evaluation of the initial model: by the server, and by the clients if it is
        the last.
        """
        log, last = RoundLog(server_round), server_round == self.num_rounds
        if server_round == 0:
            log.leaves = self.rounds.leaves()
            log.add(*self.rounds.engine.take_done())  # what was asked before the first round
        if server_round > 0:
            trained = self.rounds.train_round(self.grid, self.train_config, log)
            self._still.note(log)
            if trained is not None:
                self.result.train_metrics_clientapp[server_round] = trained
        if server_round > 0 or last:
            self._ask_clients(log)
        if server_round > 0:
            self._after_round(log)
            self._end_if_stuck(server_round)
        for stage in self.rounds.engine.stages:
            log.spent(stage.row(), secret=stage.hides)
        return log

    def _ask_clients(self, log: RoundLog) -> None:
        """Evaluate at the clients, if it is due.

        Raises:
            BouquetError: Nothing else is due in the run, and no client has evaluated the model.
        """
        seen = self.rounds.evaluate_round(self.grid, self.evaluate_config, log)
        if log.round == 0:
            log.values["population"] = len(self.rounds.registry.names)
        if seen is not None:
            self.result.evaluate_metrics_clientapp[log.round] = seen
        elif log.round == 0 and self.server.fraction_evaluate:
            lines = {line.client: line for line in log.quarantined}
            lasting = refused_for_good(lines, self.rounds.registry.names, 1)
            head = "expected at least one client that evaluates the model"
            raise too_few_replies(head, lines.values(), lasting)

    def _end_if_stuck(self, server_round: int) -> None:
        """End a run whose later rounds cannot train; what it has trained so far is its result.

        Raises:
            BouquetError: It has not trained.
        """
        last, names = server_round == self.num_rounds, self.rounds.registry.names
        error = self._still.error(server_round, names, self.rounds.why_kept, last=last)
        if error and not self._still.trained:
            self._await_recording()
            self.journal.nothing_trained(error)
        elif error and not last:
            self._stuck = True
            self.journal.stuck(f"after round {server_round}: {error}")

    def _evaluate(self, log: RoundLog, arrays: ArrayRecord, over: bool) -> None:
        """Evaluate the model after a round, if it is due. Reads nothing that the next round changes.

        `over` says that no round will follow, such as when a budget is spent.
        """
        if self.evaluate_fn and is_due(self.server, log.round, over or log.round == self.num_rounds):
            central = self.evaluate_fn(log.round, arrays)
            if central is not None:
                self.result.evaluate_metrics_serverapp[log.round] = central
                further: dict[str, Any] = self.measures.of_record(central) if self.measures else {}
                if ATTACK_SUCCESS in central:
                    further[ATTACK_SUCCESS] = central[ATTACK_SUCCESS]
                log.measured(further)
                log.values |= {"loss": central.get("loss"), "accuracy": central.get("accuracy")}
                self._check_loss(log)
        log.clock.lap("evaluate")

    def _check_loss(self, log: RoundLog) -> None:
        """Say once that the loss is not finite, and why that may be."""
        loss = log.values["loss"]
        if self._warned or not isinstance(loss, float) or math.isfinite(loss):
            return
        self._warned = True
        more = f". {self._still.remedy}" if self._still.remedy else ""
        self.journal.remark(f"warning: round {log.round}: the model's test loss is {loss}: it diverged{more}")

    def _write_down(self, log: RoundLog, snapshot: Snapshot) -> None:
        """Report a round to the journal. Reads nothing that the next round changes."""
        log.clock.begin(self._ended or log.clock.begun)
        for leave in log.leaves:
            leave(self.journal, snapshot.model)
        whole = self.rounds.engine.completed(snapshot.model)
        self.journal.round_done(log.row(snapshot.model, whole), log.clients, snapshot, log.clock)
        self._ended = log.clock.now


def _measures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("round", *MEASURES)}

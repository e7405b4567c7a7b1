"""The rounds, one after the other: train, evaluate, write down, the last beside the next one's training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from strategies.engine.journal import Snapshot
from strategies.engine.recovery import Kept
from strategies.engine.rounds import RoundLog
from strategies.engine.state import ServerState
from task.errors import NodesError
from task.numerics.arrays import Arrays

if TYPE_CHECKING:
    from strategies.engine.strategy import Strategy

logger = logging.getLogger("flwr")  # in another Flower app these lines stand among Flower's own
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class Loop:
    """One run of a strategy, from its begin or from where its journal resumes it.

    Args:
        strategy: The rule, with its initial state.
        grid: Where the nodes are.
        num_rounds: Rounds in all.
        train_config: Further entries for training messages.
        evaluate_config: The same for evaluation messages.
        evaluate_fn: Central evaluation.
        overlap: Whether to evaluate in a thread of its own while the next round trains.
    """

    strategy: Strategy
    grid: Grid
    num_rounds: int
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    overlap: bool

    def __post_init__(self) -> None:
        self.result = Result()
        self._closing: Future[Any] | None = None  # the end of the round before
        self._ended = 0.0  # when the last round was done, on the rounds' clock
        self._begin = 0  # the first round of this start; 0 is before the training
        self._trained = False  # whether a round changed the model, or could have

    def run(self) -> Result:
        """Do the rounds that are left.

        Raises:
            NodesError: Too few nodes; or no round had enough good replies, and the journal takes that
                for an error: the last round is not written down then, so that a resume does it again.
        """
        strategy = self.strategy
        server = strategy.config.server
        stop = self._restore()
        with ThreadPoolExecutor(1, "evaluation") as background:
            for server_round in range(self._begin, self.num_rounds + 1):
                if stop:
                    logger.info(
                        "the run is over before round %d: target reached or budget spent", server_round
                    )
                    break
                log = self._round(server_round)
                assert strategy.state is not None
                later: list[Callable[[], None]] = [
                    partial(
                        self._write_down,
                        log,
                        strategy.state,
                        strategy.cohorts.selector.dump() | strategy.last_good.dump(),
                        strategy.last_good.kept,
                    )
                ]
                evaluate = partial(self._evaluate, log, strategy.record())
                if self.overlap and not server.target_accuracy:
                    later.insert(0, evaluate)
                else:
                    evaluate()
                central = self.evaluate_fn is not None and server.evaluate_every
                accuracy = log.values["accuracy" if central else "client_accuracy"]
                stop = bool(server.target_accuracy) and accuracy is not None
                stop = (stop and accuracy >= server.target_accuracy) or strategy.rule.finished(strategy.state)
                self._settle()  # the round before is written down first
                self._closing = background.submit(_call_all, later)
            self._settle()
        self.result.arrays = strategy.record()
        return self.result

    def _restore(self) -> bool:
        """Go back to the journal's snapshot, if there is one; return whether the run is over."""
        strategy, journal = self.strategy, self.strategy.engine.journal
        snapshot = journal.restore()
        if snapshot is None:
            return False
        self._begin = snapshot.round + 1
        self._trained = journal.trained()
        state = strategy.restore(snapshot)
        return journal.reached(strategy.config.server.target_accuracy) or strategy.rule.finished(state)

    def _settle(self) -> None:
        """Wait for the end of the round before; what went wrong there is raised here."""
        if self._closing is not None:
            self._closing.result()
            self._closing = None

    def _round(self, server_round: int) -> RoundLog:
        """Do one round but for its end; round 0 is only the evaluation of the initial model."""
        log = RoundLog(server_round)
        if server_round > 0:
            strategy = self.strategy
            self._train(server_round, log)
            self._evaluate_clients(server_round, log)
            dropped = log.values["selected"] and not log.values["asked"]  # as the run's own keys will have it
            self._trained = self._trained or not log.values["skipped"] or dropped
            if server_round == self.num_rounds and not self._trained:
                self._settle()
                strategy.engine.journal.nothing_trained(self._nothing_trained(server_round))
        return log

    def _nothing_trained(self, server_round: int) -> NodesError:
        least = max(self.strategy.config.server.min_replies, 1)
        return NodesError(
            f"rounds {max(self._begin, 1)} to {server_round}: expected at least {least} usable replies "
            '(run-config key "min-replies") in one of them; got fewer, and the model is as before. The lines '
            "on quarantined replies say why. Mend the nodes and resume the run; it does the last round again."
        )

    def _evaluate(self, log: RoundLog, arrays: ArrayRecord) -> None:
        """Evaluate the model after a round, if it is due. Reads nothing that the next round changes."""
        every = self.strategy.config.server.evaluate_every
        if self.evaluate_fn and every and (log.round % every == 0 or log.round == self.num_rounds):
            central = self.evaluate_fn(log.round, arrays)
            if central is not None:
                self.result.evaluate_metrics_serverapp[log.round] = central
                log.values |= {"loss": central.get("loss"), "accuracy": central.get("accuracy")}
        log.clock.lap("evaluate")

    def _write_down(self, log: RoundLog, state: ServerState, memory: Arrays, kept: Kept | None) -> None:
        """Tell the journal of a round. Reads nothing that the next round changes."""
        log.clock.begin(self._ended or log.clock.begun)
        good = Snapshot.of(kept.round, kept.state) if kept else None
        row, snapshot = log.row(state.arrays), Snapshot.of(log.round, state, memory, good)
        self.strategy.engine.journal.round_done(row, log.clients, snapshot, log.clock)
        self._ended = log.clock.now

    def _train(self, server_round: int, log: RoundLog) -> None:
        strategy = self.strategy
        strategy.register(self.grid, server_round)
        log.clock.lap("roll-call")
        strategy.configure_train(server_round, strategy.record(), self.train_config, self.grid)
        log.clock.lap("select")
        arrays, metrics = strategy.aggregate_train(server_round, strategy.stream(self.grid))
        if metrics is not None:
            self.result.train_metrics_clientapp[server_round] = metrics
        strategy.book(log, skipped=arrays is None or strategy.rolled_back is not None)
        log.clock.lap("train")

    def _evaluate_clients(self, server_round: int, log: RoundLog) -> None:
        strategy = self.strategy
        requests = list(
            strategy.configure_evaluate(server_round, strategy.record(), self.evaluate_config, self.grid)
        )
        if not requests:
            return
        seen = strategy.aggregate_evaluate(server_round, strategy.stream(self.grid))
        log.book(*strategy.engine.settle())
        if seen is not None:
            self.result.evaluate_metrics_clientapp[server_round] = seen
            log.values |= {"client_loss": seen.get("loss"), "client_accuracy": seen.get("accuracy")}
            counts = strategy.client_counts
            log.values["client_counts"] = {
                f"client_{k}": counts[k] for k in ("loss", "accuracy") if k in counts
            }
        log.clock.lap("evaluate-clients")


def _call_all(steps: Iterable[Callable[[], None]]) -> None:
    for step in steps:
        step()

"""The Flower ``Strategy`` of every rule: a thin shell around the rule and the phase engine.

restore -> registration -> each round: draw clients by name, the rule's phases, evaluation, row, checkpoint.

A subclass names its rule; nothing here is overridden. Flower's four verbs (``configure_train`` ...
``aggregate_evaluate``) are the steps of the loop, so that Flower's wrappers can drive a rule too:
``configure_train`` runs the phases before the first training and returns that one's messages,
``aggregate_train`` takes its replies and runs the phases that follow. Driven so, each node answers with one
model, that of its share of the clients (`strategies.membership.stock_clients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from strategies.engine.arguments import configured
from strategies.engine.channel import Opened
from strategies.engine.cohort import Cohorts, RoundPlan
from strategies.engine.journal import Journal, Snapshot
from strategies.engine.loop import EvaluateFn, Loop, measuring
from strategies.engine.phases import Extra, PhaseEngine
from strategies.engine.rounds import RoundLog
from strategies.engine.rule import EVALUATE, RoundContext, Rule
from strategies.engine.rule_round import RuleRound, attempt, open_rule, run_until
from strategies.engine.stage import Leave, RoundEnd
from strategies.engine.state import AggregatedReplies, Number, ServerState, too_few
from strategies.membership.client_registry import registry_of
from strategies.membership.stock_clients import check_loop, check_plain, merges
from strategies.stages import stages_of
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.schedule import learning_rate
from task.text import logger
from task.wire import messages as wire

if TYPE_CHECKING:  # it imports torch
    from task.tasks.metrics import Measures, Value


class Strategy(FlowerStrategy):
    """A server rule with the round loop around it.

    Args:
        config: The whole run, where Bouquet's own app makes the strategy. Without one, all defaults.
        knobs: The keys of the algorithm and of the server, and ``seed``, by name, on top of `config`:
            ``FedProx(mu=0.1, fraction_train=0.1, seed=7)``. The signature has them.

    Raises:
        ConfigError: An unknown knob, one out of range, or one that was set and that nothing in the run reads.
    """

    # The rule; a subclass gives it: ``class FedAvg(Strategy, rule=fedavg.FedAvg)``.
    rule_type: ClassVar[type[Rule]]
    algorithm: ClassVar[str]  # name of the rule's catalogue entry
    # The rule's pure ``server_update``.
    update: ClassVar[Callable[[Any, AggregatedReplies, Config], tuple[Any, dict[str, Number]]]]

    def __init_subclass__(cls, rule: type[Rule] | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if rule is not None:
            cls.rule_type, cls.algorithm, cls.update = rule, rule.algorithm, staticmethod(rule.update)

    def __init__(self, config: Config | None = None, **knobs: Any) -> None:
        self.config, self.entry = configured(self.rule_type.algorithm, config, knobs)
        self.rule = self.rule_type(self.config)
        self.registry = registry_of(self.config, self.entry)
        # Without a config the clients may not follow the default keys.
        limited = config is not None and not self.entry.pooled
        self.engine = PhaseEngine(self.config, self.registry, limited=limited)
        self.engine.use(stages_of(self.engine, self.entry))
        self.cohorts = Cohorts(self.config, self.entry, self.rule, self.registry, self.engine.stages)
        self.state: ServerState | None = None
        self.last_metrics: dict[str, Number] = {}
        self._plan = RoundPlan((), {}, ())
        self._round: RuleRound | None = None
        self._opened: Opened | None = None
        self._in_start = False
        self._evaluate_fn: EvaluateFn | None = None
        self.last_good, self.why_kept = self.engine.last_good, ""  # why the last skipped round was skipped
        self.rolled_back: int | None = None  # the round whose model the present round was rolled back to
        self.client_metrics: dict[str, Value] = {}  # further ones of the last evaluation
        self.client_counts: dict[str, int] = {}  # by metric of the last evaluation: clients that sent it

    # ------------------------------------------------------------------ Flower's verbs

    def summary(self) -> None:
        """Log what is about to run."""
        share = self.config.server.fraction_train
        logger.info("%s, seed %d, C=%g", self.entry.title, self.config.seed, share)

    def lr(self, server_round: int) -> float:
        """Return eta_t."""
        return learning_rate(self.config.train, server_round, self.config.server.num_server_rounds)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients and write one message per node.

        The policy's query of candidates and the rule's phases before its training take place here.

        Raises:
            ConfigError: A loop other than `start` asks, and the clients do not send one model each.
        """
        lr = float(given) if isinstance(given := config.get("lr"), int | float) else self.lr(server_round)
        self.engine.begin(server_round, lr, cast(Extra, dict(config)))
        self._round = self._opened = None
        state = self._sync(arrays)
        self.last_good.begin(server_round, state)
        self.rolled_back = None
        if self._driven:
            check_loop(self.entry, self.config)
            self.registry.membership.count_whole_nodes(merges(self.entry))
        if not self._in_start:  # else `train_round` has
            self._register(grid, server_round)
        context, run = self.context(server_round, lr), partial(self.engine.run, grid=grid)
        seconds = partial(self.cohorts.alone, state=state, context=context)
        state = self._take(self.rule.counted(self.rule.begin(state, context, seconds), context))
        plan = self._plan = self.cohorts.draw(state, context, run)
        most = min(self.config.server.enough_replies or plan.asked, plan.asked)
        if server_round <= 1 and (why := too_few(self.entry, self.config, most, plan.asked)):
            raise ConfigError(why)  # a later round goes on with the clients that are online
        context = replace(context, cohort=plan.cohort, epochs=plan.epochs, groups=plan.groups)
        self._round = RuleRound(self.rule, state, context, self.engine, grid)
        phase = self._round.begin()
        if phase is None:
            return []  # the round is skipped
        self._opened = self.engine.open(phase)
        if self._driven:
            check_plain(self.entry, [wire.clients_of(m) for m in self._opened.requests])
        return self._opened.requests

    @property
    def _driven(self) -> bool:
        """Whether another loop than `start`, or one that a subclass puts in its place, drives the rounds."""
        return not self._in_start and type(self).start is Strategy.start

    def context(self, server_round: int, lr: float = 0.0) -> RoundContext:
        """Return what the rule knows of a round, without its cohort."""
        engine, clients = self.engine, self.registry
        measure = measuring(self._evaluate_fn, self.config.server, server_round)
        known = clients.names, engine.trainable, clients.num_examples, measure, clients.most_examples
        context = RoundContext(
            self.rule, self.entry, server_round, lr, (), *known, remark=engine.journal.remark,
            distil=engine.distil, known=clients.known.names,
        )  # fmt: skip
        for stage in engine.stages:
            context = replace(context, **stage.offers())
        return context

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies in as they come and apply the rule; (None, None) if too few were good.

        If most clients diverge from the model, the server may go back (`strategies.engine.recovery`).
        """
        assert self.state is not None
        assert self._round is not None
        opened, self._opened = self._opened, None
        folded = self.engine.close(opened, replies) if opened else None
        _, why = attempt(lambda: self.cohorts.observe(folded.metrics if folded else {}))
        if why:
            logger.warning("round %d: the selection cannot use these replies: %s", server_round, why)
        self._round.finish(folded)
        asked, came, self.last_metrics = self._plan.asked, self._round.trained(), {}
        if self._goes_back(server_round):
            self._take(self._round.skipped(self.state, asked, None))
            return self.record(), MetricRecord({})
        if self._round.result is not None:
            assert came is not None
            state, self.last_metrics = self._round.result
            self.last_good.updated(self.engine.journal.stored)
            self._take(state)
            return self.record(), MetricRecord({**came.example_means(), **self.last_metrics})
        self.why_kept = self._round.why
        logger.warning("round %d keeps the model: %s", server_round, self.why_kept)
        self._take(self._round.skipped(self.state, asked, came))
        return None, None

    def _goes_back(self, server_round: int) -> bool:
        """Take up a kept state if most clients diverge from the present one; say so."""
        assert self.state is not None
        kept = self.last_good.judge([folded for _, folded in self.engine.done], self._plan.asked)
        if kept is None:
            return False
        logger.warning(
            "round %d: most clients diverge from the model of round %d; rolling back to the model "
            "after round %d",
            server_round, server_round - 1, kept.round,
        )  # fmt: skip
        self.rolled_back = kept.round
        self._take(self.rule.roll_back(kept.state, self.state))
        return True

    def _take(self, state: ServerState) -> ServerState:
        self.state, self.engine.model = state, state.arrays
        return state

    def record(self) -> ArrayRecord:
        """Return the model as sent."""
        assert self.state is not None
        return self.engine.record(self.state.arrays)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate and write one message per node."""
        self._opened = None
        if not self.config.server.clients_evaluate(server_round):
            return []
        self.engine.register(grid, server_round)
        clients = self.cohorts.evaluating(server_round)
        self.engine.extra = cast(Extra, dict(config))
        context = replace(self.context(server_round), cohort=tuple(clients))
        phase = run_until(EVALUATE, self.rule.evaluation(self._sync(arrays), context), self.engine, grid)
        self._opened = self.engine.open(phase) if phase else None
        return self._opened.requests if self._opened else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average each metric over the clients that sent it, by their examples; None without answers."""
        opened, self._opened = self._opened, None
        reduced = self.engine.close(opened, replies).reduced if opened else None
        self.client_counts, self.client_metrics = {}, {}
        if reduced is None:
            return None
        self.client_counts = reduced.senders()
        if self.entry.metrics:
            self.client_metrics = self.engine.measured(reduced)
        return MetricRecord({**reduced.example_means(), wire.NUM_EXAMPLES: int(reduced.num_examples.sum())})

    # ------------------------------------------------------------------ the loop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        journal: Journal | None = None,
        trainable: tuple[str, ...] = (),
        overlap: bool = False,
        measures: Measures | None = None,
    ) -> Result:
        """Run the rounds; Flower's signature and result, with four arguments more.

        Args:
            grid: Where the nodes are.
            initial_arrays: w^0, parameters and buffers.
            num_rounds: Rounds in all, those before a resume included.
            timeout: Seconds after which a round closes without the missing; None = ``round_timeout``,
                which is Flower's 3600 unless set.
            train_config: Further entries for the ``config`` of training messages; ``lr`` replaces
                ``learning-rate``.
            evaluate_config: The same for evaluation messages.
            evaluate_fn: Central evaluation; called for round 0 and every ``evaluate-every`` rounds.
            journal: Takes rows and checkpoints, and gives the one to resume from.
            trainable: Names of the parameters; empty = all floating arrays but running statistics.
            overlap: Call `evaluate_fn` in a thread of its own, as the journal is written, while the next
                round trains; without effect where that depends on the accuracy (``target-accuracy``).
            measures: The run's further metrics (run-config key ``metrics``).

        Raises:
            NodesError: Too few nodes for ``roll-call-timeout``, or not one round with enough good replies.
            BouquetError: The reasons of the replies last, see `strategies.engine.refusals`.
            ConfigError: The clients send sums for further metrics, and `measures` is missing.
        """
        engine = self.engine
        engine.measures = engine.measures if measures is None else measures
        if self.entry.metrics and not engine.measures:
            raise ConfigError('run-config key "metrics": expected start(measures=...), too; got none')
        engine.timeout_s = self.config.server.round_timeout if timeout is None else timeout
        engine.journal = journal or Journal()
        engine.run_id = engine.journal.run_id or engine.run_id
        engine.trainable = trainable or engine.trainable
        self._sync(initial_arrays)
        del initial_arrays  # the state has them, as long as it needs them
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        self.summary()
        self.registry.membership.count_whole_nodes(False)
        self._in_start, self._evaluate_fn = True, evaluate_fn
        try:
            for stage in engine.stages:
                stage.learn(grid)
            open_rule(self.rule, self.context, engine, grid)
            what = engine.journal, grid, num_rounds, *configs, evaluate_fn, overlap, engine.measures
            return Loop(self, self.config.server, *what).run()
        finally:
            self._in_start = False
            for stage in engine.stages:
                stage.close()

    def train_round(self, grid: Grid, config: ConfigRecord, log: RoundLog) -> MetricRecord | None:
        """Train in a round and record it; return the clients' metrics, None if it was skipped."""
        self._register(grid, log.round)
        log.clock.lap("roll_call")
        self.configure_train(log.round, self.record(), config, grid)
        assert self._round is not None
        log.clock.lap("train" if self._round.context.arrivals else "select")
        arrays, metrics = self.aggregate_train(log.round, self._replies(grid))
        log.leaves = self.leaves()
        done, bytes_down = self.engine.take_done()
        log.add(done, bytes_down)
        skipped = arrays is None or self.rolled_back is not None
        log.trained(self._plan, self.engine.lr if self.entry.learns else None, skipped, self.last_metrics)
        if log.values["train_loss"] is None and metrics is not None:  # no client's own is known
            log.values["train_loss"] = metrics.get(wire.TRAIN_LOSS)
        log.values |= {"population": len(self.registry.names), "rolled_back": self.rolled_back}
        log.values["simulated_seconds"] = self.cohorts.seconds(done)
        for stage in self.engine.stages:
            stage.timed(log, self.cohorts.busy)
        log.clock.lap("train")
        return metrics

    def leaves(self) -> list[Leave]:
        """Return what writes down what the round leaves, before its phases are added to it."""
        assert self.state is not None
        end = RoundEnd(self._round, self._plan, self.state, self.rolled_back)
        return [leave for stage in self.engine.stages if (leave := stage.leaves(end))]

    def evaluate_round(self, grid: Grid, config: ConfigRecord, log: RoundLog) -> MetricRecord | None:
        """Evaluate at the clients, if it is due, and record it; return their metrics."""
        if not self.configure_evaluate(log.round, self.record(), config, grid):
            return None
        seen = self.aggregate_evaluate(log.round, self._replies(grid))
        log.add(*self.engine.take_done())
        if seen is not None:
            log.evaluated(dict(seen), self.client_counts, self.client_metrics)
        log.clock.lap("evaluate_clients")
        return seen

    def finished(self) -> bool:
        """Return whether the rule has nothing more to do, or a feature ends the run."""
        assert self.state is not None
        return self.rule.finished(self.state) or any(stage.finished() for stage in self.engine.stages)

    def snapshot(self, server_round: int) -> Snapshot:
        """Return everything that the next round depends on."""
        assert self.state is not None
        known = self.registry.dump(examples=self.rule.counts_examples)
        memory = self.cohorts.dump() | self.engine.dump() | known
        return Snapshot.of(server_round, self.state, memory, self.last_good.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        assert self.state is not None
        self.cohorts.load(snapshot.arrays)
        self.registry.known.load(snapshot.arrays)
        self.engine.load(snapshot.arrays, snapshot.round)
        form = type(self.state)
        self.last_good.load(snapshot.arrays, snapshot.good, form)
        self._take(snapshot.state(form))

    def _register(self, grid: Grid, server_round: int) -> None:
        """Register the clients that are online; wait if they are too few for the round."""
        self.engine.register(grid, server_round, self.config.server.min_replies)
        self.engine.enrolled()
        self.engine.journal.participants(self.registry.participants(), self.registry.left_out())

    def _replies(self, grid: Grid) -> Iterable[Message]:
        """Send the messages that were configured last; return the replies as they come."""
        return self.engine.stream(self._opened, grid) if self._opened else ()

    def _sync(self, arrays: ArrayRecord) -> ServerState:
        """Use a model that was passed in; a no-op if it is the packed one."""
        if self.state is not None and arrays is self.record():
            return self.state
        given = wire.views(arrays)
        trainable = self.engine.trains(given)
        if self.state is None:
            state = self.rule.initial_state(given, trainable)
            self.engine.hold(state.arrays, arrays)
        else:
            state = replace(self.state, arrays=wire.as_ours(given, self.state.arrays))
        return self._take(state)

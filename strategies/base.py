"""The one round loop, and the Flower ``Strategy`` that every server rule is.

restore -> roll call -> for each round: draw clients by name -> one message per node -> replies folded in
as they come -> at the deadline, or when enough are in, the rule's update -> evaluation -> one row and a
checkpoint -> next.

A rule subclasses `Strategy`, names its catalogue entry and gives its pure ``server_update``; nothing
here is overridden. Flower's four verbs (``configure_train`` ... ``aggregate_evaluate``) are the steps of
the loop, so that Flower's wrappers can drive a rule too: then each node answers with one model, that of its
share of the clients (`strategies.foreign`).
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from strategies import presence
from strategies.devices import FORWARD, Devices, Times, round_seconds, traffic, work_of
from strategies.exchange import Terms, clients_of, stream_replies
from strategies.fold import Fold, Folded, most_bytes
from strategies.foreign import check_loop, check_plain, lost_on_foreign_clients, merges
from strategies.journal import Journal, Snapshot
from strategies.loop import EvaluateFn, Loop
from strategies.orders import Extra, Writer
from strategies.plan import RoundPlan, plan_round
from strategies.quorum import too_few
from strategies.recovery import Kept, LastGood
from strategies.roster import Roster
from strategies.rounds import RoundLog
from strategies.selection import SELECTORS, Pool
from strategies.state import Number, Reduced, ServerState, not_finite
from task import seeds, wire
from task.algorithms import ALGORITHMS
from task.arrays import Arrays, holdings, presumed_trainable
from task.config import as_run_config, defaults
from task.contract import contract_of
from task.datasets import DATASETS
from task.effective import check_read
from task.entry import Algorithm, evaluation_of
from task.errors import ConfigError, StateError, choose_from
from task.knobs import Config, ServerConfig
from task.metrics import weighted_mean
from task.norms import NormBound
from task.seeds import rng_for
from task.selections import CANDIDATES, LOSS, SELECTIONS

logger = logging.getLogger("flwr")  # in somebody else's app these lines stand among Flower's own
T = TypeVar("T")
FLOWER_NAMES = {"min_available_nodes": "min_nodes", "min_train_nodes": "min_replies"}


class Strategy(Writer, FlowerStrategy):
    """A server rule with the round loop around it.

    Args:
        config: The run, as read from the run config. Without one, all defaults.
        knobs: Fields of `ServerConfig`, ``seed``, or Flower's names for them, on top of `config`, e.g.
            ``FedAvg(fraction_train=0.1, seed=7)``.

    Raises:
        ConfigError: An unknown knob, or one that was set and that nothing in the run reads.
    """

    algorithm: ClassVar[str]

    def __init__(self, config: Config | None = None, **knobs: Any) -> None:
        self.config = _with_knobs(config or Config(algorithm=self.algorithm), knobs)
        self._knows_work = config is not None  # else the clients may do other work than the default keys say
        server = self.config.server
        mine = ALGORITHMS[self.config.algorithm].rule == ALGORITHMS[self.algorithm].rule
        name = self.config.algorithm if mine else self.algorithm
        named = replace(self.config, algorithm=name)
        check_read(as_run_config(named), defaults())
        self.entry: Algorithm = contract_of(named)
        self.selector = SELECTORS[server.selection](self.config)
        self.devices = Devices(self.config.devices, self.config.seed)
        self.simulated_s = 0.0  # what the round would take on the devices of the trace
        self.roster = Roster(server.roll_call_timeout, server.min_nodes)
        self.roster.presence.lost_on_foreign = lost_on_foreign_clients(self.entry, self.config)
        self._in_start = False
        self.timeout_s = server.round_timeout
        self.state: ServerState | None = None
        self.trainable: tuple[str, ...] = ()
        self.journal = Journal()
        self._packed: ArrayRecord | None = None  # the state's arrays as sent; packed once a round
        self._packed_fields: dict[str, ArrayRecord] = {}
        self._requests: list[Message] = []
        self._run_id = uuid.uuid4().hex
        self._before: Folded | None = None  # what the exchange before the training gave
        self._preceding: list[Folded] = []  # all exchanges of the round before its training
        self._began, self._bytes = 0.0, 0
        self._plan = RoundPlan(0, (), {}, ())
        self._good = 0  # clients with a good reply in the exchange that goes on
        self._lr = 0.0
        self.last: Folded = Folded(None, [], {}, 0)
        self.last_metrics: dict[str, Number] = {}
        self.last_good = LastGood()
        self.rolled_back: int | None = None  # the round whose model the present round went back to
        self.client_counts: dict[str, int] = {}  # by metric of the last evaluation: clients that sent it

    # ------------------------------------------------------------------ what a rule gives

    @staticmethod
    @abstractmethod
    def update(state: Any, reduced: Reduced, config: Config) -> tuple[Any, dict[str, Number]]:
        """Return the next state and the rule's metrics: the module's pure ``server_update``."""

    def initial_state(self, arrays: Arrays) -> ServerState:
        """Return the state before round 1; ``self.trainable`` names the parameters among the arrays."""
        return ServerState(arrays)

    def prepare(self, state: ServerState, reduced: Reduced) -> ServerState:
        """Take in what the exchange before the training gave, if the entry has one."""
        return state

    def skipped(self, state: ServerState, reduced: Reduced) -> ServerState:
        """Take in a round with too few good replies; the model must stay. `reduced` has no clients."""
        return state

    def back(self, good: ServerState, state: ServerState) -> ServerState:
        """Return the state to go on with when clients diverge from `state` and did not from `good`."""
        return good

    def limits(self, clients: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return by client upper limits of its scalars: what follows from its registration and its order."""
        if not self._knows_work or self.entry.pooled:
            return {}
        targets = DATASETS[self.config.data.dataset].targets
        most = self.roster.most_examples(clients)
        return {client: {wire.NUM_EXAMPLES: n * targets} for client, n in most.items()}

    def finished(self, state: ServerState) -> bool:
        """Return whether the rule has nothing more to do, a budget being spent."""
        return False

    # ------------------------------------------------------------------ Flower's verbs

    def summary(self) -> None:
        """Log what is about to run."""
        logger.info(
            "%s, seed %d, C=%g", self.entry.title, self.config.seed, self.config.server.fraction_train
        )

    def lr(self, server_round: int) -> float:
        """Return eta_t = eta_0 * decay^(t-1)."""
        train = self.config.train
        return train.learning_rate * train.lr_decay ** (server_round - 1)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients and write one message per node.

        If the policy asks candidates, or the entry has an exchange before the training, it takes place here.

        Raises:
            ConfigError: A loop other than `start` asks, and the clients do not send one model each.
        """
        self._began, self._bytes, self._before, self._preceding = time.perf_counter(), 0, None, []
        self.last_good.begin(server_round, self._sync(arrays))
        self.rolled_back = None
        if self._driven:
            check_loop(self.entry, self.config)
            self.roster.presence.count_whole_nodes(merges(self.entry))
        self.call_roll(grid, server_round)
        given = config.get("lr")
        self._lr = float(given) if isinstance(given, int | float) else self.lr(server_round)
        extra = cast(Extra, dict(config))
        self._plan = self._choose(server_round, extra, grid)
        most = min(self.config.server.enough_replies or self._plan.asked, self._plan.asked)
        why = too_few(self.entry, self.config, most, self._plan.asked)
        if why and server_round <= 1:  # later the run goes on with whoever is there
            raise ConfigError(why)
        if self.entry.before:
            self._exchange_before(self.entry.before, server_round, extra, grid)
            if len(self._before_clients()) < max(self.config.server.min_replies, 1):
                self._requests = []  # nothing to train with: the round is skipped
                return []
        self._requests = self._orders(self.entry, "train", server_round, extra)
        if self._driven:
            check_plain(self.entry, [clients_of(m) for m in self._requests])
        return self._requests

    @property
    def _driven(self) -> bool:
        """Whether another loop than `start`, or one that a subclass puts in its place, drives the rounds."""
        return not self._in_start and type(self).start is Strategy.start

    def _choose(self, server_round: int, extra: Extra, grid: Grid) -> RoundPlan:
        """Let the policy draw the round's clients, after it has asked its candidates for their loss."""
        pool = Pool(self.roster, self.config, server_round, self._times)
        candidates = self.selector.candidates(pool)
        losses: dict[str, float] = {}
        self.simulated_s = 0.0
        if candidates:
            query = SELECTIONS[self.config.server.selection].query
            assert query is not None
            requests = self._questions(query, server_round, candidates, f"evaluate.{CANDIDATES}", extra)
            self._bytes += sum(wire.payload_bytes(m.content) for m in requests)
            answers = self._exchange(query, server_round, requests, grid).metrics
            losses = {client: row[LOSS.name] for client, row in answers.items()}
            self.simulated_s = self._seconds(self._times(candidates, query=query))
        drawn = self.selector.select(pool, candidates, losses)
        if self.entry.pooled:
            drawn = list(drawn)[:1]  # the data of all, once
        plan = plan_round(self.config, self.roster, server_round, drawn)
        dropped = set(plan.dropped)
        asked = [c for c in plan.clients if c not in dropped]
        self.simulated_s += self._seconds(self._times(asked, plan.epochs))
        return plan

    def _times(
        self,
        names: Sequence[str],
        epochs: Mapping[str, int] = MappingProxyType({}),
        query: Algorithm | None = None,
    ) -> Times:
        """Return the simulated seconds of clients for a round's training, or for a query."""
        assert self.state is not None
        entry = query or self.entry
        steps = int(self.down_scalars(self.state).get(wire.LOCAL_STEPS, 0))
        train = replace(self.config.train, local_steps=steps) if steps else self.config.train
        counts = self.roster.num_examples(names)
        pairs = ((c, counts[c]) for c in names)
        work = [FORWARD * n if query else work_of(entry, train, n, epochs.get(c, 0)) for c, n in pairs]
        moved = traffic(entry, self.state.arrays, self.trainable, self.gifts_each(self.state))
        return self.devices.times(names, work, *moved)

    def _seconds(self, times: Times) -> float:
        return round_seconds(times, self.config.devices.uplink == "shared")

    def _exchange(self, entry: Algorithm, server_round: int, requests: list[Message], grid: Grid) -> Folded:
        """Send messages that precede the training and return what the replies came to."""
        terms = self.terms(entry, server_round, requests)
        replies = stream_replies(
            grid, requests, self.timeout_s, terms
        )  # a message has its id once it was sent
        fold = self._fold(entry, server_round, requests, training=True)
        fold.run(replies)
        late = f"a reply within {self.timeout_s:g} s"
        folded = fold.finish(late=late, lr=self._lr, trainable=self.trainable)
        self._bytes += fold.bytes_up + terms.bytes_again
        self.journal.quarantined(folded.quarantined)
        self._preceding.append(folded)
        return folded

    def _exchange_before(self, entry: Algorithm, server_round: int, extra: Extra, grid: Grid) -> None:
        requests = self._orders(entry, f"train.{wire.BEFORE}", server_round, extra)
        self._before = self._exchange(entry, server_round, requests, grid)
        reduced = self._before.reduced
        good = set(reduced.clients) if reduced else set()
        self._plan = replace(
            self._plan, failed=tuple(c for c in self._plan.clients if c not in good | set(self._plan.dropped))
        )
        if reduced is not None:
            assert self.state is not None
            given = replace(reduced, population=len(self.roster.names))
            state, why = _attempt(lambda: self.prepare(cast(ServerState, self.state), given))
            if state is None:
                logger.warning("round %d does not train: %s", server_round, why)
                self._before = None
                return
            self.state = state
            self._packed_fields = {}

    def _before_clients(self) -> tuple[str, ...]:
        """Return who took part in the exchange before the training."""
        return self._before.reduced.clients if self._before and self._before.reduced else ()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies in as they come and apply the rule; (None, None) if too few were good.

        If most clients diverge from a model that has not proved itself (`strategies.recovery`), the server
        goes back to the last one that has, and the round is over.
        """
        assert self.state is not None
        fold = self._fold(self.entry, server_round, self._requests, training=True)
        fold.run(replies, self.config.server.enough_replies)
        late = f"a reply within {self.timeout_s:g} s"
        if self.config.server.enough_replies and fold.answered >= self.config.server.enough_replies:
            late = f"a reply before {self.config.server.enough_replies} others were in"
        self.last = fold.finish(late=late, lr=self._lr, trainable=self.trainable)
        self.journal.quarantined(self.last.quarantined)
        pool = Pool(self.roster, self.config, server_round, self._times)
        _, why = _attempt(lambda: self.selector.told(pool, self.last.metrics))
        if why:
            logger.warning("round %d: the selection does not learn from these replies: %s", server_round, why)
        kept = self.last_good.judge([*self._preceding, self.last], self._plan.asked)
        if kept is not None:
            return self._go_back(kept, server_round)
        reduced = self.last.reduced
        good = len(reduced.clients) if reduced else 0
        why = too_few(self.entry, self.config, good, self._plan.asked)
        if reduced is not None and good >= self.config.server.min_replies and not why:
            reduced = self._spent(reduced)
            why = self._update(reduced)
            if not why:
                self.last_good.updated()
                self._packed, self._packed_fields = wire.pack_arrays(self.state.arrays), {}
                metrics = {k: v for k in reduced.scalars if (v := reduced.example_mean(k)) is not None}
                return self._packed, MetricRecord({**metrics, **self.last_metrics})
        if why:
            logger.warning("round %d keeps the model: %s", server_round, why)
        self._skip(server_round)
        return None, None

    def _go_back(self, kept: Kept, server_round: int) -> tuple[ArrayRecord, MetricRecord]:
        """Take up a kept state; the round's replies are not used."""
        assert self.state is not None
        logger.warning(
            "round %d: most clients diverge from the model of round %d; the run goes back to the model after "
            "round %d",
            server_round, server_round - 1, kept.round,
        )  # fmt: skip
        self.rolled_back, self.state = kept.round, self.back(kept.state, self.state)
        self._skip(server_round)
        self._packed = wire.pack_arrays(self.state.arrays)
        return self._packed, MetricRecord({})

    def _skip(self, server_round: int) -> None:
        """Let the rule take in a round without a new model."""
        self.last_metrics, self._packed_fields = {}, {}
        nobody = Reduced({}, (), np.zeros(0, np.int64), {}, server_round, self._lr, self.trainable)
        state, why = _attempt(lambda: self.skipped(cast(ServerState, self.state), self._spent(nobody)))
        if state is None:
            logger.warning("round %d leaves the rule's state as it was: %s", server_round, why)
        else:
            self.state = state

    def _update(self, reduced: Reduced) -> str:
        """Apply the rule; return why its result is of no use, in which case nothing was changed, or ""."""
        result, why = _attempt(lambda: type(self).update(self.state, reduced, self.config))
        if result is None:
            return why
        state, metrics = result
        bad = not_finite(state)
        if bad:
            return f"the rule's result has NaN or infinity in {bad!r}"
        self.state, self.last_metrics = state, metrics
        return ""

    def _spent(self, reduced: Reduced) -> Reduced:
        """Return the replies with what the round has cost so far, and the population."""
        seconds, size = time.perf_counter() - self._began, self._bytes + self.last.bytes_up
        population, asked = len(self.roster.names), self._plan.asked
        names = self._names(self.entry)
        return replace(reduced, population=population, seconds=seconds, bytes=size, asked=asked, names=names)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate and write one message per node."""
        self._requests = []
        server = self.config.server
        if not server.clients_evaluate(server_round):
            return []
        self.roster.refresh(grid, server_round)
        rng = rng_for(self.config.seed, seeds.EVALUATION, server_round)
        clients = self.roster.draw(server.fraction_evaluate, rng)
        extra = cast(Extra, dict(config))
        entry = evaluation_of(self.entry)
        self._requests = self._questions(entry, server_round, clients, "evaluate", extra, arrays)
        return self._requests

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average each metric over the clients that sent it, by their examples; None if nobody answered."""
        fold = self._fold(evaluation_of(self.entry), server_round, self._requests)
        fold.run(replies)
        late = f"a reply within {self.timeout_s:g} s"
        self.last = fold.finish(late=late, lr=0.0, trainable=())
        self.journal.quarantined(self.last.quarantined)
        self.client_counts = {}
        if self.last.reduced is None:
            return None
        reduced = self.last.reduced
        means = {}
        for k, values in reduced.scalars.items():
            sent = [
                (v, float(n)) for v, n in zip(values, reduced.num_examples, strict=True) if not math.isnan(v)
            ]
            means[k] = weighted_mean(*zip(*sent, strict=True))
            self.client_counts[k] = len(sent)
        return MetricRecord({**means, wire.NUM_EXAMPLES: int(reduced.num_examples.sum())})

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
    ) -> Result:
        """Run the rounds; Flower's signature and result, with three arguments more.

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
            trainable: Names of the parameters among the arrays; empty = all floating arrays but the running
                statistics of normalisation layers.
            overlap: Call `evaluate_fn` in a thread of its own while the next round trains; pays where the
                nodes' work leaves the server's cores idle. Without effect where the next round depends on
                this one's accuracy (``target-accuracy``). The journal is always written so.

        Raises:
            NodesError: Too few nodes for ``roll-call-timeout``, or not one round with enough good replies.
        """
        self.timeout_s = self.config.server.round_timeout if timeout is None else timeout
        self.journal = journal or Journal()
        self._run_id = self.journal.run_id or self._run_id
        self.trainable = trainable or self.trainable
        self._sync(initial_arrays)
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        self.summary()
        self.roster.presence.count_whole_nodes(False)
        self._in_start = True
        try:
            return Loop(self, grid, num_rounds, *configs, evaluate_fn, overlap).run()
        finally:
            self._in_start = False

    def restore(self, snapshot: Snapshot) -> ServerState:
        """Go back to a snapshot; return its state."""
        assert self.state is not None
        self.state = snapshot.state(type(self.state))
        self.selector.load(snapshot.arrays)
        good = snapshot.good
        kept = Kept(good.round, good.state(type(self.state))) if good else None
        self.last_good.load(snapshot.arrays, kept)
        self._packed = wire.pack_arrays(self.state.arrays)
        return self.state

    def call_roll(self, grid: Grid, server_round: int) -> None:
        """See who is there for a round; wait if they are too few for it.

        Raises:
            NodesError: They stay too few.
        """
        self.roster.refresh(grid, server_round, self.config.server.min_replies)
        self.journal.participants(self.roster.participants(), self.roster.left_out())

    def terms(self, entry: Algorithm | None, server_round: int, requests: Sequence[Message]) -> Terms:
        """Return how the replies to a round's messages are waited for.

        Args:
            entry: The messages' contract; None = that of evaluation, which asks for no number of replies.
            server_round: Round t.
            requests: The messages.
        """
        contract = entry or evaluation_of(self.entry)
        self._good, like = 0, self._like(contract)
        most = max((most_bytes(contract, like, len(clients_of(m))) for m in requests), default=0)
        least = self.config.server.min_replies if entry else 0

        def patience(lost: int) -> float:
            """Wait for lost clients as for those that are not there, if they make the round."""
            needed = 0 < least - self._good <= lost
            return max(self.roster.timeout_s, presence.COME_BACK_S) if needed else presence.COME_BACK_S

        return Terms(self.roster.presence, server_round, patience, most)

    def count_down(self, log: RoundLog) -> None:
        """Book what a round has sent before its training, and what the exchanges before it came to."""
        log.bytes_down += self._bytes
        for folded in self._preceding:
            log.preceded(folded)
            log.bytes_down -= folded.bytes_up

    def count_trained(self, log: RoundLog, *, skipped: bool) -> None:
        """Book what the training came to."""
        log.trained(self._plan, self.last, self._lr, skipped, self.last_metrics)
        log.values |= {"population": len(self.roster.names), "simulated_seconds": self.simulated_s}
        log.values["rolled_back"] = self.rolled_back

    # ------------------------------------------------------------------ helpers

    def _sync(self, arrays: ArrayRecord) -> ServerState:
        """Take over a model that was handed in; a no-op if it is the one we packed."""
        if self.state is None:
            given = wire.read_arrays(arrays)
            self.trainable = self.trainable or presumed_trainable(given)
            self.state = self.initial_state(given)
        elif arrays is not self._packed:
            given = wire.as_ours(wire.read_arrays(arrays), self.state.arrays)
            self.state = replace(self.state, arrays=given)
            arrays = wire.pack_arrays(given)
        self._packed = arrays
        return self.state

    def _like(self, entry: Algorithm) -> dict[str, Arrays]:
        """Return, by upward field, arrays of the names, shapes and dtypes that a reply must have."""
        assert self.state is not None
        held = holdings(self.state.arrays, self.trainable, len(self.roster.names))
        return {f.name: held[f.holds] for f in entry.up}

    def _fold(
        self, entry: Algorithm, server_round: int, requests: list[Message], *, training: bool = False
    ) -> Fold:
        asked = {m.metadata.message_id: clients_of(m) for m in requests}
        total = sum(len(c) for c in asked.values())

        def answered(good: int) -> None:
            self._good = good
            self.journal.replies(server_round, good, total)

        nodes = self.roster.presence.there()
        where = {m.metadata.message_id: str(nodes.get(m.metadata.dst_node_id, "")) for m in requests}
        # What was registered is the number of training examples.
        limits = self.limits([c for clients in asked.values() for c in clients]) if training else {}
        assert self.state is not None
        bound = NormBound(self.config.server.max_update_norm, self.state.arrays, frozenset(self.trainable))
        return Fold(entry, self._like(entry), asked, server_round, answered, where, limits, bound)


def _attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a rule makes of replies, or None and why it cannot.

    Every reply was checked by itself, but not what they come to together. What this machine lacks (disk,
    memory), or the run's keys are at fault for, is no reply's fault and is raised.
    """
    try:
        return work(), ""
    except (StateError, ConfigError, OSError, MemoryError):
        raise
    except Exception as err:
        logger.debug("the rule raised", exc_info=True)
        return None, f"the rule cannot work with these replies: {type(err).__name__}: {err}"


def _with_knobs(config: Config, knobs: dict[str, Any]) -> Config:
    """Return `config` with server knobs replaced by name."""
    # The number of rounds is an argument of `start`, as Flower has it.
    known = {f.name for f in fields(ServerConfig)} - {"num_server_rounds"}
    named = {FLOWER_NAMES.get(k, k): v for k, v in knobs.items()}
    seed = named.pop("seed", config.seed)
    for key in named:
        if key not in known:
            raise ConfigError(choose_from(f"strategy argument {key!r}", key, known | {"seed", *FLOWER_NAMES}))
    return replace(config, seed=seed, server=replace(config.server, **named))

"""Draw a round's clients: the policy's candidates, the cohort, its stragglers, their simulated seconds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from strategies.engine.fold import Folded
from strategies.engine.rule import TRAIN, Phase, RoundContext, Rule
from strategies.engine.stage import ServerStage
from strategies.engine.state import ServerState
from strategies.membership.client_registry import ClientRegistry
from strategies.selection.devices import (
    FORWARD,
    Busy,
    Devices,
    Floats,
    Moved,
    Times,
    round_seconds,
    traffic,
    work_of,
)
from strategies.selection.policies import SELECTORS, Pool
from task.catalogue.entry import Algorithm
from task.catalogue.selections import CANDIDATES, LOSS
from task.config.knobs import Config
from task.models.family import SubModels
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays
from task.wire import messages as wire

PACKED = "devices/packed"  # name in a checkpoint


@dataclass(frozen=True)
class RoundPlan:
    """The cohort of a round."""

    clients: tuple[str, ...]  # S_t, all selected clients by sorted name
    epochs: dict[str, int]  # of the stragglers; the others do as configured
    dropped: tuple[str, ...]  # selected clients that are not asked, because stragglers are dropped
    groups: tuple[tuple[str, ...], ...] = ()  # that train one after the other; empty = all at once

    @property
    def stragglers(self) -> tuple[str, ...]:
        """The slow clients, asked or dropped."""
        return tuple(sorted({*self.epochs, *self.dropped}))

    @property
    def cohort(self) -> tuple[str, ...]:
        """The clients that are asked to train, sorted."""
        dropped = set(self.dropped)
        return tuple(c for c in self.clients if c not in dropped)

    @property
    def asked(self) -> int:
        """Number of clients that are asked to train."""
        return len(self.clients) - len(self.dropped)


def plan_round(config: Config, server_round: int, clients: Sequence[str]) -> RoundPlan:
    """Draw the stragglers among the clients that a policy has drawn.

    Of the selected, round(stragglers * |S_t|) are slow. Each has time for x ~ U{1..E} epochs (Li et al.,
    FedProx, section 5.2; the authors' code draws from {1..E-1}, the paper says [1, E]). A strategy that
    does not wait drops them, FedProx takes their partial work.
    """
    server = config.server
    slow = round(server.stragglers * len(clients))
    if slow == 0:
        return RoundPlan(tuple(clients), {}, ())
    rng = seeds.rng_for(config.seeds.train, seeds.STRAGGLERS, server_round)
    late = sorted(clients[i] for i in rng.choice(len(clients), size=slow, replace=False).tolist())
    draws = rng.integers(1, config.train.local_epochs, size=slow, endpoint=True).tolist()
    if server.drop_stragglers:
        return RoundPlan(tuple(clients), {}, tuple(late))
    return RoundPlan(tuple(clients), dict(zip(late, draws, strict=True)), ())


class Cohorts:
    """Draws the cohorts of one run."""

    def __init__(
        self,
        config: Config,
        entry: Algorithm,
        rule: Rule,
        registry: ClientRegistry,
        stages: Sequence[ServerStage] = (),
    ) -> None:
        self.config, self.entry, self.rule, self.registry = config, entry, rule, registry
        self.stages = stages  # one may draw the cohorts instead of the policy
        self.selector = SELECTORS[config.server.selection](config)
        self.devices = Devices(config.devices, config.seeds.train)
        # The most bytes that clients transferred in the last training round, relative to the contract's
        # arrays: down and up. Policies that look ahead assume the same ratio.
        self._packed = (1.0, 1.0)
        self.busy: dict[str, Busy] = {}  # of the clients of the last training round

    def draw(self, state: ServerState, context: RoundContext, run: Callable[[Phase], Folded]) -> RoundPlan:
        """Let the policy draw the round's clients, after it has asked its candidates for their loss.

        `context` is still without a cohort; `run` runs a phase.
        """

        def times(names: Sequence[str]) -> Times:
            return self._times(names, state, context)

        self._pool = pool = Pool(self.registry, self.config, context.round, times)
        candidates = self.selector.candidates(pool)
        losses: dict[str, float] = {}
        if candidates:
            phase = context.phase(CANDIDATES, state, candidates)
            losses = {client: row[LOSS.name] for client, row in run(phase).metrics.items()}
        by_stages = (stage.draw(pool.names) for stage in self.stages)
        drawn = next((names for names in by_stages if names is not None), None)
        if drawn is None:
            drawn = self.rule.drawn(state)
        if drawn is None:
            drawn = self.selector.select(pool, candidates, losses)
        if self.entry.pooled == "once":
            drawn = list(drawn)[:1]  # the data of all, once
        plan = plan_round(self.config, context.round, drawn)
        self._drawn = replace(plan, groups=self.selector.groups(pool, plan.cohort)), state, context
        return self._drawn[0]

    def evaluating(self, server_round: int) -> list[str]:
        """Return the clients that evaluate the model of a round, drawn of those that are known."""
        rng = seeds.rng_for(self.config.seeds.train, seeds.EVALUATION, server_round)
        return self.registry.draw(self.config.server.fraction_evaluate, rng)

    def seconds(self, done: Sequence[tuple[Phase, Folded]]) -> float:
        """Return the seconds that the round would take on the simulated devices, given its phases.

        Bytes are those of the arrays that went to each client and came from it, codes as codes. A client
        without a good reply has uploaded as much as the others did on average.
        """
        plan, state, context = self._drawn
        self.busy = {}
        if (kept := self.rule.seconds(state)) is not None:
            return kept
        total = 0.0
        for phase, folded in (pair for pair in done if pair[0].name == CANDIDATES):
            moved = _moved(phase.to, [(phase, folded)])
            times = self._times(phase.to, state, context, query=phase.contract, moved=moved)
            total += self._seconds(phase.to, times)
        trained = [(phase, folded) for phase, folded in done if phase.contract.work == "train"]
        often = Counter(client for phase, _ in trained if phase.name == TRAIN for client in phase.to)
        for group in plan.groups if trained else ():
            moved = _moved(group, trained)
            times = self._times(group, state, context, plan.epochs, moved=moved, often=often)
            total += self._seconds(group, times)
        if trained and plan.cohort:
            planned = [float(np.mean(way)) for way in self._traffic(self.entry, state, context, plan.cohort)]
            means = [float(np.mean(way)) for way in _moved(plan.cohort, trained, most=True)]
            down, up = (mean / most if most else 1.0 for mean, most in zip(means, planned, strict=True))
            self._packed = down, up
        return total

    def alone(self, names: Sequence[str], state: ServerState, context: RoundContext) -> list[float]:
        """Return the simulated seconds of clients that train now, each alone on its link."""
        return [float(s) for s in self._times(names, state, context).total]

    def dump(self) -> Arrays:
        """Return what the next draw depends on, for a checkpoint."""
        packed = {PACKED: np.array(self._packed)} if self._packed != (1.0, 1.0) else {}
        return self.selector.dump() | packed

    def load(self, arrays: NamedArrays) -> None:
        """Restore what `dump` returned."""
        self.selector.load(arrays)
        down, up = arrays[PACKED].tolist() if PACKED in arrays else (1.0, 1.0)
        self._packed = down, up

    def observe(self, scalars: Mapping[str, Mapping[str, float]]) -> None:
        """Let the policy take in the scalars of the training replies, by client."""
        self.selector.observe(self._pool, scalars)

    def _times(
        self,
        names: Sequence[str],
        state: ServerState,
        context: RoundContext,
        epochs: Mapping[str, int] = MappingProxyType({}),
        query: Algorithm | None = None,
        moved: Moved | None = None,
        often: Mapping[str, int] = MappingProxyType({}),
    ) -> Times:
        """Return the simulated seconds of clients for a round's training, or for a query.

        `moved` are bytes down and up; None = the number of the last round, for later rounds. `often`
        says by client how many times it trained, if not once.
        """
        entry = query or self.entry
        steps = int(self.rule.down_scalars(state).get(wire.LOCAL_STEPS, 0))
        train = replace(self.config.train, local_steps=steps) if steps else self.config.train
        counts = self.registry.num_examples(names)
        pairs = ((c, counts[c]) for c in names)
        work = [
            FORWARD * n if query else often.get(c, 1) * work_of(entry, train, n, epochs.get(c, 0))
            for c, n in pairs
        ]
        if moved is None:
            down, up = self._traffic(entry, state, context, names)
            moved = down * self._packed[0], up * self._packed[1]
        return self.devices.times(names, work, *moved)

    def _traffic(
        self, entry: Algorithm, state: ServerState, context: RoundContext, names: Sequence[str]
    ) -> Moved:
        """Return the planned bytes down and up, the same for each client or, in order, for these."""
        given, trainable = self.rule.routed_per_client(state), context.trainable
        if context.family is None:
            return traffic(entry, state.arrays, trainable, given)
        models = SubModels(context.family, context.round, state.arrays)
        found = [traffic(entry, state.arrays, trainable, given, models.form(c)) for c in names]
        down, up = np.array(found, np.float64).reshape(-1, 2).T
        return down, up

    def _seconds(self, names: Sequence[str], times: Times) -> float:
        radio = times.download + times.upload
        for name, update, moving in zip(names, times.update.tolist(), radio.tolist(), strict=True):
            before = self.busy.get(name, Busy(0.0, 0.0))
            self.busy[name] = Busy(before.compute + update, before.radio + moving)
        return round_seconds(times, self.config.devices.uplink == "shared")


def _moved(
    names: Sequence[str], done: Sequence[tuple[Phase, Folded]], most: bool = False
) -> tuple[Floats, Floats]:
    """Return the bytes down to and up from each of these clients in some phases, float64 [n] each.

    With `most` they are the most that go up: these never depend on how clients are spread over nodes, which
    the lengths of codes do where a node merges them.
    """
    down, up = np.zeros(len(names)), np.zeros(len(names))
    for _, folded in done:
        to, sent = folded.own_down, {} if most else folded.own_up
        usual = float(np.mean([*sent.values()])) if sent else folded.most_up
        down += np.array([to.get(c, 0) for c in names], np.float64)
        up += np.array([sent.get(c, usual) if c in to else 0 for c in names], np.float64)
    return down, up

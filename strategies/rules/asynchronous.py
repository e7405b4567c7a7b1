"""Asynchronous training: who arrives when, in virtual time, and what its rules share.

C K clients are at work at any time, each on the version of the model that it was given. A round of the run is
one *server step*: it takes the updates that arrive first, a buffer of them, and makes the next version.

=======  ==================================  =========================  ======
symbol   variable                            shape, dtype               where
=======  ==================================  =========================  ======
w^t      state.arrays                        as the model               server
t        state.version                       server steps so far        server
         state.clock                         simulated seconds so far   server
w^v      state.versions["v/parameter"]       as the model, v < t        server
v_k      state.flight["k"], of the arriving  float64 [4]: second of     server
         ones state.arriving["k"]            arrival, version, round,
                                             learning rate
tau_k    t - v_k                             staleness, >= 0            server
w_k      up ``arrays``                       as the model               wire
=======  ==================================  =========================  ======

In virtual time the seconds that a client is at work are those of the trace of devices
(`strategies.selection.devices`), so that the order of arrival follows from the seed and the keys, not from
this machine: a run has the same bytes anywhere. What a round needs is known when it begins, and its
clients train together, each from its own version. Where updates really arrive
(`strategies.channels.waiting`), a client trains in the round in which it began.

* A client that arrives is replaced at once by another one that is idle, drawn at random, which gets the
  newest version; the last one of a buffer once the step is taken.
* A client whose update waits in the buffer is not idle: begun again from the version that it has just
  trained, it would send nothing new. So it has one update in a step at most.
* Who goes offline while at work is forgotten, and replaced; so is a client whose update really does not
  come. An update that is refused is lost.

Of the earlier versions those are held that clients at work were given. One that began from version 0 is
still at work when the server makes version 1, and is one version behind if it arrives now:

>>> state = AsyncState({"w": np.zeros(1)}, flight=_packed({"slow": Start(2.5, version=0)}))
>>> state = stepped(state, {"w": np.ones(1)})
>>> state.version, list(state.versions)
(1, ['0/w'])
>>> given_to(replace(state, arriving=state.flight), "slow")
({'w': array([0.])}, 1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import TRAIN, Phase, Round, RoundContext, Route, Rule, Seconds
from strategies.engine.schedule import Begin, Start, VirtualClock, next_step
from strategies.engine.state import AggregatedReplies, Number, ServerState
from task.catalogue.selections import cohort_size
from task.numerics import seeds
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class AsyncState(ServerState):
    """The model, the clock, and the clients at work with the versions that they were given."""

    version: int = 0  # t
    clock: float = 0.0
    took: float = 0.0  # simulated seconds of the last step
    flight: Arrays = field(default_factory=dict)
    """Of each client at work its `Start`: second of arrival, version, round and rate, float64 [4]."""
    arriving: Arrays = field(default_factory=dict)
    """The same of the clients whose updates the present step takes; empty between steps."""
    versions: Arrays = field(default_factory=dict)
    """w^v by ``version/name``."""


def _packed(starts: Mapping[str, Start]) -> Arrays:
    return {client: np.array(start, np.float64) for client, start in sorted(starts.items())}


def _unpacked(starts: Mapping[str, np.ndarray]) -> dict[str, Start]:
    return {client: Start(float(a[0]), int(a[1]), *_when(a[2:])) for client, a in starts.items()}


def _when(rest: np.ndarray) -> tuple[int, float]:
    return (int(rest[0]), float(rest[1])) if len(rest) else (0, 0.0)  # else of a checkpoint before 0.2


def model_of(state: AsyncState, version: int) -> Arrays:
    """Return w^v, of a version that a client at work was given, or the present one."""
    if version == state.version:
        return state.arrays
    return {name: state.versions[f"{version}/{name}"] for name in state.arrays}


def given_to(state: AsyncState, client: str) -> tuple[Arrays, int]:
    """Return the model that an arriving client began from, and its staleness tau."""
    version = int(state.arriving[client][1])
    return model_of(state, version), state.version - version


def stepped(state: AsyncState, arrays: Arrays | None) -> AsyncState:
    """Return the state after a server step that made a model, or after one that came to nothing (None)."""
    needed = sorted({start.version for start in _unpacked(state.flight).values()})
    if arrays is None:
        arrays, version = state.arrays, state.version
    else:
        version = state.version + 1
    held = {f"{v}/{n}": a for v in needed if v != version for n, a in model_of(state, v).items()}
    return replace(state, arrays=arrays, version=version, arriving={}, versions=held)


def staleness_metrics(state: AsyncState, clients: Sequence[str]) -> dict[str, Number]:
    """Return mean and largest staleness of the updates of a step, and how many clients are at work."""
    taus = [given_to(state, client)[1] for client in clients]
    return {
        "staleness-mean": sum(taus) / len(taus),
        "staleness-max": max(taus),
        "at-work": len(state.flight),
    }


class Asynchronous(Rule, state=AsyncState):
    """The base of rules whose clients are at work all the time; see `strategies.rules.asynchronous`."""

    def buffer(self, at_once: int) -> int:
        """Return K, the updates of one step, at most the clients that are at work at the same time."""
        raise NotImplementedError

    def weight(self, tau: int) -> float:
        """Return what an update of a staleness counts."""
        raise NotImplementedError

    def begin(self, state: AsyncState, context: RoundContext, seconds: Seconds) -> AsyncState:
        """Go on until the buffer is full."""
        names, server = context.names, self.config.server
        at_once = cohort_size(server.fraction_train, len(names))
        K = self.buffer(at_once)
        if at_once < K and context.round == 1:
            context.remark(
                f"a server step takes {at_once} updates instead of {K}: no more clients train at "
                "the same time "
                '(run-config key "fraction-train")'
            )
        work, clock, K = _unpacked(state.flight), state.clock, min(K, at_once)
        if context.arrivals:

            def order(starts: Mapping[str, Start]) -> Phase:
                return self._order(state, context, starts)

            begin = Begin(context.round, context.lr, state.version, K, order, self.weight)
            real = context.arrivals.schedule(work, begin)
            step = next_step(work, names, at_once, real)
        else:
            rng = seeds.rng_for(self.config.seeds.train, seeds.SELECTION, context.round)
            devices = VirtualClock(clock, state.version, K, seconds, rng)
            step, clock = next_step(work, names, at_once, devices), devices.clock
        flight, arriving = _packed(step.flight), _packed(step.arrived)
        return replace(state, flight=flight, arriving=arriving, clock=clock, took=clock - state.clock)

    def _order(self, state: AsyncState, context: RoundContext, starts: Mapping[str, Start]) -> Phase:
        """Return the phase that asks clients that begin in one round, which may be over."""
        at = next(iter(starts.values()))
        context = replace(context, round=at.round, lr=at.lr)
        phase = context.phase(TRAIN, replace(state, arriving=_packed(starts)), sorted(starts))
        return replace(phase, round=at.round)

    def drawn(self, state: AsyncState) -> tuple[str, ...]:
        """Return the clients whose updates the step takes."""
        return tuple(sorted(state.arriving))

    def seconds(self, state: AsyncState) -> float:
        """Return the simulated seconds of the step."""
        return state.took

    def round(self, state: AsyncState, context: RoundContext) -> Round:
        """Let the arriving clients train, each from its version, and take the step.

        It needs ``min-replies`` updates, at most the buffer.
        """
        phase = context.phase(TRAIN, state)
        replies = yield replace(phase, least=min(phase.least, len(phase.to)))
        return type(self).update(state, replies, self.config)

    def route(self, state: AsyncState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client the version that it began from."""
        starts = _unpacked(state.arriving)
        models = {v: model_of(state, v) for v in {start.version for start in starts.values()}}
        return {"model": {client: {client: models[starts[client].version]} for client in to}}

    def on_round_skipped(
        self, state: AsyncState, spent: AggregatedReplies, came: AggregatedReplies | None
    ) -> AsyncState:
        """Go on without the updates of the step, which are lost."""
        return stepped(state, None)

    def roll_back(self, good: AsyncState, state: AsyncState) -> AsyncState:
        """Go on with all clients from the oldest version that they were at work on; time does not go back.

        That the updates of a step were good says so of the versions that they began from, not of the newest.
        """
        oldest = min((start.version for start in _unpacked(good.flight).values()), default=good.version)
        return replace(state, arrays=model_of(good, oldest), flight={}, arriving={}, versions={})

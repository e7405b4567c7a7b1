"""Training that waits for nobody in particular: who arrives when, in virtual time, and what its rules share.

C K clients are at work at any time, each on the version of the model that it was given. A round of the run is
one *server step*: it takes the updates that arrive first, a buffer of them, and makes the next version.

=======  ==================================  =========================  ======
symbol   variable                            shape, dtype               where
=======  ==================================  =========================  ======
w^t      state.arrays                        as the model               server
t        state.version                       server steps so far        server
         state.clock                         simulated seconds so far   server
w^v      state.versions["v/parameter"]       as the model, v < t        server
v_k      state.flight["k"], of the arriving  float64 [2]: second of     server
         ones state.arriving["k"]            arrival, version
tau_k    t - v_k                             staleness, >= 0            server
w_k      up ``arrays``                       as the model               wire
=======  ==================================  =========================  ======

The seconds that a client is at work are those of the trace of devices (`strategies.selection.devices`), so
that the order of arrival follows from the seed and the keys, not from this machine: a run has the same bytes
anywhere. Of two that arrive at once the name decides. What a round needs is known when it begins, and its
clients train together, each from its own version.

* A client that arrives is replaced at once by another one that is idle, drawn at random, which gets the
  newest version; the last one of a buffer once the step is taken.
* A client whose update waits in the buffer is not idle: begun again from the version that it has just
  trained, it would send nothing new. So it has one update in a step at most.
* Who goes offline while at work is forgotten, and replaced. An update that is refused is lost.

Of the earlier versions those are held that clients at work were given.

One client two and a half times as fast as the other, a buffer of one:

>>> def seconds(names): return [{"fast": 1.0, "slow": 2.5}[name] for name in names]
>>> rng, flight, clock = np.random.default_rng(1), {}, 0.0
>>> for version in range(4):
...     step = next_step(flight, clock, version, ["fast", "slow"], 2, 1, seconds, rng)
...     flight, clock = step.flight, step.clock
...     print(clock, step.arrived)
1.0 {'fast': Start(arrives=1.0, version=0)}
2.0 {'fast': Start(arrives=2.0, version=1)}
2.5 {'slow': Start(arrives=2.5, version=0)}
3.0 {'fast': Start(arrives=3.0, version=2)}
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from strategies.engine.rule import TRAIN, Round, RoundContext, Route, Rule, Seconds
from strategies.engine.state import AggregatedReplies, Number, ServerState
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.spec.selections import cohort_size


class Start(NamedTuple):
    """A client at work."""

    arrives: float  # simulated second at which its update is there
    version: int  # of the model that it was given


@dataclass(frozen=True)
class ServerStep:
    """The course of one server step."""

    arrived: dict[str, Start]  # the buffer, in the order of arrival
    flight: dict[str, Start]  # the clients at work when the buffer is full
    clock: float  # simulated second at which it is


def next_step(
    flight: Mapping[str, Start],
    clock: float,
    version: int,
    names: Sequence[str],
    at_once: int,
    buffer: int,
    seconds: Seconds,
    rng: np.random.Generator,
) -> ServerStep:
    """Return what happens until the buffer is full.

    Args:
        flight: The clients at work, by name.
        clock: Simulated second at which the last step was taken.
        version: Of the model that clients are given who begin now.
        names: The clients that are online, sorted.
        at_once: How many are at work at any time, at most all.
        buffer: K, the updates of a step; at most `at_once`.
        seconds: Returns how long clients are at work.
        rng: Draws who begins.
    """
    work = {client: start for client, start in flight.items() if _is_in(names, client)}
    arrived: dict[str, Start] = {}

    def begin(count: int) -> None:
        busy = np.array(sorted(bisect_left(names, c) for c in (*work, *arrived)), np.int64)
        idle = len(names) - len(busy)
        count = min(count, idle)
        if count <= 0:
            return
        drawn = np.arange(idle)
        if count < idle:
            drawn = np.sort(rng.choice(idle, size=count, replace=False, shuffle=False))
        # Number i of those that are idle has as many busy ones before it as have at most i idle ones before.
        places = drawn + np.searchsorted(busy - np.arange(len(busy)), drawn, side="right")
        new = [names[i] for i in places.tolist()]
        for client, took in zip(new, seconds(new), strict=True):
            work[client] = Start(clock + float(took), version)

    begin(at_once - len(work))
    while len(arrived) < buffer:
        client = min(work, key=lambda name: (work[name].arrives, name))
        arrived[client] = work.pop(client)
        clock = arrived[client].arrives
        if len(arrived) < buffer:
            begin(at_once - len(work))
    return ServerStep(arrived, work, clock)


def _is_in(names: Sequence[str], client: str) -> bool:
    place = bisect_left(names, client)
    return place < len(names) and names[place] == client


@dataclass(frozen=True)
class AsyncState(ServerState):
    """The model, the clock, and the clients at work with the versions that they were given."""

    version: int = 0  # t
    clock: float = 0.0
    took: float = 0.0  # simulated seconds of the last step
    flight: Arrays = field(default_factory=dict)
    """Of each client at work: second of arrival and version, float64 [2]."""
    arriving: Arrays = field(default_factory=dict)
    """The same of the clients whose updates the present step takes; empty between steps."""
    versions: Arrays = field(default_factory=dict)
    """w^v by ``version/name``."""


def _packed(starts: Mapping[str, Start]) -> Arrays:
    return {client: np.array(start, np.float64) for client, start in sorted(starts.items())}


def _unpacked(starts: Mapping[str, np.ndarray]) -> dict[str, Start]:
    return {client: Start(float(a[0]), int(a[1])) for client, a in starts.items()}


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
        """Return K, the updates of one step, of which no more count than clients are at work at once."""
        raise NotImplementedError

    def begin(self, state: AsyncState, context: RoundContext, seconds: Seconds) -> AsyncState:
        """Go on until the buffer is full."""
        names, server = context.names, self.config.server
        at_once = cohort_size(server.fraction_train, len(names))
        K = self.buffer(at_once)
        if at_once < K and context.round == 1:
            context.remark(
                f"a server step takes {at_once} updates and not {K}: no more clients are at work at once "
                '(run-config key "fraction-train")'
            )
        rng = seeds.rng_for(self.config.seeds.train, seeds.SELECTION, context.round)
        step = next_step(
            _unpacked(state.flight), state.clock, state.version, names, at_once, min(K, at_once), seconds, rng
        )
        flight, arriving = _packed(step.flight), _packed(step.arrived)
        return replace(
            state, flight=flight, arriving=arriving, clock=step.clock, took=step.clock - state.clock
        )

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

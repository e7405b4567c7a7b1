"""Who begins and who arrives when clients are at work all the time: one loop, and what it goes by.

A *schedule* says who begins next, whose update arrives next, and when a server step has enough. There are
two: `VirtualClock`, on which the devices of the trace arrive, and
`strategies.channels.waiting.RealOrder`, in which nodes' answers come in, written down so that the run can
be done again.

One client two and a half times as fast as the other, a buffer of one:

>>> def seconds(names): return [{"fast": 1.0, "slow": 2.5}[name] for name in names]
>>> rng, flight, clock = np.random.default_rng(1), {}, 0.0
>>> for version in range(4):
...     schedule = VirtualClock(clock, version, 1, seconds, rng)
...     step = next_step(flight, ["fast", "slow"], 2, schedule)
...     flight, clock = step.flight, schedule.clock
...     print(clock, {c: (start.arrives, start.version) for c, start in step.arrived.items()})
1.0 {'fast': (1.0, 0)}
2.0 {'fast': (2.0, 1)}
2.5 {'slow': (2.5, 0)}
3.0 {'fast': (3.0, 2)}
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from strategies.engine.rule import Phase, Seconds


class Start(NamedTuple):
    """A client at work."""

    arrives: float  # simulated second at which its update is there; 0 where that is not known before
    version: int  # of the model that it was given
    round: int = 0  # that it trains in; 0 = in the one that takes its update
    lr: float = 0.0  # eta of that round


@dataclass(frozen=True)
class ServerStep:
    """The course of one server step."""

    arrived: dict[str, Start]  # the buffer, in the order of arrival
    flight: dict[str, Start]  # the clients at work when the buffer is full


class ArrivalSchedule(Protocol):
    """What a server step goes by."""

    def at_work(self, flight: Mapping[str, Start], names: Sequence[str]) -> Mapping[str, Start]:
        """Return the clients that are still at work, given those that were and the names online, sorted."""

    def begin(self, names: Sequence[str], busy: Collection[str], count: int) -> Mapping[str, Start]:
        """Let a number of clients begin, drawn from the sorted `names` that are not busy, or all of these."""

    def next(self, work: Mapping[str, Start]) -> tuple[str, bool]:
        """Return which client at work is done next, and whether its update is there; else it is lost."""

    def full(self, arrived: int) -> bool:
        """Return whether this number of updates makes a step."""


def next_step(
    flight: Mapping[str, Start], names: Sequence[str], at_once: int, schedule: ArrivalSchedule
) -> ServerStep:
    """Return the events until the buffer is full or no client is at work.

    Args:
        flight: The clients that were at work after the last step, by name.
        names: The clients that are online, sorted.
        at_once: How many are to be at work at any time.
        schedule: Says who begins and who arrives.
    """
    work, arrived, lost = dict(schedule.at_work(flight, names)), dict[str, Start](), set[str]()

    def begin() -> None:
        work.update(schedule.begin(names, {*work, *arrived, *lost}, at_once - len(work)))

    begin()
    while work and not schedule.full(len(arrived)):
        client, came = schedule.next(work)
        start = work.pop(client)
        if came:
            arrived[client] = start
        else:
            lost.add(client)
        if not schedule.full(len(arrived)):
            begin()
    return ServerStep(arrived, work)


def draw_idle(names: Sequence[str], busy: Collection[str], count: int, rng: np.random.Generator) -> list[str]:
    """Draw a number of the sorted `names` that are not busy, or return all of these."""
    at = np.array(sorted(bisect_left(names, c) for c in busy if is_in(names, c)), np.int64)
    idle = len(names) - len(at)
    count = min(count, idle)
    if count <= 0:
        return []
    drawn = np.arange(idle)
    if count < idle:
        drawn = np.sort(rng.choice(idle, size=count, replace=False, shuffle=False))
    # Number i of those that are idle has as many busy ones before it as have at most i idle ones before.
    places = drawn + np.searchsorted(at - np.arange(len(at)), drawn, side="right")
    return [names[i] for i in places.tolist()]


def is_in(names: Sequence[str], client: str) -> bool:
    """Return whether a client is among sorted names."""
    place = bisect_left(names, client)
    return place < len(names) and names[place] == client


@dataclass
class VirtualClock:
    """Clients arrive when the devices of the trace are done; of two that arrive at once the name decides."""

    clock: float  # simulated second; it goes on from arrival to arrival
    version: int  # of the model that clients are given who begin now
    buffer: int  # K, the updates of a step
    seconds: Seconds  # returns how long clients are at work
    rng: np.random.Generator  # draws who begins

    def at_work(self, flight: Mapping[str, Start], names: Sequence[str]) -> dict[str, Start]:
        """Forget who is offline."""
        return {client: start for client, start in flight.items() if is_in(names, client)}

    def begin(self, names: Sequence[str], busy: Collection[str], count: int) -> dict[str, Start]:
        """Draw who begins; see `ArrivalSchedule`."""
        new = draw_idle(names, busy, count, self.rng)
        took = self.seconds(new) if new else ()
        return {c: Start(self.clock + float(s), self.version) for c, s in zip(new, took, strict=True)}

    def next(self, work: Mapping[str, Start]) -> tuple[str, bool]:
        """Go on to the next arrival."""
        client = min(work, key=lambda name: (work[name].arrives, name))
        self.clock = work[client].arrives
        return client, True

    def full(self, arrived: int) -> bool:
        """Return whether there are K."""
        return arrived >= self.buffer


@dataclass(frozen=True)
class Begin:
    """What the starts of a round have in common."""

    round: int  # server round t
    lr: float  # eta_t
    version: int  # of the model that clients are given who begin now
    buffer: int  # K, the updates of a step
    order: Callable[[Mapping[str, Start]], Phase]
    """Returns the phase that asks clients that begin in one round from one version."""
    weight: Callable[[int], float]
    """Returns what an update of a staleness counts, for the journal."""


class ArrivalSource(Protocol):
    """Where updates really arrive (`strategies.channels.waiting`)."""

    def schedule(self, flight: Mapping[str, Start], begin: Begin) -> ArrivalSchedule:
        """Return the schedule of a round; `flight` are the clients at work when it begins."""

"""Channel for real arrivals: orders that outlive their round, and updates in the order of arrival.

Each start of a client is a message of its own. It stays open over as many server steps as the client's node
needs; replies that no step has taken yet are held, one for each client at work at most. The order goes into
the run's `ArrivalLog` event by event. A round with lines in the log follows them: its clients are asked
again, train to the same bytes, and their updates are used as recorded, in whatever order they come. So a
resumed run continues where it was, and a replay is a resume from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.channels.arrival_log import ArrivalLog, Line
from strategies.engine.channel import Channel, Opened
from strategies.engine.exchange import Exchange
from strategies.engine.fold import Folded
from strategies.engine.rule import Phase
from strategies.engine.schedule import Begin, Start, draw_idle, is_in
from task.errors import StateError
from task.numerics import seeds
from task.population import some
from task.text import logger
from task.wire import messages as wire
from task.wire.messages import RejectedReply

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


@dataclass(frozen=True)
class AtWork:
    """A client at work."""

    start: Start
    request: Message
    asked_at: float  # on the monotonic clock
    reply: Message | None = None  # arrived, but not used by a step yet


class RealArrivals:
    """The clients at work: a run has asked them, and no step has used their updates yet."""

    def __init__(self, engine: PhaseEngine, grid: Grid) -> None:
        self.engine, self.grid = engine, grid
        self.log = engine.journal.log(ArrivalLog)
        self.orders: dict[str, AtWork] = {}
        self._exchange: Exchange | None = None
        self._step: RealOrder | None = None  # whose updates the fold is to have

    def schedule(self, flight: Mapping[str, Start], begin: Begin) -> RealOrder:
        """Return the schedule of a round; see `ArrivalSource`.

        Forgets clients that the run no longer expects; asks clients at work again that this process has not
        asked.
        """
        self.log.turn_to(begin.round)
        for client, asked in [*self.orders.items()]:
            if flight.get(client) != asked.start:
                self.drop(client)
        missing = {c: start for c, start in flight.items() if c not in self.orders}
        alike: dict[tuple[int, int], dict[str, Start]] = {}
        for client, start in missing.items():
            alike.setdefault((start.round, start.version), {})[client] = start
        for starts in alike.values():
            self.send(starts, begin.order)
        self._step = RealOrder(self, begin)
        return self._step

    def send(self, starts: Mapping[str, Start], order: Callable[[Mapping[str, Start]], Phase]) -> None:
        """Ask clients that start together, except those that are known not to answer."""
        starts = {c: start for c, start in starts.items() if self.log.lost(c, start.round) is None}
        if not starts:
            return
        engine, phase = self.engine, order(starts)
        nodes = [asked.request.metadata.dst_node_id for asked in self.orders.values() if not asked.reply]
        pairs = engine.registry.assign_each(phase.to, nodes)
        requests = engine.messages(Opened(phase), [(node, [client]) for client, node in pairs.items()])
        engine.bytes_down += sum(wire.payload_bytes(m.content) for m in requests)
        if self._exchange is None:
            terms = Channel(engine).terms(phase, 1, lasting=True)
            self._exchange = Exchange(self.grid, (), engine.timeout_s, terms)
        now = time.monotonic()
        for request in requests:
            (client,) = wire.clients_of(request)
            self.orders[client] = AtWork(starts[client], request, now)
        self._exchange.terms.server_round = engine.round
        self._exchange.send(requests, engine.timeout_s)

    def drop(self, client: str) -> None:
        """Forget a client; later replies of it are ignored."""
        asked = self.orders.pop(client, None)
        if asked and self._exchange and asked.reply is None:
            self._exchange.drop(asked.request)

    def await_one(self, clients: Collection[str]) -> str:
        """Return the first of these clients whose reply is there; it may be an error.

        Raises:
            AbsentError: No node has been online for too long.
        """
        while True:
            for client, asked in self.orders.items():
                if asked.reply is not None and client in clients:
                    return client
            assert self._exchange is not None
            for reply in self._exchange.wait():
                of = reply.metadata.reply_to_message_id
                (client,) = (c for c, o in self.orders.items() if o.request.metadata.message_id == of)
                self.orders[client] = replace(self.orders.pop(client), reply=reply)  # in the order of arrival
            again = self._exchange.terms.again
            self.engine.bytes_down += sum(wire.payload_bytes(m.content) for m in again)
            again.clear()

    def waited(self, phase: Phase) -> Waited | None:
        """Return the updates that a server step has waited for; None if the phase is no step."""
        step, self._step = self._step, None
        if step and self._exchange:
            self._exchange.rest()
        return step.waited(phase) if step else None

    def close(self) -> None:
        """Stop waiting for all clients."""
        if self._exchange:
            self._exchange.close()


@dataclass
class Waited:
    """The updates of a step; their clients were asked before."""

    requests: list[Message]
    replies: list[Message]
    judge: Callable[[Folded], None]  # called with the gate's results, before the step


class WaitingChannel(Channel):
    """The exchange of a server step; its clients were asked in earlier rounds and have arrived."""

    def __init__(self, engine: PhaseEngine, waited: Waited) -> None:
        super().__init__(engine)
        self.waited = waited

    def open(self, opened: Opened) -> None:
        """Note the messages that were sent."""
        opened.requests, opened.terms = self.waited.requests, self.terms(opened.phase, 1)

    def stream(self, opened: Opened, grid: Grid) -> Iterator[Message]:
        """Return the replies that have come."""
        return iter(self.waited.replies)

    def judge(self, opened: Opened, folded: Folded) -> None:
        """Record whose updates the step takes."""
        self.waited.judge(folded)


@dataclass
class RealOrder:
    """The schedule of one round: clients arrive when their nodes' answers do."""

    arrivals: RealArrivals
    begins: Begin
    refused: dict[str, Line] = field(default_factory=dict)  # what is known of updates from the log
    lost: list[RejectedReply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log, self.round = self.arrivals.log, self.begins.round
        self.refused = self.log.refused()
        self._number = 0  # of starts in this round

    def at_work(self, flight: Mapping[str, Start], names: Sequence[str]) -> Mapping[str, Start]:
        """Return all: a node that is away may come back."""
        return flight

    def begin(self, names: Sequence[str], busy: Collection[str], count: int) -> dict[str, Start]:
        """Start the clients that the log names, else draw some; see `ArrivalSchedule`."""
        new = dict[str, Start]()
        while self.log.ahead() == "start":
            line = self.log.follow()
            new[self._known(line, names, busy)] = self._start()
            self._number += 1
        if not self.log.ahead() and not self.log.closed:
            for _ in range(count - len(new)):
                rng = seeds.rng_for(self.seed, seeds.SELECTION, self.round, f"start {self._number}")
                drawn = draw_idle(names, {*busy, *new}, 1, rng)
                if not drawn:
                    break
                entries = {"version": self.begins.version, "lr": self.begins.lr}
                self.log.add({"event": "start", "round": self.round, "client": drawn[0], **entries})
                new[drawn[0]] = self._start()
                self._number += 1
        self.arrivals.send(new, self.begins.order)
        return new

    @property
    def seed(self) -> int:
        """The seed by which clients are drawn."""
        return self.arrivals.engine.config.seeds.train

    def _start(self) -> Start:
        return Start(0.0, self.begins.version, self.round, self.begins.lr)

    def _known(self, line: Line, names: Sequence[str], busy: Collection[str]) -> str:
        client, begins = str(line["client"]), self.begins
        if client in busy or (self.log.closed and not is_in(names, client)):
            why = "that is already at work" if client in busy else "that is not online"
            raise StateError(f"round {self.round}: the order of arrival has a start of {client!r}, {why}")
        if (line["version"], line["lr"]) != (begins.version, begins.lr):
            raise StateError(
                f"round {self.round}: the order of arrival has a start of {client!r} from version "
                f"{line['version']} at learning rate {line['lr']:g}; the run is at version {begins.version} "
                f"and {begins.lr:g}"
            )
        return client

    def next(self, work: Mapping[str, Start]) -> tuple[str, bool]:
        """Return whose answer is next, by the log or, beyond it, by arrival."""
        followed = self.log.follow() if self.log.ahead() else None
        if followed is not None:
            client = str(followed["client"])
            if client not in work:
                raise StateError(f"round {self.round}: the order of arrival has {client!r}, not at work")
            self._check(followed, work[client])
            why = self.log.lost(client, work[client].round)
            if why is not None:
                return self._give_up(client, why)
            if client in self.refused:
                return client, True  # later arrivals
            self.arrivals.await_one([client])
        elif self.log.closed:
            raise self.log.too_short(self.round)
        else:
            client = self.arrivals.await_one(work)
        asked = self.arrivals.orders[client]
        assert asked.reply is not None
        start, entries = asked.start, {"round": self.round, "client": client, "began": asked.start.round}
        if asked.reply.has_error():
            why = wire.one_line(asked.reply.error.reason, f"error code {asked.reply.error.code}")
            if self.log.closed:
                raise StateError(
                    f"round {self.round}: the run had an update of {client}; the replay failed: {why}"
                )
            self.log.add({"event": "lost", **entries, "why": why})
            return self._give_up(client, why)
        if followed is None:
            seconds = round(time.monotonic() - asked.asked_at, 3)
            self.log.add({"event": "arrival", **entries, **self._weighed(start), "seconds": seconds})
        return client, True

    def _weighed(self, start: Start) -> dict[str, float]:
        """Return the part of an arrival's line that follows from its start."""
        tau = self.begins.version - start.version
        return {"version": start.version, "staleness": tau, "weight": self.begins.weight(tau)}

    def _check(self, line: Line, start: Start) -> None:
        """Refuse a line that contradicts what follows from its start.

        Raises:
            StateError: Naming client and entry.
        """
        known = {"began": start.round, **(self._weighed(start) if line["event"] == "arrival" else {})}
        for entry, value in known.items():
            if (got := line.get(entry)) != value:
                raise StateError(
                    f"round {self.round}: the order of arrival has {line['event']} of {line['client']!r} "
                    f"with {entry} {got}; expected {value}, as follows from its start. Restore the file"
                )

    def _give_up(self, client: str, why: str) -> tuple[str, bool]:
        logger.warning("round %d: giving up the start of %s: %s", self.round, client, why)
        self.arrivals.drop(client)
        self.lost.append(RejectedReply(client, self.round, "", "a reply", why))
        return client, False

    def full(self, arrived: int) -> bool:
        """Return whether the log says that the step is taken, or there are K."""
        ahead = self.log.ahead()
        return ahead == "step" if ahead else arrived >= self.begins.buffer

    def waited(self, phase: Phase) -> Waited:
        """Return the updates of the step."""
        orders = {client: self.arrivals.orders[client] for client in phase.to}
        for client in phase.to:
            self.arrivals.drop(client)
        replies = [o.reply for c, o in orders.items() if o.reply is not None and c not in self.refused]
        return Waited([o.request for o in orders.values()], replies, self._judge)

    def _judge(self, folded: Folded) -> None:
        """Record whose updates the step takes; if it is already recorded, follow the record."""
        known = {c: _rejected(self.round, line) for c, line in self.refused.items()}
        folded.quarantined = [known.get(q.client, q) for q in folded.quarantined]
        if self.log.ahead() == "step":
            self._check_updates(self.log.follow(), folded)
        else:
            refused = [
                {"client": q.client, "field": q.field, "expected": q.expected, "got": q.got}
                for q in folded.quarantined
            ]
            updates = sorted(folded.metrics)
            self.log.add({"event": "step", "round": self.round, "updates": updates, "refused": refused})
        folded.quarantined += self.lost

    def _check_updates(self, line: Line, folded: Folded) -> None:
        """Refuse a step that names other updates than those here, except those given up since."""
        named, taken = {str(client) for client in line["updates"]}, set(folded.metrics)
        wrong = (taken - named) | {client for client in named - taken if not self.log.was_lost(client)}
        if wrong and self.log.closed:
            raise StateError(
                f"round {self.round}: the order of arrival has a step of the updates of "
                f"{some(sorted(named))}; expected those of {some(sorted(taken))}, which arrived. Put the "
                "file back"
            )


def _rejected(server_round: int, line: Line) -> RejectedReply:
    field, expected, got = (str(line[k]) for k in ("field", "expected", "got"))
    return RejectedReply(str(line["client"]), server_round, field, expected, got)

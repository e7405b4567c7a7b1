"""The nodes that are online and what they said of themselves, round after round.

`Presence.look` never waits: it asks new nodes for their clients, and `Presence.take` takes an answer when it
is there. So it can be done while a round waits for its replies too.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.membership.client_identity import Claim, Data, Node, Settled, settle
from strategies.membership.foreign import as_one_client
from task.errors import ConfigError, WireError
from task.flower.grid import is_superlink_error
from task.population import some
from task.wire import messages as wire
from task.wire import registration

logger = logging.getLogger("flwr")  # in another Flower app these lines stand among Flower's own
T = TypeVar("T")
LONGEST_PAUSE_S = 2.0
SLOW_S = 2.0  # a call that takes longer says that the SuperLink was away
COME_BACK_S = 15.0  # that a round waits for a node that got lost, if it can do without
AGAIN_S = 15.0  # half of the time after which a node that is silent is asked again; it doubles each time


def patiently(call: Callable[[], T], timeout_s: float, troubled: Callable[[], None] = lambda: None) -> T:
    """Call the SuperLink; while it answers with an error of its own (HTTP 5xx), try again for some time.

    A SuperLink whose disk is full or whose database is locked answers so; Flower itself tries again only if
    the connection fails, which shows in the time that a call takes.

    Args:
        call: Does it.
        timeout_s: How long to try.
        troubled: Called after each sign that the SuperLink is, or was, not well.
    """
    began, pause = time.monotonic(), 0.1
    while True:
        try:
            result = call()
        except Exception as err:
            if not is_superlink_error(err) or time.monotonic() + pause > began + timeout_s:
                raise
            logger.warning("the SuperLink answers %s; trying again", wire.one_line(str(err)))
            troubled()
        else:
            if time.monotonic() - began > SLOW_S:
                troubled()
            return result
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


class Presence:
    """Who is there.

    Args:
        timeout_s: How long a question to a node lives, and how long a SuperLink in trouble is asked again.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.nodes: dict[int, Node] = {}  # online
        self.claims: dict[int, Claim] = {}
        self.settled = Settled()
        self.empty_since: float | None = None  # on the monotonic clock
        self.troubled = -math.inf  # when the SuperLink was not well last, on the same
        self._queries: dict[str, tuple[int, float]] = {}  # by message id: node, when it was asked
        self._left: dict[int, int] = {}  # how often a node was seen to leave
        self._left_at: dict[int, tuple[Node, float]] = {}  # those away: what each was, since when
        self.heard = 0.0  # when a node told last, on the monotonic clock
        self._unfit: dict[int, str] = {}  # why nodes cannot take part
        self._declined: set[int] = set()  # of these, who said so; the others' answers could not be read
        self.lost_on_foreign = ""  # why a ClientApp that is not Bouquet's cannot take part; "" = it can
        self.whole_nodes = False  # whether a node that hosts several clients counts as one
        self._held: dict[str, str] = {}  # by client that a node brings, the pool of its data
        self._size = 0  # clients of the partition
        self._data: Data | None = None  # that all nodes' own data must be like
        self._turn = 0
        self._told: set[str] = set()  # lines of the log, each once

    @property
    def queries(self) -> set[str]:
        """Messages to nodes that have not told yet."""
        return set(self._queries)

    def awaited(self, patience_s: float) -> bool:
        """Return whether there is a node that was asked so short a time ago and has not told."""
        now = time.monotonic()
        return any(asked + patience_s > now for _, asked in self._queries.values())

    def silent(self) -> list[int]:
        """Return the nodes that were asked and have not told."""
        return sorted({node for node, _ in self._queries.values()})

    def look(self, grid: Grid, server_round: int) -> bool:
        """See who is online and ask those that are new, or back, for their clients.

        Returns:
            Whether a node left, or is new or back.
        """
        infos = list(patiently(grid.get_nodes, self.timeout_s, self._trouble))
        now = time.monotonic()
        left = self.nodes.keys() - {info.node_id for info in infos}
        for node in left:
            self._left[node] = self._left.get(node, 0) + 1
            self._left_at[node] = self.nodes[node], now
            self._unfit.pop(node, None)
        for info in infos:
            self._left_at.pop(info.node_id, None)
        gone = {n for n, (_, since) in self._left_at.items() if now - since >= COME_BACK_S}
        for node in gone:
            del self._left_at[node]
        before, self.nodes = self.nodes, {}
        for info in infos:
            since = f"{info.last_activated_at}/{self._left.get(info.node_id, 0)}"
            self.nodes[info.node_id] = Node(info.node_id, info.name, since, info.registered_at)
        back = {n for n, node in self.nodes.items() if n not in before or node.since != before[n].since}
        # An answer may still come to whatever a node was asked since it is there.
        self._queries = {
            i: (n, asked) for i, (n, asked) in self._queries.items() if n in self.nodes and n not in back
        }
        times = Counter(n for n, _ in self._queries.values())
        wait = {n: min(AGAIN_S * 2**k, self.timeout_s) for n, k in times.items()}
        lately = {n for n, asked in self._queries.values() if asked + wait[n] > now}
        new = {n for n in self.nodes if n not in self.claims and n not in self._unfit} | back
        self.empty_since = None if self.nodes else self.empty_since or now
        if new - lately:
            self._ask(grid, sorted(new - lately), server_round)
        if left or back or gone:  # who is back is taken for what it was until it says something else
            self._settle()
        return bool(left or back)

    def _trouble(self) -> None:
        self.troubled = time.monotonic()

    def there(self) -> dict[int, Node]:
        """Return the nodes that are online, and those that were a moment ago and had told of their clients.

        A SuperLink that was in trouble heard nobody, and a process that was killed is started again: an order
        for such a node waits until it is back, see `strategies.engine.exchange`, and no round begins without
        it.
        """
        now = time.monotonic()
        left = {n: node for n, (node, since) in self._left_at.items() if now - since < COME_BACK_S}
        return {n: node for n, node in left.items() if n in self.claims} | self.nodes

    def told(self) -> int:
        """Return how many nodes that are there have said who they are, or why they cannot take part."""
        return sum(n in self.claims or n in self._unfit for n in self.there())

    def _ask(self, grid: Grid, nodes: list[int], server_round: int) -> None:
        messages = [
            wire.message(RecordDict(), n, f"query.{registration.ROLL_CALL}", server_round, self.timeout_s)
            for n in nodes
        ]
        pushed = set(patiently(lambda: grid.push_messages(messages), self.timeout_s, self._trouble))
        for message in messages:
            if message.metadata.message_id in pushed:
                asked = message.metadata.dst_node_id, time.monotonic()
                self._queries[message.metadata.message_id] = asked

    def take(self, message_id: str, reply: Message | Exception) -> None:
        """Take what came for a query: an answer, or why none can be read."""
        node_id, _ = self._queries.pop(message_id)
        self._queries = {i: (n, asked) for i, (n, asked) in self._queries.items() if n != node_id}
        node = self.nodes.get(node_id)
        if node is None:
            return
        try:
            if isinstance(reply, Exception):
                raise reply
            if reply.has_error():
                why = wire.one_line(reply.error.reason, "no reason given")
                raise ConfigError(why) if why.startswith(wire.POLICY) else WireError(why)
            told = registration.read_roll_call(reply.content)
            if self.whole_nodes and len(told.clients) > 1:
                told = as_one_client(node, told)
        except ConfigError as err:
            self._leave_out(node, str(err))
            self._declined.add(node_id)
            return
        except Exception as err:  # whatever somebody else's bytes lead to
            content = None if isinstance(reply, Exception) or reply.has_error() else reply.content
            if isinstance(reply, Exception) or (content is not None and registration.ROLL_CALL in content):
                self._leave_out(node, f"its roll call cannot be read: {err or type(err).__name__}")
                return
            if content is None and reply.metadata.src_node_id != node_id:
                return  # the SuperLink's error: the node left, or its answer did; it is asked again
            # Flower's own apps have no roll call: such a node is one client.
            logger.debug("%s does not answer the roll call: %s", node, err)
            name = node.name or f"node-{node_id}"
            told = registration.RollCall((name,), np.array([1]), pool=f"node-{node_id}/{name}", foreign=True)
        self._unfit.pop(node_id, None)
        self._declined.discard(node_id)
        self._turn += 1
        self.claims[node_id] = Claim(node, told, self._turn)
        self.heard = time.monotonic()
        self._settle()

    def _leave_out(self, node: Node, why: str) -> None:
        self._unfit[node.id] = wire.one_line(why)
        self._declined.discard(node.id)
        self.claims.pop(node.id, None)
        self.heard = time.monotonic()
        self.say(f"{node} cannot take part: {self._unfit[node.id]}")
        self._settle()

    def expect(self, data: Data) -> None:
        """Refuse, from now on, nodes whose data have another shape or number of classes."""
        self._data = data
        self._settle()

    def left_out(self) -> dict[Node, str]:
        """Return the nodes that are online and take no part, and why; those that are silent, too."""
        unfit = {n: f"cannot take part: {why}" for n, why in self._unfit.items()}
        silent = dict.fromkeys(self.silent(), "has not answered the roll call")
        found = silent | {n: f"is refused: it {why}" for n, why in self.settled.refused.items()} | unfit
        absent = found.keys() - self.settled.admitted
        return {self.nodes[n]: found[n] for n in sorted(absent) if n in self.nodes}

    def outvoted(self) -> str:
        """Return why no run can begin: not most nodes can take part in one, of those that told; else ""."""
        against = {n for n in self._declined | self.settled.differs if n in self.nodes}
        if not against or len(self.settled.admitted) > len(against):
            return ""
        by_reason: dict[str, list[Node]] = {}
        for node, why in self.left_out().items():
            if node.id in against:
                by_reason.setdefault(why, []).append(node)
        return "; ".join(f"{some(nodes)} {why}" for why, nodes in by_reason.items())

    def _settle(self) -> None:
        there = self.there()
        pools = {c.told.pool for n, c in self.claims.items() if n in self.nodes}
        claims = [
            Claim(there[n], c.told, c.turn)
            for n, c in self.claims.items()
            if n in self.nodes or (n in there and c.told.pool not in pools)  # else another does its work
        ]
        self.settled = settle(claims, self._held, self._size, self._data)
        if self.lost_on_foreign:
            self.settled.refuse_foreign(claims, self.lost_on_foreign)

    def count_whole_nodes(self, whole: bool) -> None:
        """Let a node that hosts several clients count as one from now on, or as its clients again."""
        if whole != self.whole_nodes:
            self.whole_nodes = whole
            self.claims.clear()  # all are asked again
            self._settle()

    def close_roll(self) -> None:
        """Let who holds a name now keep it, and log who was refused or replaced, each once."""
        self._held, self._size = self.settled.held, self.settled.size
        name = {claim.node.id: claim.node for claim in self.claims.values()}
        for left, why in self.left_out().items():
            if left.id in self.settled.refused:
                self.say(f"{left} {why}")
        for node in sorted(self.settled.admitted):
            if self.claims[node].told.foreign:
                self.say(
                    f"{name[node]} runs a ClientApp that is not Bouquet's: it counts as one client, and "
                    "run-config keys of the local work (epochs, batch size, stragglers, attacks, ...) do not "
                    "reach it"
                )
        for node, (by, client) in sorted(self.settled.replaced.items()):
            self.say(f"{name[by]} takes the place of {name[node]} as client {client!r}")

    def say(self, line: str) -> None:
        """Log a line, unless it was logged before."""
        if line not in self._told:
            self._told.add(line)
            logger.warning("%s", line)

    def admitted(self) -> dict[int, registration.RollCall]:
        """Return what the nodes that take part told, by node."""
        return {n: self.claims[n].told for n in sorted(self.settled.admitted)}

    def stamp(self, node: int) -> tuple[int, str]:
        """Return what is another each time a node is back."""
        return node, self.nodes[node].since if node in self.nodes else ""

    def stands_in(self, clients: Mapping[str, object], pool: str, tried: set[tuple[int, str]]) -> int | None:
        """Return a node that can train these clients and has not been asked to since it is there, or None.

        Args:
            clients: All are needed.
            pool: Of the node that was asked first.
            tried: Stamps of the nodes that were asked.
        """
        for node in sorted(self.settled.admitted & self.nodes.keys()):
            claim = self.claims[node]
            mine = claim.told.pool == pool or claim.own in clients
            if mine and self.stamp(node) not in tried and all(c in claim.told.clients for c in clients):
                return node
        return None

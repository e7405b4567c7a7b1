"""One exchange: orders out, replies in as they come, and an order whose node was lost sent again.

Flower hands a message out once: what a node had fetched when it died is never handed out again. So while an
exchange waits it looks who is online. An order is sent again

* when its node is back, once for each time that it is, or when a node of the same pool, or one that brings
  the same client's data, can do the work in its place;
* once, when the node is there but its answer was lost on the way or its process died.

The first answer to any of them counts, and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import ConfigRecord, Error, Message
from flwr.serverapp import Grid

from strategies.membership import presence as online
from strategies.membership.presence import Presence, patiently
from strategies.transport.pull import puller
from task.errors import NodesError
from task.flower.messages import ErrorCode, set_reply_to
from task.population import some
from task.wire import messages as wire

logger = logging.getLogger("flwr")  # in another Flower app these lines stand among Flower's own

LOOK_S = 1.0  # between looks who is online
PUSH_S = 60.0  # that a SuperLink in trouble may take to accept orders
UNLIMITED = 1 << 62
ROLL_BYTES = 1 << 26  # that a node's answer to the roll call may have: a million names
LOST = {
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
    ErrorCode.NODE_UNAVAILABLE: "it went offline",
    ErrorCode.CLIENT_APP_CRASHED: "the process that worked on it died",
}


@dataclass
class Terms:
    """How an exchange waits.

    Attributes:
        presence: Who is online; None = nothing is sent again.
        server_round: Round t.
        patience: Seconds to wait for the nodes of lost orders, given the number of clients of those orders.
        most_bytes: That one reply may have.
        bytes_again: Of the orders that were sent again, for who counts them.
    """

    presence: Presence | None = None
    server_round: int = 0
    patience: Callable[[int], float] = lambda clients: online.COME_BACK_S
    most_bytes: int = UNLIMITED
    bytes_again: int = 0


@dataclass
class _Order:
    """One message and its copies."""

    request: Message
    clients: dict[str, None]
    pool: str = ""
    copies: dict[str, tuple[int, str]] = field(default_factory=dict)  # by message id: node, as `stamp` has it
    tried: set[tuple[int, str]] = field(default_factory=set)
    again: int = 0  # times that it was sent to a node that had not left
    lost: str = ""  # why nobody works on it
    lost_at: float = 0.0
    error: Error | None = None
    last: tuple[int, str] = (0, "")  # who had it when it was lost
    final: bool = False  # it will not be sent again


def stream_replies(
    grid: Grid, messages: Sequence[Message], timeout_s: float, terms: Terms | None = None
) -> Iterator[Message]:
    """Push `messages` now and return an iterator that yields each reply when it is there.

    It ends when all came or the time is up. A message whose reply does not come in time yields nothing, one
    whose node was lost an error that says so. A consumer that has enough may just stop; later replies are
    ignored.
    """
    return iter(Exchange(grid, messages, timeout_s, terms or Terms()))


class Exchange:
    """See the module; made when the orders are to go out.

    Args:
        grid: Where the nodes are.
        messages: The orders; they get their ids here.
        timeout_s: After which the exchange is over.
        terms: How it waits.
    """

    def __init__(self, grid: Grid, messages: Sequence[Message], timeout_s: float, terms: Terms) -> None:
        self.grid, self.terms = grid, terms
        self._orders = [_Order(m, dict.fromkeys(clients_of(m))) for m in messages]
        self._open: dict[str, _Order] = {}  # by id of a copy
        presence = terms.presence
        for order in self._orders:
            node = order.request.metadata.dst_node_id
            if presence is not None and node in presence.claims:
                order.pool = presence.claims[node].told.pool
        ids = self._push([(order, order.request) for order in self._orders])
        self.deadline = time.monotonic() + timeout_s  # the nodes' time begins when the last has its order
        self._fetch = puller(grid, self.deadline, max(terms.most_bytes, ROLL_BYTES))
        self._fetch.add(ids)

    def _push(self, pairs: Sequence[tuple[_Order, Message]]) -> list[str]:
        """Send messages; return the ids of those that are on their way."""
        if not pairs:
            return []
        messages = [message for _, message in pairs]
        pushed = set(patiently(lambda: self.grid.push_messages(messages), PUSH_S))
        for order, message in pairs:
            node, message_id = message.metadata.dst_node_id, message.metadata.message_id
            presence = self.terms.presence
            stamp = presence.stamp(node) if presence else (node, "")
            order.tried.add(stamp)
            if message_id in pushed:
                order.copies[message_id], self._open[message_id] = stamp, order
                order.lost = ""
            else:
                self._lose(order, node, "the SuperLink does not know it")
        return [i for i in pushed if i]

    def __iter__(self) -> Iterator[Message]:
        """Yield the replies; see `stream_replies`."""
        looked = time.monotonic()
        try:
            while self._orders:
                now = time.monotonic()
                wait = min(self.deadline - now, looked + LOOK_S - now if self.terms.presence else LOOK_S)
                for message_id, found in self._fetch.get(max(wait, 0.0)):
                    reply = self._take(message_id, found)
                    if reply is not None:
                        yield reply
                now = time.monotonic()
                if now >= self.deadline:
                    break
                if self.terms.presence and (
                    now >= looked + LOOK_S or any(o.lost_at > looked for o in self._orders)
                ):
                    self._look(self.terms.presence)
                    looked = time.monotonic()
                if self._given_up(now):
                    break
            for order in self._orders:
                if order.lost:
                    yield self._answer(order, order.error or Error(ErrorCode.NODE_UNAVAILABLE, order.lost))
        finally:
            self._fetch.close()

    def _take(self, message_id: str, found: Message | Exception) -> Message | None:
        """Take what came; return the reply to hand on."""
        presence = self.terms.presence
        if presence is not None and message_id in presence.queries:
            presence.take(message_id, found)
            return None
        order = self._open.pop(message_id, None)
        if order is None:
            return None
        node, _ = stamp = order.copies.pop(message_id)
        if isinstance(found, Exception):
            reason = wire.one_line(str(found), type(found).__name__)
            return self._close(order, Error(ErrorCode.UNKNOWN, f"{self._name(node)}: {reason}"))
        if found.has_error() and presence is not None and found.error.code in LOST:
            if found.error.code != ErrorCode.NODE_UNAVAILABLE:
                order.again += 1
                if order.again == 1:
                    order.tried.discard(stamp)
            if not order.copies:
                self._lose(order, node, LOST[found.error.code])
                reason = f"{self._name(node)}: {LOST[found.error.code]}; {wire.one_line(found.error.reason)}"
                order.error, order.last = Error(found.error.code, reason), stamp
            return None
        if not found.has_error() and found.metadata.src_node_id != node:
            sender = found.metadata.src_node_id
            return self._close(
                order, Error(ErrorCode.UNKNOWN, f"{self._name(node)}: a reply of node {sender}")
            )
        if found.has_error():
            said = wire.one_line(found.error.reason, f"error code {found.error.code}")
            reason = f"{self._name(node)}: {said}"
            return self._close(order, Error(found.error.code, reason))
        self._close(order)
        set_reply_to(found, order.request.metadata.message_id)
        return found

    def _close(self, order: _Order, error: Error | None = None) -> Message | None:
        """Close the order and ignore late replies."""
        for message_id in order.copies:
            self._fetch.drop(message_id)
            del self._open[message_id]
        self._orders.remove(order)
        return None if error is None else self._answer(order, error)

    def _answer(self, order: _Order, error: Error) -> Message:
        return Message(error, reply_to=order.request)

    def _lose(self, order: _Order, node: int, why: str) -> None:
        order.lost, order.lost_at = f"{self._name(node)}: {why}", time.monotonic()
        logger.warning(
            "%s, which leaves the order for %s open: %s", self._name(node), some(order.clients), why
        )

    def _look(self, presence: Presence) -> None:
        """See who is online and send again what can be sent again.

        Raises:
            NodesError: No node has been online for too long.
        """
        presence.look(self.grid, self.terms.server_round)
        self._fetch.add(presence.queries)
        if presence.empty_since is not None and time.monotonic() - presence.empty_since > presence.timeout_s:
            raise NodesError(
                f"round {self.terms.server_round}: expected a node online within {presence.timeout_s:g} s "
                '(run-config key "roll-call-timeout"); got none. Start the nodes and resume the run.'
            )
        again = []
        for order in self._orders:
            if not order.lost and any(self._works(presence, stamp) for stamp in order.copies.values()):
                continue
            node = presence.stands_in(order.clients, order.pool, order.tried)
            if node is not None:
                old = order.request
                left, kind = self.deadline - time.monotonic(), old.metadata.message_type
                if left > 0:
                    copy = wire.message(old.content, node, kind, self.terms.server_round, left)
                    again.append((order, copy))
                    self.terms.bytes_again += wire.payload_bytes(old.content)
                    logger.warning(
                        "the order for %s goes out again, to %s", some(order.clients), self._name(node)
                    )
            elif order.lost and order.error is not None and self._works(presence, order.last):
                order.final = True  # nothing happened to the node, whatever it says
        self._fetch.add(self._push(again))

    @staticmethod
    def _works(presence: Presence, stamp: tuple[int, str]) -> bool:
        """Return whether a node that was sent an order is the one that it was."""
        node, _ = stamp
        return (
            node in presence.nodes and presence.stamp(node) == stamp and node not in presence.settled.replaced
        )

    def _given_up(self, now: float) -> bool:
        """Return whether nothing is open but orders whose nodes were waited for long enough."""
        if not self._orders or not all(order.lost for order in self._orders):
            return False
        if self.terms.presence is None:
            return True
        patience = self.terms.patience(sum(len(order.clients) for order in self._orders))
        since = self.terms.presence.troubled  # nobody could come back before
        return all(order.final or now - max(order.lost_at, since) >= patience for order in self._orders)

    def _name(self, node: int) -> str:
        known = self.terms.presence.nodes.get(node) if self.terms.presence else None
        return str(known) if known else f"node {node}"


def clients_of(request: Message) -> list[str]:
    """Return the clients that an order is for; empty if it names none."""
    config = request.content.get(wire.CONFIG)
    return list(cast("list[str]", config.get("clients", []))) if isinstance(config, ConfigRecord) else []

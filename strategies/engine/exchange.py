"""The exchange: sends messages to nodes and fetches their replies; nothing else does.

*Orders* belong to a phase, which takes their replies. *Registration queries* ask nodes that are new or back
for their clients; an answer may come at any time, also while another phase waits. `Membership` says which
nodes to ask and takes the answers.

Flower delivers a message once: what a node had fetched when it died is never redelivered. So an exchange
watches who is online, and resends an order

* each time that its node is back, or when a node of the same pool, or one that brings the same client's data,
  can do the work instead;
* once, when the node is online but its answer was lost on the way or its process died.

The first answer to any copy of an order counts, and no other.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from strategies.membership.membership import Incarnation, Membership
from strategies.transport.pull import puller
from strategies.transport.retry import patiently
from task import timing
from task.errors import AbsentError
from task.population import some
from task.text import logger
from task.wire import messages as wire
from task.wire import registration
from task.wire.error_codes import ErrorCode

UNLIMITED = 1 << 62
REGISTRATION_BYTES = 1 << 26  # that a node's registration may have: a million names
LOST: dict[int, str] = {
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
    ErrorCode.NODE_UNAVAILABLE: "it went offline",
    ErrorCode.CLIENT_APP_CRASHED: "the process that worked on it died",
}


@dataclass
class Terms:
    """How an exchange waits."""

    membership: Membership  # who is online, and takes registrations
    server_round: int = 0  # round t
    # Seconds to wait for the nodes of lost orders, given the number of clients of those orders.
    patience: Callable[[int], float] = lambda clients: timing.COME_BACK_S
    # Whether the phase is pointless without this number of clients.
    needs: Callable[[int], bool] = lambda clients: False
    most_bytes: int = UNLIMITED  # limit of one reply to an order
    lacks: tuple[str, ...] = ()  # in the error of a node that lacks what its order builds on
    # Returns an order's self-contained content, for a node that may lack the base model.
    whole: Callable[[RecordDict], RecordDict] = lambda content: content
    # Whether an order is sent only once: no other node can answer it, nor its node after a restart.
    once: bool = False
    # Whether orders stay open while other exchanges run; each has its own timeout, see `Exchange.wait`.
    lasting: bool = False
    again: list[Message] = field(default_factory=list)  # the orders that were resent, for the byte counts


@dataclass
class _Order:
    """One message and its copies."""

    request: Message
    clients: dict[str, None]
    pool: str
    deadline: float = 0.0  # on the monotonic clock
    copies: dict[str, Incarnation] = field(default_factory=dict)  # by message id
    tried: set[Incarnation] = field(default_factory=set)
    again: int = 0  # times that a copy was lost while its node was online
    lost: str = ""  # why no node works on it
    lost_at: float = 0.0
    error: Error | None = None
    last: Incarnation = (0, "")  # the node that had it when it was lost
    final: bool = False  # it will not be sent again


class Exchange:
    """Orders that are sent when this is made, and an iterator over their replies as they come.

    The iterator ends when all replies came or the time is up. An order whose reply does not come in time
    yields nothing, one whose node was lost an error that says so. A consumer that has enough may stop; late
    replies are ignored. The registration phase sends no orders, and calls `look`, `fetch` and `close` itself.
    A caller with orders that outlive a round calls `send` and `wait`, and `rest` when it stops waiting for a
    while.

    The messages get their ids here; `timeout_s` after the last of them was sent the exchange is over.
    """

    def __init__(self, grid: Grid, messages: Sequence[Message], timeout_s: float, terms: Terms) -> None:
        self.grid, self.terms, self.membership = grid, terms, terms.membership
        self._orders: list[_Order] = []
        self._open: dict[str, _Order] = {}  # by id of a copy
        self.deadline = time.monotonic() + timeout_s
        most_bytes = max(terms.most_bytes, REGISTRATION_BYTES)
        self._puller = puller(grid, self.deadline, most_bytes, self.membership.fetched)
        self.send(messages, timeout_s)
        self.looked_at = time.monotonic()
        self._puller.add(self.membership.queries)

    def send(self, messages: Sequence[Message], timeout_s: float) -> None:
        """Send orders; their time begins when the last of them has gone."""
        orders = []
        for m in messages:
            claim = self.membership.claims.get(m.metadata.dst_node_id)
            pool = claim.registration.pool if claim else ""
            orders.append(_Order(m, dict.fromkeys(wire.clients_of(m)), pool))
        self._orders += orders
        ids = self._push([(order, order.request) for order in orders])
        self.deadline = self._puller.deadline = time.monotonic() + timeout_s
        for order in orders:
            order.deadline = self.deadline
        self._puller.add(ids)

    def _push(self, pairs: Sequence[tuple[_Order, Message]]) -> list[str]:
        """Send copies of orders; return the ids of those that were sent."""
        if not pairs:
            return []
        messages = [message for _, message in pairs]
        pushed = set(patiently(lambda: self.grid.push_messages(messages), timing.PUSH_S))
        for order, message in pairs:
            node, message_id = message.metadata.dst_node_id, message.metadata.message_id
            incarnation = self.membership.incarnation(node)
            order.tried.add(incarnation)
            if message_id in pushed:
                order.copies[message_id], self._open[message_id] = incarnation, order
                order.lost = ""
                if self.terms.lasting:
                    self.membership.fetched.kept.add(message_id)
            else:
                self._lose(order, node, "the SuperLink does not know it")
        return [i for i in pushed if i]

    def __iter__(self) -> Iterator[Message]:
        """Yield the replies to the orders.

        Raises:
            AbsentError: No node has been online for too long, or one that is needed has left for so long.
        """
        try:
            while self._orders:
                wait = min(self.deadline, self.looked_at + timing.ONLINE_LOOK_S) - time.monotonic()
                yield from filter(None, self.fetch(max(wait, 0.0)))
                now = time.monotonic()
                if now >= self.deadline:
                    break
                self._look_after()
                if self._orders and all(self._given_up(order, now) for order in self._orders):
                    self._check_needed()
                    break
            yield from [_error(order) for order in self._orders if order.lost]
        finally:
            self.close()

    def wait(self) -> list[Message]:
        """Return the next replies, and errors for orders that were given up; nothing after a while.

        An order is given up when its time is over, or when its node was lost and did not come back.

        Raises:
            AbsentError: No node has been online for too long.
        """
        self._puller.add(self.membership.queries)
        soonest = min((o.deadline for o in self._orders), default=self.deadline)
        wait = min(soonest, self.looked_at + timing.ONLINE_LOOK_S) - time.monotonic()
        replies = [reply for reply in self.fetch(max(wait, 0.0)) if reply is not None]
        now = time.monotonic()
        self._look_after()
        for order in [*self._orders]:
            if now >= order.deadline:
                node, why = order.request.metadata.dst_node_id, "no reply in time (round-timeout)"
                replies.append(self._fail(order, node, ErrorCode.UNKNOWN, why))
            elif order.lost and self._given_up(order, now):
                replies.append(_error(order))
                self._close(order)
        return replies

    def rest(self) -> None:
        """Leave registrations to other exchanges until the next call of `wait`."""
        for message_id in self.membership.queries:
            self._puller.drop(message_id)

    def drop(self, request: Message) -> None:
        """Close an order: replies to it are ignored."""
        for order in [order for order in self._orders if order.request is request]:
            self._close(order)

    def _look_after(self) -> None:
        """Check who is online and resend lost orders, if it is time."""
        if self.due() or any(o.lost_at > self.looked_at for o in self._orders):
            self.look()
            self._send_again()
            self.looked_at = time.monotonic()

    def close(self) -> None:
        """Stop fetching."""
        self._puller.close()

    def due(self) -> bool:
        """Return whether it is time to `look`."""
        return time.monotonic() >= self.looked_at + timing.ONLINE_LOOK_S

    def look(self) -> None:
        """Check who is online, and ask new and returned nodes to register."""
        membership, timeout_s = self.membership, self.membership.timeout_s
        infos = list(patiently(self.grid.get_nodes, timeout_s, membership.troubled))
        kind, t = f"query.{registration.REGISTER}", self.terms.server_round
        queries = [wire.message(RecordDict(), n, kind, t, timeout_s) for n in membership.update(infos)]
        if queries:
            pushed = set(patiently(lambda: self.grid.push_messages(queries), timeout_s, membership.troubled))
            sent = {q.metadata.message_id: q.metadata.dst_node_id for q in queries}
            membership.asked({i: node for i, node in sent.items() if i in pushed})
        self._puller.add(membership.queries)
        self.looked_at = time.monotonic()

    def fetch(self, wait_s: float) -> list[Message | None]:
        """Return what came within the time: replies to orders, and None for anything else."""
        return [self._take(message_id, found) for message_id, found in self._puller.get(wait_s)]

    def _take(self, message_id: str, found: Message | Exception) -> Message | None:
        """Process what came; return the reply to pass on."""
        if message_id in self.membership.queries:
            self.membership.take(message_id, found)
            return None
        order = self._open.pop(message_id, None)
        if order is None:
            return None
        self.membership.fetched.kept.discard(message_id)
        node, _ = incarnation = order.copies.pop(message_id)
        if isinstance(found, Exception):
            return self._fail(order, node, ErrorCode.UNKNOWN, wire.one_line(str(found), type(found).__name__))
        if found.has_error():
            code, said = found.error.code, wire.one_line(found.error.reason, f"error code {found.error.code}")
            lacks = any(text in said for text in self.terms.lacks)
            why = "it lacks the model that the order builds on" if lacks else LOST.get(code)
            if why is None:
                return self._fail(order, node, code, said)
            if code != ErrorCode.NODE_UNAVAILABLE:
                order.again += 1
                if order.again == 1:
                    order.tried.discard(incarnation)
            if not order.copies:
                self._lose(order, node, why)
                reason = f"{self._name(node)}: {why}; {wire.one_line(found.error.reason)}"
                order.error, order.last = Error(code, reason), incarnation
            return None
        if (sender := found.metadata.src_node_id) != node:
            return self._fail(order, node, ErrorCode.UNKNOWN, f"a reply of node {sender}")
        self._close(order)
        if found.metadata.reply_to_message_id != order.request.metadata.message_id:  # it answers a copy
            order.request.metadata.dst_node_id = node
            return Message(found.content, reply_to=order.request)
        return found

    def _fail(self, order: _Order, node: int, code: int, why: str) -> Message:
        """Close the order; return the error that stands for its reply."""
        self._close(order)
        return Message(Error(code, f"{self._name(node)}: {why}"), reply_to=order.request)

    def _close(self, order: _Order) -> None:
        """Close the order: late replies are ignored."""
        for message_id in order.copies:
            self.membership.fetched.kept.discard(message_id)
            self._puller.drop(message_id)
            del self._open[message_id]
        self._orders.remove(order)

    def _lose(self, order: _Order, node: int, why: str) -> None:
        order.lost, order.lost_at = f"{self._name(node)}: {why}", time.monotonic()
        logger.warning("%s, so the order for %s stays open: %s", self._name(node), some(order.clients), why)

    def _send_again(self) -> None:
        """Send orders of lost nodes to others that have the same clients; works on any SuperLink.

        A node that stays online and loses its order gets it again from Bouquet's link, see `Delivery`.

        Raises:
            AbsentError: No node has been online for too long.
        """
        membership, now = self.membership, time.monotonic()
        if membership.empty_since is not None and now - membership.empty_since > membership.timeout_s:
            raise AbsentError(
                f"round {self.terms.server_round}: expected a node online within {membership.timeout_s:g} s "
                '(run-config key "roll-call-timeout"); got none. Start the nodes and resume the run.'
            )
        copies = []
        for order in self._orders:
            if not order.lost and any(membership.works(i) for i in order.copies.values()):
                continue
            if self.terms.once:
                if not order.lost:
                    self._lose(order, order.request.metadata.dst_node_id, "it restarted since then")
                order.final = True
                continue
            node = membership.substitute(order.clients, order.pool, order.tried)
            if node is not None:
                old = order.request
                left, kind = order.deadline - time.monotonic(), old.metadata.message_type
                if left > 0:
                    content = self.terms.whole(old.content)
                    copy = wire.message(content, node, kind, self.terms.server_round, left)
                    copies.append((order, copy))
                    self.terms.again.append(copy)
                    logger.warning("resending the order for %s, to %s", some(order.clients), self._name(node))
            elif order.lost and order.error is not None and membership.works(order.last):
                order.final = True  # the node did not restart, whatever it reports
        self._puller.add(self._push(copies))

    def _given_up(self, order: _Order, now: float) -> bool:
        """Return whether an order's node was lost and waited for long enough."""
        if not order.lost:
            return False
        patience = self.terms.patience(sum(len(order.clients) for order in self._orders))
        since = self.membership.troubled_at  # no node could come back before
        return order.final or now - max(order.lost_at, since) >= patience

    def _check_needed(self) -> None:
        """End the run, before the round counts, if it failed because nodes are away.

        Raises:
            AbsentError: It did.
        """
        away = [order for order in self._orders if not order.final]
        clients = {client: None for order in away for client in order.clients}
        if self.terms.needs(len(clients)):
            raise AbsentError(
                f"round {self.terms.server_round}: expected the nodes of {some(clients)} back within "
                f"{self.membership.timeout_s:g} s: there are too few replies without them (run-config keys "
                f'"roll-call-timeout", "min-replies"); got {"; ".join(order.lost for order in away)}. Start '
                "them and resume the run; it does the round again."
            )

    def _name(self, node: int) -> str:
        return str(self.membership.nodes.get(node, f"node {node}"))


def _error(order: _Order) -> Message:
    """Return the error that replaces the reply of a lost node."""
    return Message(order.error or Error(ErrorCode.NODE_UNAVAILABLE, order.lost), reply_to=order.request)

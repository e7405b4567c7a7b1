"""Membership: which nodes are online, and what they registered.

`Membership` sends nothing and never waits: `Membership.update` takes the SuperLink's list of nodes and says
which of them must be asked to register, `Membership.take` takes an answer. So nodes can register at any time,
also while a round waits for its replies; see `strategies.engine.exchange`.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flwr.app import Message

from strategies.membership.agreement import Agreement
from strategies.membership.client_identity import Admission, Claim, OnlineNode, admit
from strategies.membership.stock_clients import as_one_client, stock_registration
from strategies.transport.pull import FetchedReplies
from task import timing
from task.datasets.description import Meaning
from task.errors import UNFED, BouquetError, ConfigError, NodesError, kind_in
from task.population import some
from task.text import logger
from task.wire import messages as wire
from task.wire.registration import REGISTER, Data, Registration, read_registration

Incarnation = tuple[int, str]  # a node's id, and what changes each time that it comes back


class Membership:
    """The nodes that are online, and those among them that take part.

    `timeout_s` is how long a query to a node lives, and a SuperLink in trouble is asked again.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.nodes: dict[int, OnlineNode] = {}  # online
        self.claims: dict[int, Claim] = {}
        self.admission = Admission()
        self.queries: dict[str, tuple[int, float]] = {}  # unanswered, by message id: node, when it was asked
        # Replies by message id that no exchange took yet: an answer may come between two.
        self.fetched = FetchedReplies()
        # On the monotonic clock:
        self.empty_since: float | None = None
        self.troubled_at = -math.inf  # when the SuperLink was last unwell
        self.last_answer_at = 0.0
        self.only: tuple[str, ...] = ()  # names of the nodes that may take part; none = all
        self.why_no_stock_clients = ""  # why a ClientApp that is not Bouquet's cannot take part; "" = it can
        self.whole_nodes = False  # whether a node that hosts several clients counts as one
        self._times_left = Counter[int]()  # by node
        self._left_at: dict[int, tuple[OnlineNode, float]] = {}  # those away: what each was, since when
        self._unfit: dict[int, tuple[str, bool]] = {}  # why nodes cannot take part, and whether they said so
        self._held: dict[str, str] = {}  # by client that a node brings, the pool of its data
        self._size = 0  # clients of the partition
        self.agreement = Agreement()  # what all data must mean, as far as it is decided
        self._data: Data | None = None  # the required form of all nodes' own data
        self._code: Mapping[str, str] = {}  # hashes of what the run's user brings, by package
        self._again: set[int] = set()  # nodes that are to register again, though they have
        self._sequence = 0
        self._stock: set[int] = set()  # nodes whose app is not Bouquet's, as logged
        self._logged: set[str] = set()
        self._notified: set[tuple[Incarnation, str]] = set()  # refused nodes that know the reason

    # ------------------------------------------------------------------ what the exchange tells

    def update(self, infos: Collection[Any]) -> list[int]:
        """Take the SuperLink's list of online nodes; return those to be asked to register.

        These are new nodes, returned ones, and silent ones.

        Raises:
            ConfigError: The run names its nodes, and those that are online have no names.
        """
        if self.only and infos and not any(info.name for info in infos):
            raise ConfigError(
                'run-config key "node-names": expected it where nodes are enrolled by name, as at a link; '
                f"got {', '.join(self.only)} among nodes without names, such as a simulation's"
            )
        infos = [info for info in infos if not self.only or info.name in self.only]
        now, before = time.monotonic(), self.nodes
        left = before.keys() - {info.node_id for info in infos}
        for node in left:
            self._times_left[node] += 1
            self._left_at[node] = before[node], now
            self._unfit.pop(node, None)
        self.nodes = {}
        for info in infos:
            since = f"{info.last_activated_at}/{self._times_left[info.node_id]}"
            self.nodes[info.node_id] = OnlineNode(info.node_id, info.name, since, info.registered_at)
        away = self._left_at.items()
        over = {n for n, (_, at) in away if n in self.nodes or now - at >= timing.COME_BACK_S}
        for node in over:
            del self._left_at[node]
        self.empty_since = None if self.nodes else self.empty_since or now
        back = {n for n, node in self.nodes.items() if n not in before or node.since != before[n].since}
        if left or back or over:  # a node that is back counts as what it was until it registers again
            self._admit()
        # An answer may still come to any query of a node's present incarnation.
        self.queries = {
            i: (n, asked) for i, (n, asked) in self.queries.items() if n in self.nodes and n not in back
        }
        times = Counter(n for n, _ in self.queries.values())
        wait = {n: min(timing.ASK_AGAIN_S * 2**k, self.timeout_s) for n, k in times.items()}
        lately = {n for n, asked in self.queries.values() if asked + wait[n] > now}
        unknown = back | (self.nodes.keys() - self.claims.keys() - self._unfit.keys())
        unknown |= self._again & self.nodes.keys()
        return sorted(unknown - lately)

    def asked(self, queries: Mapping[str, int]) -> None:
        """Note the nodes that were asked to register, by message id."""
        self.queries |= {i: (node, time.monotonic()) for i, node in queries.items()}
        self._again -= set(queries.values())

    def ask_again(self) -> None:
        """Have the nodes that bring their own data register again, also those that could not take part.

        Until a node has answered it counts as what it was.
        """
        self._again = {n for n, claim in self.claims.items() if claim.own} | self._unfit.keys()

    def troubled(self) -> None:
        """Note that the SuperLink is, or was, unwell."""
        self.troubled_at = time.monotonic()

    def take(self, message_id: str, reply: Message | Exception) -> None:
        """Process the answer to a query, or the reason why it cannot be read."""
        node_id, _ = self.queries.pop(message_id)
        self.queries = {i: (n, asked) for i, (n, asked) in self.queries.items() if n != node_id}
        node = self.nodes.get(node_id)
        if node is None:
            return
        try:
            registered = self._read(node, reply)
        except ConfigError as err:
            self._leave_out(node, str(err), declined=True)
        except UNFED:  # ours
            raise
        except Exception as err:  # hostile bytes may raise anything
            why = f"its registration cannot be read: {err or type(err).__name__}"
            self._leave_out(node, why, declined=False)
        else:
            if registered is None:
                return
            self._unfit.pop(node_id, None)
            self._sequence += 1
            self.claims[node_id] = Claim(node, registered, self._sequence)
        self.last_answer_at = time.monotonic()
        self._admit()

    def _read(self, node: OnlineNode, reply: Message | Exception) -> Registration | None:
        """Return what a node registered; None if the node could not answer and is to be asked again.

        Raises:
            ConfigError: The node declines, or its app failed, which makes it no client of another author's.
            Exception: Whatever its bytes lead to.
        """
        if isinstance(reply, Exception):
            raise reply
        if reply.has_error():
            why = wire.one_line(reply.error.reason, "no reason given")
            if reply.metadata.src_node_id != node.id:
                return None  # the SuperLink's error: the node left, or its answer did
            # Flower names the query to which an app has no answer; in its simulation a traceback comes first.
            if f"'{REGISTER}'" not in (reply.error.reason or ""):
                raise ConfigError(why)
        elif REGISTER in reply.content:
            registered = read_registration(reply.content)
            whole = self.whole_nodes and len(registered.clients) > 1
            return as_one_client(node, registered) if whole else registered
        logger.debug("%s does not know how to register", node)
        return stock_registration(node)

    def _leave_out(self, node: OnlineNode, why: str, *, declined: bool) -> None:
        why = wire.one_line(why)
        self._unfit[node.id] = why, declined
        self.claims.pop(node.id, None)
        self.log_once(f"{node} cannot take part: {why}")

    # ------------------------------------------------------------------ who is online

    def silent(self, within_s: float = math.inf) -> list[int]:
        """Return the nodes that were asked within the last seconds and have not answered."""
        since = time.monotonic() - within_s
        return sorted({node for node, asked in self.queries.values() if asked > since})

    def present(self) -> dict[int, OnlineNode]:
        """Return the nodes that are online, and registered ones that were until a moment ago.

        A SuperLink in trouble heard no node, and a process that was killed is started again: an order for
        such a node waits until it is back (`strategies.engine.exchange`), and no round begins without it.
        """
        now = time.monotonic()
        left = {n: node for n, (node, since) in self._left_at.items() if now - since < timing.COME_BACK_S}
        return {n: node for n, node in left.items() if n in self.claims} | self.nodes

    def num_answered(self) -> int:
        """Return how many of the present nodes have registered, or said why they cannot take part."""
        return sum(n in self.claims or n in self._unfit for n in self.present())

    def incarnation(self, node: int) -> Incarnation:
        """Return a node's present incarnation."""
        return node, self.nodes[node].since if node in self.nodes else ""

    def works(self, incarnation: Incarnation) -> bool:
        """Return whether a node is still online as it was, and no other has taken its place."""
        node, _ = incarnation
        online = node in self.nodes and self.incarnation(node) == incarnation
        return online and node not in self.admission.replaced

    def substitute(self, clients: Mapping[str, object], pool: str, tried: set[Incarnation]) -> int | None:
        """Return a node that can train these clients and was not yet asked to in this incarnation, or None.

        It must host all `clients`, in the pool of the node that was asked first or as its own; `tried` are
        those that were asked.
        """
        for node in sorted(self.admission.admitted & self.nodes.keys()):
            claim, names = self.claims[node], self.claims[node].registration.clients
            mine = claim.registration.pool == pool or claim.own in clients
            if mine and self.incarnation(node) not in tried and all(c in names for c in clients):
                return node
        return None

    # ------------------------------------------------------------------ who takes part

    def admitted(self) -> dict[int, Registration]:
        """Return the registrations of the nodes that take part, by node."""
        return {n: self.claims[n].registration for n in sorted(self.admission.admitted)}

    def left_out(self) -> dict[OnlineNode, str]:
        """Return the nodes that are online and take no part, and why; silent ones, too."""
        found = dict.fromkeys(self.silent(), "has not registered")
        found |= {n: f"is refused: it {why}" for n, why in self.admission.refused.items()}
        found |= {n: f"cannot take part: {why}" for n, (why, _) in self._unfit.items()}
        absent = found.keys() - self.admission.admitted
        return {self.nodes[n]: found[n] for n in sorted(absent) if n in self.nodes}

    def notices(self, *, undecided: bool = False) -> dict[int, str]:
        """Return the reasons that refused nodes do not know yet, by node; from now on they do.

        With `undecided` the others learn why the run cannot begin, if a person must decide.
        """
        reasons = dict(self.admission.refused)
        if undecided and (why := self.admission.ambiguous):
            reasons = dict.fromkeys(self.claims, f"takes no part, as the run cannot begin: {why}") | reasons
        new = {
            n: why
            for n, why in sorted(reasons.items())
            if n in self.nodes and not self.claims[n].registration.stock
            if (self.incarnation(n), why) not in self._notified
        }
        self._notified |= {(self.incarnation(n), why) for n, why in new.items()}
        return new

    def undecided(self) -> ConfigError | None:
        """Return what a person must decide before the first round, and which nodes decline in any case."""
        if not self.admission.ambiguous:
            return None
        declined = self._reasons(n for n, (_, said) in self._unfit.items() if said)
        return ConfigError("; ".join(filter(None, [self.admission.ambiguous, declined])))

    def _reasons(self, nodes: Iterable[int]) -> str:
        """Return why these nodes take no part, each reason once."""
        by_reason, these = dict[str, list[OnlineNode]](), set(nodes)
        for node, why in self.left_out().items():
            if node.id in these:
                by_reason.setdefault(why, []).append(node)
        return "; ".join(f"{some(nodes)} {why}" for why, nodes in by_reason.items())

    def outvoted(self) -> BouquetError | None:
        """Return why no run can begin, if most of the nodes that answered cannot take part in one.

        It is a `NodesError` where enough of the reasons may pass.
        """
        declined = {n for n, (_, said) in self._unfit.items() if said}
        against = (declined | self.admission.deviating) & self.nodes.keys()
        passing = {n for n in against & declined if not kind_in(self._unfit[n][0])}
        lasting = len(against - passing)
        if not against or len(self.admission.admitted) > len(against):
            return None
        kind = ConfigError if lasting and len(self.admission.admitted) <= lasting else NodesError
        return kind(self._reasons(against))

    def expect_data(self, data: Data) -> None:
        """Refuse, from now on, nodes whose data have another shape or number of classes."""
        self._data = data
        self._admit()

    def expect_code(self, code: Mapping[str, str]) -> None:
        """Refuse, from now on, nodes on which what the run's user brings is other code: hashes by package."""
        self._code = code
        self._admit()

    def expect_meaning(self, agreement: Agreement) -> None:
        """Refuse, from now on, nodes whose data mean something else."""
        self.agreement = agreement
        self._admit()

    def orders(self) -> dict[int, Meaning]:
        """Return by node the order in which it is to read its data; none where all read theirs so anyway.

        If there is one order for all, all nodes are sent it if one needs it, so that their messages are
        alike.
        """
        found, unlike = dict[int, Meaning](), set[int]()
        for node in self.admission.admitted:
            claim = self.claims[node]
            mine, agreed = claim.registration.meaning, self.admission.agreement.of(claim.own)
            if not claim.registration.stock:
                found[node] = agreed
                if (mine.inputs, mine.outputs) != (agreed.inputs, agreed.outputs):
                    unlike.add(node)
        return {n: found[n] for n in unlike} if self.agreement.apart or not unlike else found

    def count_whole_nodes(self, whole: bool) -> None:
        """Count a node that hosts several clients as one from now on, or as its clients again."""
        if whole != self.whole_nodes:
            self.whole_nodes = whole
            self.claims.clear()  # all are asked again
            self._admit()

    def confirm(self) -> None:
        """Let the present holders keep their clients' names; log once who was refused or replaced."""
        self._held, self._size = self.admission.held, self.admission.size
        self.agreement = self.admission.agreement
        for node, why in self.left_out().items():
            if node.id in self.admission.refused:
                self.log_once(f"{node} {why}")
        stock = {n for n in self.admission.admitted if self.claims[n].registration.stock} - self._stock
        if stock:
            self._stock |= stock
            nodes = some([self.claims[n].node for n in sorted(stock)])
            self.log_once(
                f"ClientApps that are not Bouquet's: {nodes}. Each counts as one client, and "
                "ignores run-config keys "
                "of the local work (epochs, batch size, stragglers, attacks, ...)"
            )
        for n, (by, client) in sorted(self.admission.replaced.items()):
            self.log_once(f"node {by} replaces node {n} as client {client!r}")

    def log_once(self, line: str) -> None:
        """Log a line, unless it was logged before."""
        if line not in self._logged:
            self._logged.add(line)
            logger.warning("%s", line)

    def _admit(self) -> None:
        present = self.present()
        pools = {c.registration.pool for n, c in self.claims.items() if n in self.nodes}
        claims = [
            Claim(present[n], c.registration, c.sequence)
            for n, c in self.claims.items()  # another node of the pool does the work of one that left
            if n in self.nodes or (n in present and c.registration.pool not in pools)
        ]
        rest = self._data, self.why_no_stock_clients, self._code, self.agreement
        self.admission = admit(claims, self._held, self._size, *rest)

"""A phase with secure aggregation: four stages, from which the server learns one sum over nodes.

It replaces one exchange of the engine and ends in the same `Folded`, with sums instead of the clients'
numbers. A node that does not answer a stage is out for the rest of the phase; below ``secagg-min-nodes`` or
the threshold the sum stays unknown, no reply counts, and the round is skipped like any other with too few
replies.

Orders are sent once: only the node that began can continue. Nodes are named here by their enrolled names, or
their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies.channels.sum_grid import SumGrid
from strategies.engine.channel import Channel, Opened
from strategies.engine.exchange import Exchange, Terms
from strategies.engine.fold import Folded
from strategies.engine.reply_size import check_size
from strategies.engine.state import AggregatedReplies
from task.config.read import as_run_config
from task.config.run_name import session_terms
from task.errors import UNFED, BouquetError, FieldError, SecureAggregationError
from task.secagg.protocol import Rules, Session
from task.secagg.server import Aggregation
from task.secagg.sums import Sums
from task.secagg.vector import NUMBER_BYTES
from task.text import logger
from task.wire import messages as wire
from task.wire import secure
from task.wire.folding import reduced
from task.wire.messages import RejectedReply
from task.wire.shared import shared_digest

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

T = TypeVar("T")
NAME = "masked"
HEAD_BYTES = 1 << 20  # of an answer, without its numbers


class MaskedChannel(Channel):
    """The exchange of a phase in which the server learns one sum over nodes."""

    def __init__(self, engine: PhaseEngine, sum_grid: SumGrid) -> None:
        super().__init__(engine)
        self.sum_grid = sum_grid

    def open(self, opened: Opened) -> None:
        """Write the messages of the first stage."""
        opened.of[NAME] = secure = SecurePhase(self.engine, opened, self.sum_grid)
        opened.requests = secure.begin()
        opened.terms = Terms(self.engine.registry.membership, self.engine.round)

    def stream(self, opened: Opened, grid: Grid) -> Iterator[Message]:
        """Run all stages; there are no replies to hand on."""
        return _run_by(opened).run(grid)

    def close(self, opened: Opened, replies: Iterable[Message]) -> Folded:
        """Return what the phase comes to."""
        for _ in replies:
            pass
        secure = _run_by(opened)
        folded = secure.folded()
        self.engine.bytes_down += secure.bytes_down
        folded.own_down = self.bytes_to_each(opened.phase)
        return folded


def _run_by(opened: Opened) -> SecurePhase:
    found: SecurePhase = opened.of[NAME]
    return found


class SecurePhase:
    """One phase of the engine, run by the protocol."""

    def __init__(self, engine: PhaseEngine, opened: Opened, sum_grid: SumGrid) -> None:
        self.engine, self.opened, self.sum_grid = engine, opened, sum_grid
        self.phase = phase = opened.phase
        self.contract = secure.as_summed(phase.contract)
        self.like = engine.like(self.contract, phase.rows)
        server = engine.config.server
        self.form = secure.form_of(self.contract, self.like, server.secagg_bits)
        rules = Rules(server.secagg_min_nodes, server.secagg_threshold)
        spread = engine.spread(phase) if phase.to else {}
        server_round = phase.round or engine.round
        session = Session(engine.run_id, server_round, phase.kind, opened.attempt, self._order(spread))
        self.server = Aggregation(session, rules)
        self.clients: dict[str, list[str]] = {}  # by node
        self._ids: dict[str, int] = {}
        for node, clients in spread.items():
            if clients:
                name = self._name(node)
                self._ids[name], self.clients[name] = node, list(clients)
        self.bytes_down = self.bytes_up = 0
        self._down = dict.fromkeys(phase.to, 0.0)
        self._up = dict.fromkeys(phase.to, 0.0)
        self._why: dict[str, str] = {}  # by node, why it is out
        self._failed: dict[str, list[RejectedReply]] = {}  # by node, its clients that failed
        self._result: tuple[dict[str, dict[str, dict[str, np.ndarray]]], Sums] | None = None
        self._before = False  # whether its result was released before the run was resumed
        self._cannot = "the phase was not run"

    def _order(self, spread: Mapping[int, list[str]]) -> str:
        """Return the SHA-256 of what the phase asks of all nodes; "" if it asks none."""
        engine = self.engine
        for message in engine.messages(self.opened, list(spread.items())[:1]):
            keys = session_terms(as_run_config(engine.config))
            return shared_digest(engine.whole(message.content), self.phase.kind, keys)
        return ""

    def _name(self, node: int) -> str:
        online = self.engine.registry.membership.present().get(node)
        name = online.name if online else ""
        return name if name and name not in self._ids else f"node-{node}"

    def begin(self) -> list[Message]:
        """Return the messages of the first stage; none if no client is asked.

        Raises:
            ConfigError: The masked numbers are more than the link takes.
        """
        bits, size, _ = self.form
        most = max(map(len, self.clients.values()), default=0)
        check_size({"masked sums": size * bits // 8}, most, *self.engine.reply_limit)
        self._first = self._orders(secure.KEYS, self._ids, lambda name: {})
        return self._first

    def run(self, grid: Grid) -> Iterator[Message]:
        """Run all stages; there are no replies to hand on."""
        try:
            self._run(grid)
        except SecureAggregationError as err:
            self._cannot = str(err)
            logger.warning(
                "round %d, %s: secure aggregation: %s", self.engine.round, self.phase.name, self._cannot
            )
        return iter(())

    def _run(self, grid: Grid) -> None:
        server, session = self.server, self.server.session
        keys = self._ask(grid, self._first, lambda name, content: secure.read_keys(content, name))
        roster = server.take_keys(keys)
        listed = secure.roster_fields(roster)
        sealed = self._ask(
            grid,
            self._orders(secure.SHARES, roster.names, lambda name: listed),
            lambda name, content: secure.read_shares(content),
        )
        senders = server.take_shares(sealed)
        about = {**listed, "senders": list(senders)}
        self._ask(grid, self._masked_orders(senders, secure.order_record(session, **about)), self._take)
        server.check_alive()

        if not all(stage.may_open(self.opened) for stage in self.engine.stages):
            self._before = True
            return

        def unmask(name: str) -> Mapping[str, object]:
            inbox = server.shares_for(name)
            mine = {"from": list(inbox), "sealed": list(inbox.values())}
            return {**about, "alive": list(server.alive), **mine}

        alive = server.alive
        shares = self._ask(
            grid,
            self._orders(secure.UNMASK, alive, unmask),
            lambda name, content: secure.read_unmask(content),
        )
        vector = server.take_unmask(shares)
        public = {n: [k.sealing.hex(), k.masking.hex()] for n, k in roster.keys.items()}
        masks = {"keys": public, "senders": list(senders), "shares": shares, "order": session.order}
        self.opened.sums, self.opened.masks = partial(secure.vector_arrays, vector), masks
        found, sums = secure.partials_of(self.contract, self.like, vector)
        clients = sum(len(self.clients[n]) - len(self._failed[n]) for n in alive)
        if (sums.nodes, sums.clients) != (len(alive), clients):
            raise SecureAggregationError(
                f"expected a sum over {len(alive)} nodes and {clients} clients; got one that says "
                "otherwise: a node sent wrong shares or a wrong count"
            )
        self._result = found, sums

    # ------------------------------------------------------------------------------------ messages

    def _orders(
        self, stage: str, names: Collection[str], more: Callable[[str], Mapping[str, object]]
    ) -> list[Message]:
        engine, made = self.engine, []
        for name in sorted(names):
            content = RecordDict({secure.SECAGG: secure.order_record(self.server.session, **more(name))})
            content[wire.CONFIG] = ConfigRecord({"clients": list(self.clients[name])})
            made.append(
                wire.message(content, self._ids[name], f"query.{stage}", engine.round, engine.timeout_s)
            )
        return made

    def _masked_orders(self, senders: Collection[str], record: ConfigRecord) -> list[Message]:
        by_node = {self._ids[name]: self.clients[name] for name in senders}
        made = self.engine.messages(self.opened, by_node.items())
        for message in made:
            message.content[secure.SECAGG] = record
        self.opened.requests = made
        return made

    def _ask(self, grid: Grid, messages: list[Message], read: Callable[[str, RecordDict], T]) -> dict[str, T]:
        """Send the messages of a stage; return, by node, the content of the valid answers."""
        names = {node: name for name, node in self._ids.items()}
        for m in messages:
            self._book(self._down, names[m.metadata.dst_node_id], size := wire.payload_bytes(m.content))
            self.bytes_down += size
        bits, size, numbers = self.form
        most = HEAD_BYTES + size * bits // 8 + numbers * NUMBER_BYTES + (len(self._ids) * 256)
        most += sum(len(c) for c in self.clients.values()) << 9
        engine = self.engine
        terms = Terms(
            engine.registry.membership, engine.round, most_bytes=most, lacks=engine.lacks, once=True
        )
        found: dict[str, T] = {}
        waiting = {m.metadata.dst_node_id for m in messages}
        for reply in Exchange(grid, messages, engine.timeout_s, terms):
            node = reply.metadata.src_node_id
            name = names.get(node, "")
            if node not in waiting:
                continue
            waiting.discard(node)
            if reply.has_error():
                self._why[name] = wire.one_line(reply.error.reason, f"error code {reply.error.code}")
                continue
            got = wire.payload_bytes(reply.content)
            self.bytes_up += got
            self._book(self._up, name, got)
            try:
                if got > most:
                    raise FieldError("", f"at most {most} bytes", f"{got}")
                found[name] = read(name, reply.content)
            except BouquetError as err:
                self._why[name] = wire.one_line(str(err))
            except UNFED:  # ours
                raise
            except Exception as err:  # any error from outside bytes is the reply's fault
                self._why[name] = wire.one_line(str(err), type(err).__name__)
        for node in waiting:
            self._why[names[node]] = f"none within {self.engine.timeout_s:g} s"
        return found

    def _book(self, account: dict[str, float], name: str, size: int) -> None:
        for client in self.clients[name]:
            account[client] += size / len(self.clients[name])

    # ------------------------------------------------------------------------------------- answers

    def _take(self, name: str, content: RecordDict) -> None:
        clients = self.clients[name]
        for stage in self.engine.stages:
            stage.check_reply(self.opened, name, clients, content)
        if secure.adds_nothing(content):
            self._failed[name] = secure.read_failed(content, clients, self.engine.round)
            return
        vector, failed = secure.read_masked(content, clients, self.engine.round, self.form)
        self.server.add(name, vector)
        self._failed[name] = failed
        counted = sum(len(self.clients[n]) - len(self._failed[n]) for n in self.server.alive)
        self.engine.journal.replies(self.engine.round, counted, len(self.phase.to))

    # -------------------------------------------------------------------------------------- result

    def folded(self) -> Folded:
        """Return what the phase comes to."""
        alive = set(self.server.alive) if self._result or self._before else set()
        rejected: list[RejectedReply] = []
        counted: list[str] = []
        for name, clients in self.clients.items():
            failed = {q.client for q in self._failed.get(name, ())}
            if name in alive or failed == set(clients):  # all of them: the node added nothing
                rejected += self._failed[name]
            why = self._why.get(name) or self._cannot
            counted += [c for c in clients if name in alive and c not in failed]
            out = [] if name in alive or failed == set(clients) else clients
            rejected += [
                RejectedReply(c, self.engine.round, "", "a masked sum with its node", why) for c in out
            ]
        counted.sort()
        reduced = self._reduced(tuple(counted), rejected) if self._result and counted else None
        metrics: dict[str, dict[str, float]] = {c: {} for c in counted} if reduced else {}
        rejected.sort(key=lambda q: (q.client, q.field))
        self.opened.reached = {self._ids[n] for n in alive}
        bits, count, _ = self.form
        size = count * bits // 8
        own_up = dict.fromkeys(metrics, size)
        return Folded(
            reduced, rejected, metrics, self.bytes_up, self._up, self._down, own_up=own_up, most_up=size
        )  # fmt: skip

    def _reduced(self, clients: tuple[str, ...], rejected: list[RejectedReply]) -> AggregatedReplies | None:
        assert self._result is not None
        engine, (found, sums) = self.engine, self._result
        try:
            arrays = reduced(self.contract, self.like, found, sums.weight, sums.clients)
            ways = {s.name: s.reduce for s in self.contract.up_scalars}
            made = AggregatedReplies(
                arrays, clients, np.array([sums.examples], np.int64), {}, engine.round, engine.lr,
                engine.trainable, reduce=ways, sums=sums.scalars, weights=np.array([sums.weight], np.int64),
            )  # fmt: skip
            return self.sum_grid.means(self.phase, made, engine.model) if self.contract.rounded else made
        except FieldError as err:  # of no particular client
            rejected += [RejectedReply(c, engine.round, err.field, err.expected, err.got) for c in clients]
            return None

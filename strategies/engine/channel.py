"""Channels: how a phase's messages and replies are exchanged; here the plain one, a reply per node.

A feature that replaces the exchange has a channel of its own, see `strategies.channels`.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.engine.exchange import Exchange, Terms
from strategies.engine.fold import Fold, Folded
from strategies.engine.reply_size import check_size, most_bytes, reply_bytes
from strategies.engine.rule import Phase
from task import timing
from task.numerics.arrays import Arrays
from task.wire import messages as wire
from task.wire import traffic
from task.wire.norms import NormBound

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


@dataclass
class Opened:
    """A phase whose messages are written."""

    phase: Phase  # what is asked
    channel: Channel = field(init=False)
    terms: Terms = field(init=False)  # how the replies are waited for
    requests: list[Message] = field(default_factory=list)  # one message per node
    good: int = 0  # clients with a good reply so far
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))  # tells a second try from the first
    sums: Callable[[], Arrays] = dict  # returns the exact sums of the replies, once they are folded
    masks: Mapping[str, Any] = field(default_factory=dict)  # what opens a sum of masked replies
    reached: set[int] = field(default_factory=set)  # nodes that answered well
    of: dict[str, Any] = field(default_factory=dict)  # what stages and channels keep, by their names


class Channel:
    """The plain exchange of a phase."""

    def __init__(self, engine: PhaseEngine) -> None:
        self.engine = engine

    def open(self, opened: Opened) -> None:
        """Write the messages, and determine how to wait for the replies."""
        engine, phase = self.engine, opened.phase
        requests = engine.messages(opened, engine.spread(phase).items()) if phase.to else []
        engine.bytes_down += sum(wire.payload_bytes(m.content) for m in requests)
        clients = max((len(wire.clients_of(m)) for m in requests), default=0)
        opened.requests, opened.terms = requests, self.terms(phase, clients)

        def patience(lost: int) -> float:
            """Wait longer if the round cannot succeed without the lost clients."""
            return max(engine.registry.timeout_s, timing.COME_BACK_S) if needs(lost) else timing.COME_BACK_S

        least, this = phase.least, weakref.ref(opened)  # a circle would keep the messages and their arrays

        def needs(lost: int) -> bool:
            now = this()
            return now is not None and 0 < least - now.good <= lost

        opened.terms.patience, opened.terms.needs = patience, needs

    def terms(self, phase: Phase, clients: int, *, lasting: bool = False) -> Terms:
        """Return how to wait for replies of this number of clients each.

        Raises:
            ConfigError: Such a reply is larger than what the link takes.
        """
        engine = self.engine
        like, encoding = engine.like(phase.contract, phase.rows), engine.encoding(phase)
        most = most_bytes(phase.contract, like, clients, encoding)
        check_size(reply_bytes(phase.contract, like, clients, encoding), clients, *engine.reply_limit)
        return Terms(
            engine.registry.membership, engine.round, most_bytes=most, lacks=engine.lacks,
            whole=engine.whole, lasting=lasting,
        )  # fmt: skip

    def stream(self, opened: Opened, grid: Grid) -> Iterator[Message]:
        """Send the messages now; return the replies as they come."""
        return iter(Exchange(grid, opened.requests, self.engine.timeout_s, opened.terms))

    def close(self, opened: Opened, replies: Iterable[Message]) -> Folded:
        """Check the replies and fold the good ones in as they come."""
        engine, phase, requests = self.engine, opened.phase, opened.requests
        asked = {m.metadata.message_id: wire.clients_of(m) for m in requests}
        engine.served |= {c: m.metadata.dst_node_id for m in requests for c in wire.clients_of(m)}
        total = sum(len(clients) for clients in asked.values())

        def answered(good: int) -> None:
            opened.good = good
            engine.journal.replies(engine.round, good, total)

        nodes = engine.registry.membership.present()
        where = {m.metadata.message_id: str(nodes.get(m.metadata.dst_node_id, "")) for m in requests}
        limits = engine.limits([c for clients in asked.values() for c in clients], phase)
        most, trainable, sent = (
            engine.config.server.max_update_norm,
            frozenset(engine.trainable),
            phase.records,
        )
        bounds = (stage.bound(phase) for stage in engine.stages)
        bound = next((b for b in bounds if b), None) or NormBound(
            most, sent.get(wire.ARRAYS, engine.model), trainable, phase.received(), sent
        )
        fold = Fold(
            phase.contract, engine.like(phase.contract, phase.rows), asked, engine.round, answered, where,
            limits, bound, engine.encoding(phase), phase.models, self._witness(opened),
        )  # fmt: skip
        fold.run(replies, phase.enough)
        late = f"a reply within {engine.timeout_s:g} s"
        if phase.enough and fold.answered >= phase.enough:
            late = f"a reply before {phase.enough} others were in"
        folded = fold.finish(late=late, lr=engine.lr, trainable=engine.trainable)
        opened.sums = fold.sums
        self.judge(opened, folded)
        good = (m for m in requests if any(c in folded.metrics for c in wire.clients_of(m)))
        opened.reached = {m.metadata.dst_node_id for m in good}
        folded.own_down = self.bytes_to_each(phase)
        engine.bytes_down += sum(wire.payload_bytes(m.content) for m in opened.terms.again)
        for m in (*requests, *opened.terms.again):
            for client, size in traffic.shares(
                m.content, wire.clients_of(m), traffic.recipients(m.content)
            ).items():
                folded.down[client] = folded.down.get(client, 0.0) + size
        return folded

    def judge(self, opened: Opened, folded: Folded) -> None:
        """Note which replies the gate accepted."""

    def _witness(self, opened: Opened) -> Callable[[Message, Sequence[str]], None]:
        """Return the function that passes a reply to the stages, given the asked clients."""

        def take(reply: Message, clients: Sequence[str]) -> None:
            node = self.engine.registry.membership.present().get(reply.metadata.src_node_id)
            for stage in self.engine.stages:
                stage.check_reply(opened, node.name if node else "", clients, reply.content)

        return take

    def bytes_to_each(self, phase: Phase) -> dict[str, int]:
        """Return, by client, the bytes of its downloads, for a device that has followed every round."""
        engine = self.engine
        sizes = {name: sum(a.nbytes for a in arrays.values()) for name, arrays in phase.records.items()}
        if phase.records.get(wire.ARRAYS) is engine.model:
            found = (stage.bytes_down(engine.model) for stage in engine.stages)
            sizes[wire.ARRAYS] = next((n for n in found if n is not None), sizes[wire.ARRAYS])
        to_each = dict.fromkeys(phase.to, sum(sizes.values()))
        if phase.models:
            for client in to_each:
                to_each[client] += sum(a.nbytes for a in phase.models.form(client).values())
        for by_client in phase.route.values():
            for client in to_each.keys() & by_client.keys():
                to_each[client] += sum(
                    a.nbytes for arrays in by_client[client].values() for a in arrays.values()
                )
        return to_each

"""The phase engine: it alone writes messages, sends them, checks and folds the replies, and counts the bytes.

A phase is opened (one message per node), streamed (sent; replies come as they come) and closed (what was good
is reduced, the rest quarantined). `run` does all three. Flower's verbs need the steps one by one.
Registration, a question to nodes, is open in all phases; `register` waits for its answers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies.engine.arrivals import RealArrivals, Waited
from strategies.engine.download import Download
from strategies.engine.evidence import Evidence, evidence_for, witness
from strategies.engine.example_privacy import ExamplePrivacy
from strategies.engine.exchange import Exchange, Terms
from strategies.engine.expected import bytes_to_each, coder_for, limits_of, most_weight
from strategies.engine.fold import Fold, Folded, most_bytes
from strategies.engine.journal import Journal
from strategies.engine.levels import warn_of_empty
from strategies.engine.lost_replies import LostReplies
from strategies.engine.privacy import Privacy
from strategies.engine.recovery import LastGood
from strategies.engine.registration_phase import RegistrationPhase
from strategies.engine.reply_size import check_size, reply_bytes
from strategies.engine.routes import packed_route
from strategies.engine.rule import Distil, Phase
from strategies.engine.secure import SecurePhase
from strategies.engine.state import AggregatedReplies
from strategies.engine.sum_grid import SumGrid
from strategies.membership.client_registry import ClientRegistry
from task import timing
from task.catalogue.columns import COLUMNS
from task.catalogue.entry import Algorithm
from task.catalogue.stages import LAST_CODE
from task.config.knobs import Config
from task.encryption import ckks
from task.encryption.sums import TOTAL
from task.models.family import ModelFamily, SubModels
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.moments import ColumnMoments
from task.privacy.grid import bound_of
from task.resolve.contract import contract_of
from task.wire import messages as wire
from task.wire import traffic
from task.wire.commitments import ATTEMPT
from task.wire.entries import scalars_in
from task.wire.layouts import Forms
from task.wire.norms import NormBound
from task.wire.places import place_entries
from task.wire.replica import BASE, MODEL, steps_record

if TYPE_CHECKING:  # it imports torch
    from task.tasks.metrics import Measures

Extra = dict[str, wire.ConfigValue]


@dataclass
class Opened:
    """A phase whose messages are written."""

    phase: Phase  # what is asked
    requests: list[Message]  # one message per node
    terms: Terms  # how the replies are waited for
    good: int = 0  # clients with a good reply so far
    secure: SecurePhase | None = None  # what runs it, under secure aggregation
    evidence: Evidence | None = None
    waited: Waited | None = None  # the replies, where the clients were asked before and arrived


class PhaseEngine:
    """Runs the phases of one run's rounds.

    `limited` says whether clients train on what they registered, so that more examples are refused.
    """

    def __init__(self, config: Config, registry: ClientRegistry, *, limited: bool = True) -> None:
        self.config, self.registry, self.limited = config, registry, limited
        self.privacy = Privacy(config, contract_of(config)) if config.dp.central else None
        examples = ExamplePrivacy(config) if config.dp.local else None
        self.accounts: Privacy | ExamplePrivacy | None = self.privacy or examples
        self.sum_grid = SumGrid(config, registry)
        self.last_good = LastGood(private=config.dp.central, every=config.output.checkpoint_every)
        self.lost = LostReplies()
        self.download = Download(config)
        self.journal = Journal()
        self.run_id = uuid.uuid4().hex
        self.arrivals: RealArrivals | None = None  # of an asynchronous run whose nodes say who is first
        self.timeout_s = config.server.round_timeout
        self.measures: Measures | None = None  # the run's further metrics
        self.family: ModelFamily | None = None  # which part of the model each client trains
        self.distil: Distil | None = None  # of models on public examples
        self.reply_limit = 0, ""  # bytes that the link takes, 0 = any number, and the file that says so
        self.trainable: tuple[str, ...] = ()  # names of the model's parameters; empty before it is there
        self.model: Arrays = {}
        """The model whose form the replies must have."""
        self.columns = 0  # of a table, as a model reads them; 0 = not known
        self.moments: ColumnMoments | None = None
        """Of a table's columns; they go with every message."""

        self._packed: dict[str, tuple[Arrays, ArrayRecord]] = {}  # by field: packed once while it stays
        self.begin(0)

    def begin(self, server_round: int, lr: float = 0.0, extra: Extra | None = None) -> None:
        """Begin a round: nothing is booked yet.

        `lr` is eta_t; `extra` are further entries for the ``config`` of its messages.
        """
        self.round, self.lr, self.extra = server_round, lr, extra or {}
        self.done: list[tuple[Phase, Folded]] = []
        self.bytes_down = 0
        self._served: dict[str, int] = {}  # by client the node that was asked last in this round
        self._began = time.perf_counter()
        if self.accounts and server_round:
            self.accounts.begin(self.journal, server_round, len(self.registry.known))

    def coded(self, arrays: Arrays) -> Arrays:
        """Return the model that clients will have when a rule has made this one."""
        return self.download.coded(self.model, arrays, self.trainable, self.round)

    def dump(self) -> Arrays:
        """Return what the next round depends on beside the rule's state, for a checkpoint."""
        private = self.accounts.dump() if self.accounts else {}
        return self.last_good.dump() | self.lost.dump() | self.download.dump() | private

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned after the round `done`."""
        if self.accounts:
            self.accounts.load(arrays)
            self.accounts.open(self.journal, done)
        self.lost.load(arrays)
        self.download.load(arrays)

    def follow(self, grid: Grid) -> None:
        """Take updates in the order in which they really arrive, if the run is to."""
        real = contract_of(self.config).asynchronous and self.config.server.order_of_arrival == "real"
        self.arrivals = RealArrivals(self, grid) if real else None

    def close_orders(self) -> None:
        """Wait no more for orders that outlive their round."""
        if self.arrivals:
            self.arrivals.close()

    def record(self, arrays: Arrays, name: str = wire.ARRAYS) -> ArrayRecord:
        """Return a field's arrays as sent; the same arrays give the same record."""
        held = self._packed.get(name)
        if held is None or held[0] is not arrays:
            held = self._packed[name] = arrays, wire.pack_arrays(arrays)
        return held[1]

    def hold(self, arrays: Arrays, record: ArrayRecord) -> None:
        """Take a record for the packed form of the model."""
        self._packed[wire.ARRAYS] = arrays, record

    def run(self, phase: Phase, grid: Grid) -> Folded:
        """Run a phase to its end."""
        opened = self.open(phase)
        return self.close(opened, self.stream(opened, grid))

    def register(self, grid: Grid, server_round: int, clients: int = 0) -> None:
        """Run the registration phase; see `RegistrationPhase` for the arguments and errors."""
        self.registry.at(server_round)
        RegistrationPhase(self.registry, server_round, clients).run(grid)
        self.registry.known.add(self.registry.names)
        warn_of_empty(self)

    def open(self, phase: Phase) -> Opened:
        """Write one message per node; what is for one client goes to its node alone."""
        if self.privacy and phase.contract.noised:
            phase = replace(phase, scalars={**phase.scalars, **self.privacy.scalars()})
        if phase.contract.encrypted:
            phase = replace(phase, scalars={**phase.scalars, TOTAL: most_weight(self, phase)})
        if phase.contract.rounded:
            grid = self.sum_grid.scalars(phase.contract, phase.to)
            phase = replace(phase, scalars={**phase.scalars, **grid})
        evidence = evidence_for(self, phase)
        if self.config.server.secagg:
            return self._open_secure(phase, evidence)
        if self.arrivals and (waited := self.arrivals.waited(phase)):
            return Opened(phase, waited.requests, self.terms(phase, 1), waited=waited)
        requests = self.messages(phase, self.spread(phase).items(), evidence) if phase.to else []
        self.bytes_down += sum(wire.payload_bytes(m.content) for m in requests)
        clients = max((len(wire.clients_of(m)) for m in requests), default=0)
        opened = Opened(phase, requests, self.terms(phase, clients), evidence=evidence)

        def patience(lost: int) -> float:
            """Wait for lost clients as for those that are not there, if they make the round."""
            return max(self.registry.timeout_s, timing.COME_BACK_S) if needs(lost) else timing.COME_BACK_S

        def needs(lost: int) -> bool:
            return 0 < phase.least - opened.good <= lost

        opened.terms.patience, opened.terms.needs = patience, needs
        return opened

    def terms(self, phase: Phase, clients: int, *, lasting: bool = False) -> Terms:
        """Return how replies of so many clients each are waited for; too large for the link is an error."""
        like, coder = self.like(phase.contract, phase.rows), coder_for(self, phase)
        most = most_bytes(phase.contract, like, clients, coder)
        check_size(reply_bytes(phase.contract, like, clients, coder), clients, *self.reply_limit)
        return Terms(self.registry.membership, self.round, most_bytes=most, whole=self.whole, lasting=lasting)

    def _open_secure(self, phase: Phase, evidence: Evidence | None) -> Opened:
        secure = SecurePhase(self, phase, evidence)
        return Opened(phase, secure.begin(), Terms(self.registry.membership, self.round), secure=secure)

    def messages(
        self, phase: Phase, by_node: Iterable[tuple[int, Sequence[str]]], evidence: Evidence | None = None
    ) -> list[Message]:
        """Return a message for each node with its clients; one with `evidence` asks for a commitment."""
        signed: Extra = {ATTEMPT: evidence.attempt} if evidence else {}
        named = phase.to if phase.contract.vertical else self.registry.known.names
        names = tuple(sorted(named)) if phase.contract.individual else ()
        good = self.last_good if phase.contract.keeps else None
        void, oldest = (good.void, good.oldest()) if good else ((), None)
        lost = self.lost.rounds if LAST_CODE in phase.contract.keeps else {}
        records = {name: self.record(arrays, name) for name, arrays in phase.records.items()}
        records |= {COLUMNS: self.record(self.moments.arrays, COLUMNS)} if self.moments else {}
        route, member = packed_route(phase, self._pack), self.registry.membership
        orders, requests = member.orders(), list[Message]()
        for node, clients in by_node:
            order = wire.TrainOrder(
                phase.round or self.round, {}, phase.scalars, tuple(clients),
                tuple(phase.epochs.get(c, 0) for c in clients), self.run_id,
                population=names, void=void, lost=lost, rows=phase.rows,
                whole=member.claims[node].registration.whole, oldest=oldest,
            )  # fmt: skip
            theirs = {f: {c: given[c] for c in clients if c in given} for f, given in route.items()}
            sent, extra = self._model_for(node, phase)
            extra |= place_entries(orders.get(node))
            content = wire.train_content(order, records | sent, {**self.extra, **extra, **signed}, theirs)
            if evidence:
                evidence.sent = scalars_in(content)
            requests.append(wire.message(content, node, phase.kind, order.round, self.timeout_s))
        return requests

    def _pack(self, arrays: Arrays) -> ArrayRecord:
        """Return arrays of a route as sent; the run's model is packed once."""
        return self.record(arrays) if arrays is self.model else wire.pack_arrays(arrays)

    def _model_for(self, node: int, phase: Phase) -> tuple[dict[str, ArrayRecord], Extra]:
        """Return the record of the model for a node and what its message says of it, if it goes as codes."""
        if self.download.codec is None or phase.records.get(wire.ARRAYS) is not self.model:
            return {}, {}
        if self.registry.membership.claims[node].registration.foreign:  # its app reads no codes
            return {}, {}
        steps = self.download.steps_for(node, self.model)
        if not steps.base:
            return {}, {MODEL: steps.model}
        record = steps_record(steps, self.model, self.trainable)
        return {wire.ARRAYS: record}, {MODEL: steps.model, BASE: steps.base}

    def whole(self, content: RecordDict) -> RecordDict:
        """Return an order's content with the model whole, for a node that cannot go on from another one."""
        config = wire.records_of(content, ConfigRecord)[wire.CONFIG]
        if BASE not in config:
            return content
        rest = ConfigRecord({k: v for k, v in config.items() if k != BASE})
        return RecordDict({**content, wire.ARRAYS: self.record(self.model), wire.CONFIG: rest})

    def spread(self, phase: Phase) -> dict[int, list[str]]:
        """Return a phase's clients by node, spread by expected work."""
        full = self.config.train.local_epochs
        counts = self.registry.num_examples(phase.to)
        cost = {c: n * (phase.epochs.get(c, full) / full) + 1 for c, n in counts.items()}
        return self.registry.assign(cost, cost, self._served if phase.session else None)

    def stream(self, opened: Opened, grid: Grid) -> Iterator[Message]:
        """Send the messages now; return the replies as they come.

        A secure phase is run to its end here, and has no replies to hand on.
        """
        if opened.secure:
            return opened.secure.run(grid)
        if opened.waited:
            return iter(opened.waited.replies)
        return iter(Exchange(grid, opened.requests, self.timeout_s, opened.terms))

    def close(self, opened: Opened, replies: Iterable[Message]) -> Folded:
        """Check the replies and fold the good ones in as they come; book the phase."""
        phase, requests = opened.phase, opened.requests
        if opened.secure:
            return self._close_secure(opened.secure, replies)
        asked = {m.metadata.message_id: wire.clients_of(m) for m in requests}
        self._served |= {c: m.metadata.dst_node_id for m in requests for c in wire.clients_of(m)}
        total = sum(len(clients) for clients in asked.values())

        def answered(good: int) -> None:
            opened.good = good
            self.journal.replies(self.round, good, total)

        nodes = self.registry.membership.present()
        where = {m.metadata.message_id: str(nodes.get(m.metadata.dst_node_id, "")) for m in requests}
        limits = limits_of(self, [c for clients in asked.values() for c in clients], phase)
        most, trainable, sent = self.config.server.max_update_norm, frozenset(self.trainable), phase.records
        bound = NormBound(most, sent.get(wire.ARRAYS, self.model), trainable, phase.received(), sent)
        bound = bound_of(phase.contract, phase.scalars) or bound
        like = self.like(phase.contract, phase.rows)
        coder = coder_for(self, phase)
        fold = Fold(
            phase.contract, like, asked, self.round, answered, where, limits, bound, coder, phase.models,
            witness(self, opened.evidence),
        )  # fmt: skip
        fold.run(replies, phase.enough)
        late = f"a reply within {self.timeout_s:g} s"
        if phase.enough and fold.answered >= phase.enough:
            late = f"a reply before {phase.enough} others were in"
        folded = fold.finish(late=late, lr=self.lr, trainable=self.trainable)
        if opened.evidence:
            folded.evidence, opened.evidence.sums = opened.evidence, fold.sums()
        if opened.waited:
            opened.waited.judge(folded)
        good = [m for m in requests if any(c in folded.metrics for c in wire.clients_of(m))]
        self.note_models(requests, {m.metadata.dst_node_id for m in good})
        folded.own_down = bytes_to_each(self, phase)
        self.bytes_down += sum(wire.payload_bytes(m.content) for m in opened.terms.again)
        for m in (*requests, *opened.terms.again):
            for client, size in traffic.shares(
                m.content, wire.clients_of(m), traffic.recipients(m.content)
            ).items():
                folded.down[client] = folded.down.get(client, 0.0) + size
        return self._done(phase, folded)

    def note_models(self, requests: Iterable[Message], good: Collection[int]) -> None:
        """Take note of the models that nodes have: those that answered well have what they were sent."""
        for m in requests:
            if model := wire.entry_of(m.content, MODEL):
                node = m.metadata.dst_node_id
                self.download.known[node] = str(model) if node in good else ""

    def _done(self, phase: Phase, folded: Folded) -> Folded:
        """Account for a phase's answers; add noise to their sums where the run asks for it."""
        self.done.append((phase, folded))
        self.journal.quarantined(folded.set_apart(phase.contract.work))
        if folded.reduced is not None:
            names = tuple(self.registry.known.names) if phase.contract.individual else ()
            folded.reduced = replace(self.spent(folded.reduced, len(phase.to)), names=names)
        if isinstance(self.accounts, ExamplePrivacy) and phase.contract.work == "train":
            self.accounts.observe(folded.metrics)
        if self.privacy and phase.contract.noised:
            came = folded.reduced or self.nobody()
            folded.reduced = self.privacy.release(phase, came, self.like(phase.contract), self.model)
        if folded.evidence:
            folded.evidence.close(folded)
        return folded

    def nobody(self) -> AggregatedReplies:
        """Return the replies of no clients."""
        return AggregatedReplies({}, (), np.zeros(0, int), {}, self.round, self.lr, self.trainable)

    def _close_secure(self, secure: SecurePhase, replies: Iterable[Message]) -> Folded:
        for _ in replies:
            pass
        phase, folded = secure.phase, secure.folded()
        self.bytes_down += secure.bytes_down
        folded.own_down = bytes_to_each(self, phase)
        return self._done(phase, folded)

    def note_lost(self, *, used: bool) -> None:
        """Take note of the clients whose replies are not in the model: of all if the round is not `used`."""
        for phase, folded in self.done:
            if LAST_CODE in phase.contract.keeps:
                self.lost.note(self.round, phase.to, folded.metrics if used else ())

    def settle(self) -> tuple[list[tuple[Phase, Folded]], int]:
        """Return the phases that are done, and the bytes that they sent down; forget both."""
        done, size = self.done, self.bytes_down
        self.done, self.bytes_down = [], 0
        return done, size

    def spent(self, reduced: AggregatedReplies, asked: int) -> AggregatedReplies:
        """Return the replies with what the round has cost so far, and the population."""
        seconds, size = (
            time.perf_counter() - self._began,
            self.bytes_down + sum(f.bytes_up for _, f in self.done),
        )
        return replace(reduced, population=len(self.registry.known), seconds=seconds, bytes=size, asked=asked)

    def like(
        self, contract: Algorithm, rows: Mapping[str, tuple[int, int]] = MappingProxyType({})
    ) -> Mapping[str, Arrays]:
        """Return, by upward field, arrays of the names, shapes and dtypes that a reply must have.

        `rows` are as of `Phase`.
        """
        others = {"sums": self.measures.like if self.measures else {}, "shared-table": self.model}
        part = SubModels(self.family, self.round, self.model).form if self.family else None
        clients = len(self.registry.known)
        shared = ckks.form_of(self.model)
        return Forms(shared, self.trainable, clients, self.columns, rows, others, part).of(contract.up)

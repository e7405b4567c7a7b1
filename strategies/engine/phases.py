"""The phase engine: it alone writes messages, sends them, checks and folds the replies, and counts the bytes.

A phase is opened (one message per node), streamed (sent; replies come as they come) and closed (what was good
is reduced, the rest quarantined). `run` does all three. Flower's verbs need the steps one by one.
Registration, a question to nodes, is open in all phases; `register` waits for its answers.

What a feature adds to a phase is a `ServerStage`, how messages pass a `Channel`; the engine names none.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies.engine.channel import Channel, Opened
from strategies.engine.fold import Folded
from strategies.engine.journal import Journal
from strategies.engine.recovery import LastGood
from strategies.engine.registration_phase import RegistrationPhase
from strategies.engine.rule import ADAPT, EVALUATE, Distil, Phase
from strategies.engine.stage import Outgoing, ServerStage
from strategies.engine.state import AggregatedReplies
from strategies.membership.client_registry import ClientRegistry
from task.catalogue.entry import SUMS, Algorithm
from task.config.knobs import Config
from task.datasets import targets_of
from task.numerics.arrays import Arrays, NamedArrays, presumed_trainable
from task.wire import messages as wire
from task.wire.encoding import PLAIN, Encoding
from task.wire.layouts import Forms
from task.wire.places import place_entries

if TYPE_CHECKING:  # it imports torch
    from task.tasks.metrics import Measures, Value

Extra = dict[str, wire.ConfigValue]
S = TypeVar("S", bound=ServerStage)


class PhaseEngine:
    """Runs the phases of one run's rounds.

    `limited` says whether clients train on what they registered, so that more examples are refused.
    """

    def __init__(self, config: Config, registry: ClientRegistry, *, limited: bool = True) -> None:
        self.config, self.registry, self.limited = config, registry, limited
        self.stages: list[ServerStage] = []  # of the run's features, in the order in which they act
        self.last_good = LastGood(every=config.output.checkpoint_every)
        self.journal = Journal()
        self.run_id = uuid.uuid4().hex
        self.timeout_s = config.server.round_timeout
        self.measures: Measures | None = None  # the run's further metrics
        self.distil: Distil | None = None  # of models on public examples
        self.reply_limit = 0, ""  # bytes that the link takes, 0 = any number, and the file that says so
        self.trainable: tuple[str, ...] = ()  # names of the model's parameters; empty before it is there
        self.model: Arrays = {}
        """The model whose form the replies must have."""
        self.full: Arrays = {}  # with the parts that stay at the clients; empty = all of it is shared

        self.fixed: Arrays = {}  # tensors that no client changes; they are no part of the rule's state
        self._plain = Channel(self)
        self._packed: dict[str, tuple[Arrays, ArrayRecord]] = {}  # by field: packed once while it stays
        self.begin(0)

    def use(self, stages: Sequence[ServerStage]) -> None:
        """Set the stages of the run's features, in the order in which they act."""
        self.stages = list(stages)
        self.last_good.private = any(stage.hides for stage in stages)

    def trains(self, model: Arrays) -> tuple[str, ...]:
        """Return the names of the model's parameters, presumed by their own names if nobody has said them."""
        self.trainable = self.trainable or presumed_trainable(model)
        return self.trainable

    @property
    def lacks(self) -> tuple[str, ...]:
        """What is in the error of a node that lacks what its order builds on."""
        return tuple(stage.lacks for stage in self.stages if stage.lacks)

    def find(self, kind: type[S]) -> S | None:
        """Return the run's stage of a kind, for the feature's own files; None if it is not active."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    def begin(self, server_round: int, lr: float = 0.0, extra: Extra | None = None) -> None:
        """Begin a round.

        `lr` is eta_t; `extra` are further entries for the ``config`` of its messages.
        """
        self.round, self.lr, self.extra = server_round, lr, extra or {}
        self.done: list[tuple[Phase, Folded]] = []
        self.bytes_down = 0
        self.served: dict[str, int] = {}  # by client the node that was asked last in this round
        self._began = time.perf_counter()
        for stage in self.stages:
            stage.begin()

    def coded(self, arrays: Arrays) -> Arrays:
        """Return the model that clients will have when a rule has made this one."""
        for stage in self.stages:
            arrays = stage.coded(arrays)
        return arrays

    def completed(self, model: Arrays) -> Arrays:
        """Return the run's model as its file has it, with what does not travel."""
        for stage in self.stages:
            model = stage.completed(model)
        return model

    def dump(self) -> Arrays:
        """Return what the next round depends on in addition to the rule's state, for a checkpoint."""
        found = self.last_good.dump()
        for stage in self.stages:
            found |= stage.dump()
        return found

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Restore what `dump` returned after the round `done`."""
        for stage in self.stages:
            stage.load(arrays, done)

    def record(self, arrays: Arrays, name: str = wire.ARRAYS) -> ArrayRecord:
        """Return a field's arrays as sent; the same arrays give the same record."""
        held = self._packed.get(name)
        if held is None or held[0] is not arrays:
            held = self._packed[name] = arrays, wire.pack_arrays(arrays)
        return held[1]

    def hold(self, arrays: Arrays, record: ArrayRecord) -> None:
        """Use a record as the packed form of the model."""
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
        for stage in self.stages:
            stage.registered()

    def enrolled(self) -> None:
        """Let the stages draw among the clients that are online, before they are asked."""
        for stage in self.stages:
            stage.enrolled()

    def open(self, phase: Phase) -> Opened:
        """Write one message per node; what is for one client goes to its node alone."""
        for stage in self.stages:
            phase = stage.before_send(phase)
        opened = Opened(phase)
        for stage in self.stages:
            stage.opened(opened)
        found = (stage.channel(opened) for stage in self.stages)
        opened.channel = next((channel for channel in found if channel), self._plain)
        opened.channel.open(opened)
        return opened

    def messages(self, opened: Opened, by_node: Iterable[tuple[int, Sequence[str]]]) -> list[Message]:
        """Return a phase's message for each node with its clients."""
        phase, good = opened.phase, self.last_good if opened.phase.contract.keeps else None
        named = phase.parties or phase.to if phase.contract.vertical else self.registry.known.names
        names = tuple(sorted(named)) if phase.contract.individual else ()
        void, oldest = (good.void, good.oldest()) if good else ((), None)
        records = {name: self.record(arrays, name) for name, arrays in phase.records.items()}
        route, member = _packed_route(phase, self._pack), self.registry.membership
        orders, requests = member.orders(), list[Message]()
        for node, clients in by_node:
            order = wire.TrainOrder(
                phase.round or self.round, {}, phase.scalars, tuple(clients),
                tuple(phase.epochs.get(c, 0) for c in clients), self.run_id,
                population=names, void=void, rows=phase.rows,
                whole=member.claims[node].registration.whole, oldest=oldest,
            )  # fmt: skip
            out = Outgoing(node, order, dict(records), {**self.extra, **place_entries(orders.get(node))})
            for stage in self.stages:
                stage.attach(opened, out)
            theirs = {f: {c: given[c] for c in clients if c in given} for f, given in route.items()}
            content = wire.train_content(out.order, out.records, out.entries, theirs)
            for stage in self.stages:
                stage.written(opened, content)
            requests.append(wire.message(content, node, phase.kind, order.round, self.timeout_s))
        return requests

    def _pack(self, arrays: Arrays) -> ArrayRecord:
        """Return a route's arrays in packed form; the run's model is packed once."""
        return self.record(arrays) if arrays is self.model else wire.pack_arrays(arrays)

    def whole(self, content: RecordDict) -> RecordDict:
        """Return an order's self-contained content, for a node that lost earlier state."""
        for stage in self.stages:
            content = stage.whole(content)
        return content

    def spread(self, phase: Phase) -> dict[int, list[str]]:
        """Return a phase's clients by node, spread by expected work."""
        full = self.config.train.local_epochs
        counts = self.registry.num_examples(phase.to)
        cost = {c: n * (phase.epochs.get(c, full) / full) + 1 for c, n in counts.items()}
        return self.registry.assign(cost, cost, self.served if phase.session else None)

    def stream(self, opened: Opened, grid: Grid) -> Iterator[Message]:
        """Send the messages now; return the replies as they come, if the channel passes any on."""
        return opened.channel.stream(opened, grid)

    def close(self, opened: Opened, replies: Iterable[Message]) -> Folded:
        """Fold a phase's replies as they come, record the phase, and return the result."""
        phase, folded = opened.phase, opened.channel.close(opened, replies)
        self.done.append((phase, folded))
        self.journal.quarantined(folded.set_apart(phase.contract.work))
        if folded.reduced is not None:
            names = tuple(self.registry.known.names) if phase.contract.individual else ()
            folded.reduced = replace(self.spent(folded.reduced, len(phase.to)), names=names)
        for stage in self.stages:
            stage.after_fold(opened, folded)
        opened.sums = dict  # their memory is free
        return folded

    def nobody(self) -> AggregatedReplies:
        """Return the replies of no clients."""
        return AggregatedReplies({}, (), np.zeros(0, int), {}, self.round, self.lr, self.trainable)

    def note_used(self, *, used: bool) -> None:
        """Notify the stages whether the replies of the round's phases are in the model."""
        for stage in self.stages:
            stage.used(used=used)

    def take_done(self) -> tuple[list[tuple[Phase, Folded]], int]:
        """Return the phases that are done, and the bytes that they sent down; forget both."""
        done, size = self.done, self.bytes_down
        self.done, self.bytes_down = [], 0
        return done, size

    def spent(self, reduced: AggregatedReplies, asked: int) -> AggregatedReplies:
        """Return the replies with the round's cost so far, and the population."""
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
        others["whole"] = self.full or self.model
        forms = Forms(self.model, self.trainable, len(self.registry.known), 0, rows, others)
        for stage in self.stages:
            forms = stage.forms(forms)
        return forms.of(contract.up)

    def measured(self, reduced: AggregatedReplies) -> dict[str, Value]:
        """Return the run's further metrics over the clients that have evaluated; {} if it has none."""
        return self.measures.values(reduced.arrays[SUMS.name]) if self.measures else {}

    def encoding(self, phase: Phase) -> Encoding:
        """Return how records travel in the replies to a phase."""
        found = (stage.encoding(phase) for stage in self.stages)
        return next((encoding for encoding in found if encoding), PLAIN)

    def limits(self, clients: Sequence[str], phase: Phase) -> dict[str, dict[str, float]]:
        """Return by client upper limits of its scalars: what follows from its registration."""
        if (
            not self.limited or EVALUATE in (phase.name, phase.contract.work) or phase.name == ADAPT
        ):  # test examples are not registered
            return {}
        targets = targets_of(self.config.data)
        most = self.registry.most_examples(clients)
        return {c: {wire.NUM_EXAMPLES: n * targets, **phase.limits.get(c, {})} for c, n in most.items()}


def _packed_route(
    phase: Phase, packed_of: Callable[[Arrays], ArrayRecord]
) -> dict[str, dict[str, dict[str, ArrayRecord]]]:
    """Return what differs by client as records; what several get is packed once, by `packed_of`."""
    packed: dict[int, ArrayRecord] = {}  # by id: the phase keeps the arrays alive

    def pack(arrays: Arrays) -> ArrayRecord:
        if id(arrays) not in packed:
            packed[id(arrays)] = packed_of(arrays)
        return packed[id(arrays)]

    route = {
        f: {c: {n: pack(a) for n, a in given.items()} for c, given in by_client.items()}
        for f, by_client in phase.route.items()
    }
    if phase.models:
        route[wire.ARRAYS] = {c: {c: wire.pack_arrays(phase.models.received(c))} for c in phase.to}
    return route

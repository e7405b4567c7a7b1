"""The ClientApp: registers, trains and evaluates the clients that a message names."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.data.node import Node, open_node
from client_app.data.own_data import check_own_data, note_own_data
from client_app.data.owner import SIMULATION, Owner, check_spending, config_of_node, owner_of
from client_app.data.registering import log_for_owner, registration_of
from client_app.memory.room import check_room
from client_app.stages.attacks import drawn
from client_app.stages.columns import in_order, sum_columns, with_columns
from client_app.stages.encryption import ciphertexts_of, opened
from client_app.stages.kept_model import keep_model
from client_app.stages.loss import query_clients
from client_app.stages.receipts import commit
from client_app.stages.replica import with_model
from client_app.stages.secure import Masking, answer_stage, masking_of
from client_app.stages.stage import Outcome
from client_app.trial import try_out
from client_app.vertical.align import align_parties
from client_app.vertical.logistic import run_logistic
from client_app.vertical.training import embed_rows, score_rows, train_labels
from client_app.work import adapt_clients, check_bounds, evaluate_clients, train_clients
from task import trust
from task.catalogue.entry import Algorithm, adaptation_of, evaluation_of
from task.config.paths import state_root
from task.encryption.sums import Ciphertexts
from task.errors import (
    MISTAKES,
    BouquetError,
    FieldError,
    RefusedError,
    SecureAggregationError,
    WireError,
)
from task.flower.ray import in_simulation
from task.numerics.arrays import Arrays
from task.privacy.grid import bound_of
from task.references import references_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import checks, registration, secure
from task.wire import messages as wire
from task.wire.coding import Coder, coder_of
from task.wire.folding import Encrypted, Folding
from task.wire.norms import NormBound
from task.wire.packing import is_packed, packed, unpacked

TRAIN, EVALUATE = "train", "evaluate"
OnMessage = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, OnMessage], Message]  # as Flower calls it


class PhaseApp(ClientApp):
    """A ClientApp that answers phases of any name: which a run has, its contract says.

    `on_phase` returns what answers a phase.
    """

    def __init__(self, on_phase: Callable[[str], OnMessage], mods: list[Mod]) -> None:
        super().__init__(mods=mods)
        self._on_phase, self._known = on_phase, {TRAIN, EVALUATE}
        self.train()(on_phase(TRAIN))
        self.evaluate()(on_phase(EVALUATE))

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; its phase is registered with Flower when the first of its kind arrives."""
        kind = message.metadata.message_type
        verb, _, name = kind.partition(".")
        if verb in (TRAIN, EVALUATE) and kind not in self._known:
            (self.train if verb == TRAIN else self.evaluate)(name)(self._on_phase(name))
            self._known.add(kind)
        return super().__call__(message, context)


def make_app(
    run_config: Mapping[str, Any] | None = None, *, simulation: bool = False, said: trust.Words | None = None
) -> ClientApp:
    """Return a ClientApp.

    Keys of `run_config` take the place of the context's and make it a simulation: for
    `server_app.engines.simulate`, which has no run config. `simulation` says that the run and the clients
    are one user's, on one machine; see `client_app.data.owner`. `said` is what that user named in the process
    that made the run config, see `task.trust`.
    """
    fixed = dict(run_config or {})
    if said is not None:
        trust.take_over(said)
    simulation = simulation or bool(fixed)

    def owner(context: Context) -> Owner:
        return SIMULATION if simulation or in_simulation() else owner_of(context.node_config, context.run_id)

    def node_of(context: Context) -> Node:
        owned, keys = owner(context), {**context.run_config, **fixed}
        if owned.simulation:
            if not fixed:  # Flower's own simulation, whose user has typed the keys
                trust.user_named(references_in(keys))
            config = read_config(keys)
        else:
            config = config_of_node(keys, context.node_config)
        return open_node(config, context.node_config, owned)

    def explained(message: Message, context: Context, work: OnMessage) -> Message:
        """Let no error out but in the words that the owner of the node allows: a mod of Flower's."""
        try:
            return work(message, context)
        except Exception as err:  # raised again, without what the owner does not let out
            owned = owner(context)
            if owned.simulation:
                raise
            kind = RefusedError if isinstance(err, RefusedError) else BouquetError
            lacks_memory = isinstance(err, MemoryError) or "allocate memory" in str(err)
            raise kind(owned.explain(err)) from (err if lacks_memory else None)  # which says how much

    def on_phase(name: str) -> OnMessage:
        def on_message(message: Message, context: Context) -> Message:
            node = node_of(context)
            entry = contract_of(node.config)
            own = {TRAIN: entry, EVALUATE: evaluation_of(entry), "adapt": adaptation_of(entry)}
            contract = {**own, **entry.phases}.get(name)
            verb, _, _ = message.metadata.message_type.partition(".")
            if contract is None or contract.verb != verb:  # an owner's rules on training go by the verb
                raise WireError(f"{node.config.algorithm} has no {verb} phase {name!r} under this run config")
            kind, run = message.metadata.message_type, str(wire.entry_of(message.content, "run") or "")
            if not node.owner.simulation:
                check_room(state_root(node.config), node.config.run_name, run)
            check_spending(node.owner, node.config, contract)
            masking = masking_of(message.content, kind, node.config, context, node.owner.ledger)
            if verb == TRAIN:
                check_own_data(node, context, message.content)
            content = answer(node, message.content, contract, masking)
            commit(node, context, name, message, content)
            return Message(content, reply_to=message)

        return on_message

    made = PhaseApp(on_phase, [explained, answer_in_kind])

    @made.query(registration.REGISTER)
    def on_registration(message: Message, context: Context) -> Message:
        try:
            node = node_of(context)
            changed = note_own_data(node, context)
            if not node.owner.simulation:
                log_for_owner(node, changed=changed)
            registered = registration_of(node)
            try_out(node)
            content = registration.registration_content(registered)
        except BouquetError as err:
            content = registration.refusal_content(owner(context).explain(err))
        return Message(content, reply_to=message)

    for stage in (secure.KEYS, secure.SHARES, secure.UNMASK):

        def on_stage(message: Message, context: Context, stage: str = stage) -> Message:
            node = node_of(context)
            simulation = node.owner.simulation
            content = answer_stage(stage, message.content, node.config, context, simulation=simulation)
            return Message(content, reply_to=message)

        made.query(stage)(on_stage)
    return made


def answer_in_kind(message: Message, context: Context, work: OnMessage) -> Message:
    """Unpack a message that came packed, and pack the answer to it: a mod of Flower's."""
    came_packed = is_packed(message.content)
    if came_packed:
        message.content = unpacked(message.content)
    reply = work(message, context)
    if came_packed:
        reply.content = packed(reply.content)
    return reply


Work = Callable[[Node, Algorithm, wire.TrainOrder], Iterable[Outcome]]
WORK: dict[str, Work] = {
    "train": train_clients,
    "evaluate": evaluate_clients,
    "loss": query_clients,
    "columns": sum_columns,
    "adapt": adapt_clients,
    **dict.fromkeys(("points", "mask", "match"), align_parties),
    "embed": embed_rows,
    "label": train_labels,
    "score": score_rows,
    **dict.fromkeys(("residuals", "products", "open", "finish", "scores", "tally"), run_logistic),
}


def answer(
    node: Node, content: RecordDict, entry: Algorithm | None = None, masking: Masking | None = None
) -> RecordDict:
    """Do what a contract asks for the clients that a message names and merge their uploads as they come.

    A message without names comes from a strategy that is not Bouquet's, one for the whole node from such a
    loop or wrapper: all clients of the node are trained and their reduction is answered as if the node were
    one client.

    Without an `entry` it is the run's training. With `masking` the answer is one masked sum.

    Raises:
        WireError: What came down does not fit this node: so it is for all of its clients.
        RefusedError: An upload would be computed from less than the owner of the node allows.
    """
    entry = entry or contract_of(node.config)
    node = with_columns(in_order(node, content), content)
    content = opened(node, with_model(node, content))
    parts, forms = node.parts(), node.forms()
    order = wire.read_order(entry, content, forms)
    if masking:
        masking.check(content, order)
    node = node.at(order.round)
    trainable = frozenset(parts.trainable)
    most, model = node.config.server.max_update_norm, order.arrays.get(wire.ARRAYS, {})
    received = (lambda c: order.received(c)[wire.ARRAYS]) if entry.parted else None
    bound = bound_of(entry, order.scalars) or NormBound(most, model, trainable, received, order.arrays)
    like = replace(forms, clients=len(order.population), rows=order.rows).of(entry.up)
    own = order.received if entry.parted else None
    coder = coder_of(node.config, entry, like, order.arrays, parts.trainable, order.round, own)
    named = bool(order.clients) and not order.whole
    contract = coder.forwarding(len(order.clients)) if coder and named else entry
    if masking:
        contract, coder = secure.as_summed(entry), None
    ciphertexts = ciphertexts_of(node, entry, order)
    merged = _Merge(contract, like, bound, node.owner, coder, ciphertexts, forms.part)
    if not named:
        clients = _share(node)
        order = replace(order, clients=clients, epochs=(order.epochs or (0,))[:1] * len(clients))
    if entry.parted and any(wire.ARRAYS not in order.received(c) for c in order.clients):
        raise WireError(
            "training message: expected 'arrays' for each client, a part of the model (run-config key "
            f'"{node.config.part_key}"); got none',
            wire.ARRAYS,
        )
    check_bounds(node, entry, order)
    if node.owner.keep_models and entry.work in ("train", "evaluate") and not entry.parted:
        keep_model(node, order)
    outcomes = WORK[entry.work](node, entry, order)
    for client, outcome in outcomes:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            merged.add(client, outcome)
        except MISTAKES:  # in the program, and no client's
            raise
        except Exception as err:  # a client's failure is its own; the others go on
            if not named:
                raise
            merged.fail(client, order.round, err)
    if masking:
        if not node.owner.simulation and drawn(node, merged.clients):
            raise SecureAggregationError(
                "expected a client whose upload follows from its data; got canaries and random attackers "
                "only, whose uploads the run's seed gives away: they would hide no other node's"
            )
        return merged.masked(masking)
    return wire.reply_content(merged.reply() if named or entry.encrypted else merged.as_one_client())


def _share(node: Node) -> tuple[str, ...]:
    """Return the clients that are this node's own share of the partition."""
    part, parts = node.share
    names = sorted(node.clients.names)
    return tuple(names[part::parts]) if len(names) > 1 else tuple(names)


class _Merge:
    """The uploads of a node's clients, checked and folded as they come."""

    def __init__(
        self,
        entry: Algorithm,
        like: Mapping[str, Arrays],
        bound: NormBound | None = None,
        owner: Owner = SIMULATION,
        coder: Coder | None = None,
        ciphertexts: Encrypted = Ciphertexts,
        part: Callable[[str], Arrays] | None = None,
    ) -> None:
        self.entry, self.owner, self.coder = entry, owner, coder
        bound = bound or NormBound(0.0, {}, frozenset())
        self.folding = Folding(entry, like, bound, carries=True, ciphertexts=ciphertexts, part=part)
        self.clients: list[str] = []
        self.failed: list[wire.RejectedReply] = []
        self.scalars: list[dict[str, float]] = []
        # By record and client, what is forwarded as a code.
        forwarded = [r for r in entry.up if r.coded and r.carry == "each"]
        self.forwarded: dict[str, dict[str, Arrays]] = {r.name: {} for r in forwarded}

    def add(self, client: str, upload: wire.ClientUpdate) -> None:
        """Check one client's upload and fold it in."""
        checks.check_scalars(self.entry, upload.scalars)
        fold = self.folding.checked(client, upload.arrays, upload.scalars)
        # The first upload waits: alone it goes up as it is, and costs no fold.
        if not self.clients:
            self.first, self.fold_first = upload, fold
        else:
            self._fold_first()
            fold()
        for r in self.entry.up:
            if r.name in self.forwarded and self.coder:
                weight = np.array(self.folding.weight(upload.scalars), np.int64)
                self.forwarded[r.name][client] = {**self.coder.on_wire(r, upload), "": weight}
        self.clients.append(client)
        self.scalars.append(upload.scalars)

    def _fold_first(self) -> None:
        if len(self.clients) == 1:
            self.fold_first()

    def fail(self, client: str, server_round: int, err: Exception) -> None:
        """Leave a client out and say why."""
        if isinstance(err, FieldError):
            field, expected, got = err.field, err.expected, err.got
        else:
            field, expected, got = "", "a trained client", self.owner.explain(err)[:400]
        one_line = " ".join(got.split())
        self.failed.append(wire.RejectedReply(client, server_round, field, expected, one_line))

    def reply(self) -> wire.NodeReply:
        """Return the node's answer: plain if it is one client's and in clear, else merged."""
        if len(self.clients) == 1 and not self.failed and not self.entry.encrypted:
            return wire.NodeReply(self.clients, {}, upload=self._on_wire(self.first))
        self._fold_first()
        common = set.intersection(*(set(s) for s in self.scalars)) if self.scalars else set()
        lists = {k: [s[k] for s in self.scalars] for k in sorted(common)}
        partials = {**self.folding.partials(), **self.forwarded} if self.clients else {}
        return wire.NodeReply(self.clients, lists, partials=partials, failed=self.failed)

    def masked(self, masking: Masking) -> RecordDict:
        """Return the node's answer in a secure round."""
        self._fold_first()
        weights = [self.folding.weight(row) for row in self.scalars]
        return masking.content(self.entry, self.folding.partials(), self.scalars, weights, self.failed)

    def _on_wire(self, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        if self.coder is None:
            return upload
        coded = {r.name: self.coder.on_wire(r, upload) for r in self.entry.up if r.coded}
        return replace(upload, arrays={**upload.arrays, **coded})

    def as_one_client(self) -> wire.NodeReply:
        """Return the reduction as one plain upload.

        What the rule works with is averaged as the arrays are, other scalars by examples.

        Raises:
            WireError: There is no client.
        """
        if not self.clients:
            raise WireError(
                "a message that names no clients is for the node's share of them, which is empty: "
                "more nodes than clients"
            )
        if len(self.clients) == 1:
            return wire.NodeReply(self.clients, {}, upload=self.first)
        counts = [int(s[wire.NUM_EXAMPLES]) for s in self.scalars]
        names = set.intersection(*(set(s) for s in self.scalars)) - {wire.NUM_EXAMPLES}
        by_client = self.entry.weight == "uniform" and self.entry.work == "train"
        rules = {f.name for f in self.entry.up_scalars} if by_client else set()
        means: dict[str, float] = {}
        for k in sorted(names):
            weights = [1] * len(counts) if k in rules else counts
            total = math.fsum(s[k] * n for s, n in zip(self.scalars, weights, strict=True))
            means[k] = total / sum(weights)
        upload = wire.ClientUpdate(self.folding.results(), {**means, wire.NUM_EXAMPLES: sum(counts)})
        return wire.NodeReply(self.clients, {}, upload=upload)


app = make_app()

__all__ = ["app", "make_app"]

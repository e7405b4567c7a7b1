"""The ClientApp: registers, trains and evaluates the clients that a message names."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.answer import answer
from client_app.data.node import Node, open_node
from client_app.data.own_data import check_own_data
from client_app.data.owner import SIMULATION, Owner, check_spending, config_of_node, owner_of
from client_app.memory.room import check_room
from client_app.registering import note_left_out, register
from client_app.stages import queries
from client_app.stages.node_stage import Query
from task import trust
from task.catalogue.entry import phase_of
from task.config.knobs import Config
from task.config.paths import state_root
from task.errors import (
    BouquetError,
    RefusedError,
    WireError,
)
from task.flower.ray import in_simulation
from task.references import references_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import messages as wire
from task.wire import registration
from task.wire.packing import is_packed, packed, unpacked

TRAIN, EVALUATE = "train", "evaluate"
OnMessage = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, OnMessage], Message]  # as Flower calls it


class PhaseApp(ClientApp):
    """A ClientApp that answers phases of any name; the contract says which a run has.

    `on_phase` returns the handler of a phase.
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


class Answers:
    """Answers messages for the nodes of a ClientApp, each by its own config and for its own owner.

    Keys of `fixed` take the place of a context's; see `make_app`, also on `simulation`.
    """

    def __init__(self, fixed: Mapping[str, Any], simulation: bool) -> None:
        self.fixed, self.simulation = fixed, simulation
        self._latest: dict[str, Config] = {}  # of a simulation, whose messages all have the same keys

    def owner(self, context: Context) -> Owner:
        """Return the owner of a node's data."""
        if self.simulation or in_simulation():
            return SIMULATION
        return owner_of(context.node_config, context.run_id)

    def node(self, context: Context) -> Node:
        """Return the node of a context, its data opened."""
        owned, keys = self.owner(context), {**context.run_config, **self.fixed}
        config = self._simulated(keys) if owned.simulation else config_of_node(keys, context.node_config)
        return open_node(config, context.node_config, owned, context.node_id)

    def _simulated(self, keys: Mapping[str, Any]) -> Config:
        if (text := repr(keys)) not in self._latest:
            if not self.fixed:  # Flower's own simulation, whose user has typed the keys
                trust.user_named(references_in(keys))
            self._latest = {text: read_config(keys)}
        return self._latest[text]

    def explained(self, message: Message, context: Context, work: OnMessage) -> Message:
        """Flower mod: send errors only in the form that the node's owner allows."""
        try:
            return work(message, context)
        except Exception as err:  # raised again, without the parts that the owner keeps private
            owned = self.owner(context)
            if owned.simulation:
                raise
            kind = RefusedError if isinstance(err, RefusedError) else BouquetError
            lacks_memory = isinstance(err, MemoryError) or "allocate memory" in str(err)
            raise kind(owned.explain(err)) from (err if lacks_memory else None)  # which says how much

    def phase(self, name: str) -> OnMessage:
        """Return the handler of a phase."""

        def on_message(message: Message, context: Context) -> Message:
            node = self.node(context)
            contract = phase_of(contract_of(node.config), name)
            verb, _, _ = message.metadata.message_type.partition(".")
            if contract is None or contract.verb != verb:  # an owner's rules on training depend on the verb
                raise WireError(f"{node.config.algorithm} has no {verb} phase {name!r} with this run config")
            kind, run = message.metadata.message_type, str(wire.entry_of(message.content, "run") or "")
            if not node.owner.simulation:
                check_room(state_root(node.config), node.config.run_name, run)
            check_spending(node.owner, node.config, contract)
            if verb == TRAIN:
                check_own_data(node, context, message.content)
            content = answer(node, message.content, contract, kind=kind, context=context)
            return Message(content, reply_to=message)

        return on_message

    def registration(self, message: Message, context: Context) -> Message:
        """Answer with the node's clients, or say why it cannot take part."""
        try:
            content = registration.registration_content(register(self.node(context), context))
        except BouquetError as err:
            content = registration.refusal_content(self.owner(context).explain(err))
        return Message(content, reply_to=message)

    def left_out(self, message: Message, context: Context) -> Message:
        """Tell the node's owner that the run leaves it out, unless the owner is the run's user."""
        if not self.owner(context).simulation:
            run = context.run_config.get("run-name") or context.run_id
            note_left_out(message.content, run, lambda: self.node(context))
        return Message(RecordDict(), reply_to=message)

    def query(self, query: Query) -> OnMessage:
        """Return the handler of a feature's query."""

        def on_query(message: Message, context: Context) -> Message:
            return Message(query(self.node(context), message.content, context), reply_to=message)

        return on_query


def make_app(
    run_config: Mapping[str, Any] | None = None,
    *,
    simulation: bool = False,
    inherit: Callable[[], object] = lambda: None,
) -> ClientApp:
    """Return a ClientApp.

    Keys of `run_config` take the place of the context's and make it a simulation: for
    `server_app.engines.simulate`, which has no run config. `simulation` says that the run and the clients
    are one user's, on one machine; see `client_app.data.owner`. `inherit` takes over what the process that
    made the run config has and this one may lack.
    """
    fixed = dict(run_config or {})
    inherit()
    answers = Answers(fixed, simulation or bool(fixed))
    made = PhaseApp(answers.phase, [answers.explained, answer_in_kind])
    made.query(registration.REGISTER)(answers.registration)
    made.query(registration.LEFT_OUT)(answers.left_out)
    for name, query in queries().items():
        made.query(name)(answers.query(query))
    return made


def answer_in_kind(message: Message, context: Context, work: OnMessage) -> Message:
    """Flower mod: unpack packed messages, and pack the answers to them."""
    came_packed = is_packed(message.content)
    if came_packed:
        message.content = unpacked(message.content)
    reply = work(message, context)
    if came_packed:
        reply.content = packed(reply.content)
    return reply


app = make_app()

__all__ = ["app", "make_app"]

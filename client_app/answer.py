"""Answer a phase's message: run its work for the clients, and merge their uploads as they come."""

from collections.abc import Sequence
from dataclasses import replace

from flwr.app import Context, RecordDict

from client_app.data.node import Node
from client_app.stages import node_stages_of
from client_app.stages.kept_model import keep_model
from client_app.stages.merge import FoldPlan, Merge
from client_app.stages.node_stage import Asked, NodeStage
from client_app.work import check_bounds
from client_app.works import WORK
from task.catalogue.entry import Algorithm
from task.config.paths import cache_dir
from task.datasets.reorder import read_by_name
from task.errors import MISTAKES, WireError
from task.numerics import pages
from task.resolve.contract import contract_of
from task.wire import messages as wire
from task.wire.norms import NormBound
from task.wire.places import read_places


def answer(
    node: Node,
    content: RecordDict,
    contract: Algorithm | None = None,
    *,
    kind: str = "train",
    context: Context | None = None,
) -> RecordDict:
    """Do a contract's work for the clients that a message names, and merge their uploads as they come.

    A message without names comes from a strategy that is not Bouquet's, one for the whole node from such a
    loop or wrapper: all clients of the node are trained and their reduction is answered as if the node were
    one client.

    Without a `contract` it is the run's training. What a node remembers between messages is in `context`.

    Raises:
        WireError: What came down does not fit this node: so it is for all of its clients.
        DataError: The node's data are not those of the run.
        RefusedError: An upload would be computed from less than the owner of the node allows.
    """
    contract = contract or contract_of(node.config)
    stages = node_stages_of(Asked(node, content, contract, kind, context))
    if (places := read_places(content)) is not None:  # in which the run's tables have their columns
        dataset = read_by_name(node.dataset, places, cache_dir(node.config.data))
        node = replace(node, dataset=dataset)
    for stage in stages:
        node = stage.node(node)
    for stage in stages:
        content = stage.content(node, content)
    order = wire.read_order(contract, content, node.forms())
    for stage in stages:
        stage.check(content, order)
    node = node.at(order.round)
    named = bool(order.clients) and not order.whole
    plan = _plan(node, contract, order, stages, named=named)
    if not named:
        clients = _share(node)
        order = replace(order, clients=clients, epochs=(order.epochs or (0,))[:1] * len(clients))
    plan.alone = len(order.clients) == 1
    plan.stays = pages.used() and not any(stage.answers for stage in stages)
    merged = Merge(plan, node.owner)
    if contract.parted and any(wire.ARRAYS not in order.received(c) for c in order.clients):
        raise WireError(
            "training message: expected 'arrays' for each client, a part of the model (run-config key "
            f'"{node.config.part_key}"); got none',
            wire.ARRAYS,
        )
    check_bounds(node, contract, order)
    if node.owner.keep_models and kind == contract.work in ("train", "evaluate") and not contract.parted:
        keep_model(node, order)
    for client, outcome in WORK[contract.work](node, contract, order):
        _add(merged, client, outcome, order.round, named=named)
        del outcome  # the next client may train in its memory
    found = (stage.reply(merged) for stage in stages)
    reply = next((content for content in found if content is not None), None)
    if reply is None:
        whole = merged.reply() if named or plan.encoding.opaque else merged.as_one_client()
        reply = wire.reply_content(whole)
    for stage in stages:
        stage.answered(reply)
    return reply


def _plan(
    node: Node, contract: Algorithm, order: wire.TrainOrder, stages: Sequence[NodeStage], *, named: bool
) -> FoldPlan:
    """Return how the uploads are checked and folded."""
    forms, trainable = node.forms(), frozenset(node.parts().trainable)
    most, model = node.config.server.max_update_norm, order.arrays.get(wire.ARRAYS, {})
    received = (lambda c: order.received(c)[wire.ARRAYS]) if contract.parted else None
    plan = FoldPlan(
        contract,
        replace(forms, clients=len(order.population), rows=order.rows).of(contract.up),
        NormBound(most, model, trainable, received, order.arrays),
        named,
        part=forms.part,
    )
    for stage in stages:
        stage.plan(node, plan, order)
    return plan


def _add(
    merged: Merge, client: str, outcome: wire.ClientUpdate | Exception, server_round: int, *, named: bool
) -> None:
    """Fold a client's upload in, or note its failure; the other clients continue."""
    try:
        if isinstance(outcome, Exception):
            raise outcome
        merged.add(client, outcome)
    except MISTAKES:  # a bug, not a client's failure
        raise
    except Exception as err:  # a client's failure does not affect the others
        if not named:
            raise
        merged.fail(client, server_round, err)


def _share(node: Node) -> tuple[str, ...]:
    """Return the clients that are this node's own share of the partition."""
    part, parts = node.share
    names = sorted(node.clients.names)
    return tuple(names[part::parts]) if len(names) > 1 else tuple(names)

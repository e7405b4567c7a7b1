"""Client halves of the features: stages around the training and around a node's answers.

A `Stage` wraps the training of the clients, by its name in the catalogue; a `NodeStage` is a feature's half
around the answer to a message.
"""

from collections.abc import Mapping
from functools import cache

from client_app.data.node import Node
from client_app.stages.node_stage import Asked, NodeStage, Query
from client_app.stages.stage import Stage
from task.catalogue.entry import Algorithm
from task.features import FEATURES, halves
from task.resolve.contract import contract_of
from task.wire import messages as wire


def stages_of(node: Node, entry: Algorithm, order: wire.TrainOrder) -> list[Stage]:
    """Return the stages of a message's contract, in the order in which they are applied."""
    return [_stages()[name](node, entry, order) for name in entry.stages]


def rehearsed(entry: Algorithm) -> tuple[str, ...]:
    """Return the stages of a contract with which a trial of it takes its step."""
    return tuple(name for name in entry.stages if _stages()[name].rehearses)


@cache
def _node_stages() -> dict[str, type[NodeStage]]:
    return {kind.name: kind for kind in halves(__name__) if issubclass(kind, NodeStage) and kind.name}


@cache
def _stages() -> dict[str, type[Stage]]:
    return {name: kind for kind in halves(__name__) if issubclass(kind, Stage) for name in kind.names}


def node_stages_of(asked: Asked) -> list[NodeStage]:
    """Return the node stages of a message's run, in the order in which they act.

    Raises:
        RefusedError: The owner of the node allows no run without a feature that this one has not.
    """
    run = contract_of(asked.node.config)
    found: list[NodeStage] = []
    for feature in FEATURES:
        kind = _node_stages().get(feature.name)
        if kind and feature.active(asked.node.config, run):
            found.append(kind(asked))
        elif kind:
            kind.absent(asked)
    return found


def check_ready(node: Node) -> None:
    """Refuse a run with a feature that the node's data do not allow; raises what `NodeStage.ready` does."""
    run = contract_of(node.config)
    for feature in FEATURES:
        kind = _node_stages().get(feature.name)
        if kind and feature.active(node.config, run):
            kind.ready(node)


def queries() -> Mapping[str, Query]:
    """Return the handlers of the features' queries that are not phases, by name."""
    return {name: answer for kind in _node_stages().values() for name, answer in kind.queries.items()}

"""Client halves of the features: stages around the training and around a node's answers.

A `Stage` wraps the training of the clients, by its name in the catalogue; a `NodeStage` is a feature's half
around the answer to a message.
"""

from collections.abc import Mapping
from functools import cache

from client_app.data.node import Node
from client_app.stages.ala import ALA
from client_app.stages.attacks import Attack
from client_app.stages.canaries import Canaries
from client_app.stages.coding import Coding
from client_app.stages.example_privacy import PrivateExamples
from client_app.stages.loss import Loss
from client_app.stages.momentum import ClientMomentum
from client_app.stages.node_stage import Asked, NodeStage, Query
from client_app.stages.privacy import Clipping
from client_app.stages.rounding import Rounding
from client_app.stages.stage import Stage
from client_app.stages.structured import Structured
from task.catalogue.entry import Algorithm
from task.features import FEATURES, halves
from task.resolve.contract import contract_of
from task.wire import messages as wire

STAGES: dict[str, type[Stage]] = {
    "ala": ALA,
    "structured": Structured,
    "example-dp": PrivateExamples,
    "loss": Loss,
    "momentum": ClientMomentum,
    "attack": Attack,
    "canary": Canaries,
    "codec": Coding,
    "codec-with-feedback": Coding,
    "grid": Rounding,
    "dp": Clipping,
    "adaptive-dp": Clipping,
}


def stages_of(node: Node, entry: Algorithm, order: wire.TrainOrder) -> list[Stage]:
    """Return the stages of a message's contract, in the order in which they are applied."""
    return [_stages()[name](node, entry, order) for name in entry.stages]


@cache
def _node_stages() -> dict[str, type[NodeStage]]:
    return {kind.name: kind for kind in halves(__name__) if issubclass(kind, NodeStage) and kind.name}


@cache
def _stages() -> dict[str, type[Stage]]:
    own = {kind.name: kind for kind in halves(__name__) if issubclass(kind, Stage) and kind.name}
    return STAGES | own


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


def queries() -> Mapping[str, Query]:
    """Return the handlers of the features' queries that are not phases, by name."""
    return {name: answer for kind in _node_stages().values() for name, answer in kind.queries.items()}

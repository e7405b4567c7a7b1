"""What stands around the clients' training: the registry of stages, by their names in the catalogue."""

from client_app.data.node import Node
from client_app.stages.ala import ALA
from client_app.stages.attacks import Attack
from client_app.stages.canaries import Canaries
from client_app.stages.clipping import Clipping
from client_app.stages.coding import Coding
from client_app.stages.examples import PrivateExamples
from client_app.stages.loss import Loss
from client_app.stages.momentum import ClientMomentum
from client_app.stages.rounding import Rounding
from client_app.stages.stage import Stage
from client_app.stages.structured import Structured
from task.catalogue.entry import Algorithm
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
    return [STAGES[name](node, entry, order) for name in entry.stages]

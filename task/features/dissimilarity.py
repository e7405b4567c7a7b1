"""How unlike the clients' gradients are."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.gradients import GRADIENTS, gradients_phase
from task.config.knobs import Config
from task.features.feature import Feature


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    return replace(contract, phases={**contract.phases, GRADIENTS: gradients_phase()})


FEATURE = Feature(
    "dissimilarity",
    place=90,
    active=lambda config, _: config.server.gradient_dissimilarity,
    adds=_adds,
)

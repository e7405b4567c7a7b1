"""How unlike the clients' gradients are."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.gradients import GRADIENTS, gradients_phase
from task.config.knobs import Config
from task.features.clear import in_clear
from task.features.feature import Feature
from task.features.refusals import Setting, pairs
from task.features.settings import ASYNCHRONOUS, DP_LOCAL

_MEASURED = Setting("gradient-dissimilarity", lambda c: c.server.gradient_dissimilarity, "false")


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    return replace(contract, phases={**contract.phases, GRADIENTS: gradients_phase()})


def _refuses(_: Config, entry: Algorithm) -> str:
    if entry.sends_model and not (entry.personal or entry.individual or entry.vertical):
        return ""
    return (
        f'"{_MEASURED.key}": expected an algorithm with one global model, such as fedavg; '
        f'got algorithm = "{entry.name}". Choose another, or leave the key out'
    )


FEATURE = Feature(
    "dissimilarity",
    place=90,
    active=lambda config, _: config.server.gradient_dissimilarity,
    adds=_adds,
    pairs=(
        *in_clear(_MEASURED),
        *pairs(
            _MEASURED,
            (DP_LOCAL, "full gradients are not protected"),
            (ASYNCHRONOUS, "its clients never all have the same model"),
        ),
    ),
    refuses=_refuses,
)

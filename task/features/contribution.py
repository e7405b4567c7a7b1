"""The value of each client's update, measured by the server."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_UP
from task.config.knobs import Config
from task.features.feature import Feature


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    up = (replace(r, reduce="collect") if r.name == MODEL_UP.name else r for r in contract.up)
    return replace(contract, up=tuple(up))


FEATURE = Feature(
    "contribution",
    place=80,
    active=lambda config, _: config.contribution.measure != "none",
    adds=_adds,
)

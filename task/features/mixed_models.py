"""Clients that train parts of the model, or kinds of their own."""

from task.catalogue.entry import Algorithm
from task.catalogue.sub_models import with_sub_models
from task.config.knobs import Config
from task.features.feature import Feature


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    return with_sub_models(contract, measured=config.by_kind) if config.parted else contract


FEATURE = Feature(
    "mixed_models",
    place=10,
    active=lambda config, _: config.parted or bool(config.models.levels or config.width.levels),
    adds=_adds,
)

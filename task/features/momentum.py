"""Momentum of clients' updates, with rules that withstand malicious clients."""

from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.features.feature import Feature


def _has(config: Config) -> bool:
    withstands = algorithm_of(config.algorithm).withstands is not None
    return withstands and config.robust.client_momentum > 0


FEATURE = Feature(
    "momentum",
    place=26,
    active=lambda config, _: _has(config),
    stages=lambda config: ("momentum",) if _has(config) else (),
)

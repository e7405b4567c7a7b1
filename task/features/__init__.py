"""The features of a run: one declaration a file, each with its place in the order in which they act.

A feature has the same file name here, in `strategies.stages` (its server half) and in `client_app.stages`
(its client half), and is named nowhere else in the trunk.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.errors import ConfigError
from task.features.feature import Feature

_FOUND = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
FEATURES: tuple[Feature, ...] = tuple(
    sorted((m.FEATURE for m in _FOUND if hasattr(m, "FEATURE")), key=lambda feature: feature.place)
)


def halves(room: str) -> tuple[type, ...]:
    """Return the classes in the files of features in a room, such as `strategies.stages`."""
    places = [f"{room}.{feature.name}" for feature in FEATURES]
    modules = [import_module(place) for place in places if find_spec(place)]
    return tuple(kind for module in modules for kind in vars(module).values() if isinstance(kind, type))


def active(config: Config, contract: Algorithm) -> list[Feature]:
    """Return the features that a run has."""
    return [feature for feature in FEATURES if feature.active(config, contract)]


def with_features(config: Config, contract: Algorithm) -> Algorithm:
    """Return a contract with what the features of a run add to it."""
    for feature in active(config, contract):
        contract = feature.adds(config, contract)
    return contract


def check_features(config: Config, contract: Algorithm) -> None:
    """Refuse features that cannot be in a run of these keys.

    Raises:
        ConfigError: Naming the key that turns the feature on, and why.
    """
    for feature in active(config, contract):
        if why := feature.refuses(config, contract):
            raise ConfigError(f'run-config key "{feature.key}": {why}')


__all__ = ["FEATURES", "Feature", "active", "check_features", "halves", "with_features"]

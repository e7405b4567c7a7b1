"""The features of a run: one declaration a file, each with its place in the order in which they act.

A feature has the same file name here, in `strategies.stages` (its server half) and in `client_app.stages`
(its client half), and is named nowhere else in the trunk.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from task.catalogue.entry import Algorithm
from task.catalogue.stages import with_stages
from task.config.knobs import Config
from task.errors import ConfigError
from task.features.feature import Feature as Feature
from task.features.feature import Tensors as Tensors
from task.features.refusals import Choice, check_choices, check_pairs

if TYPE_CHECKING:
    from task.datasets.base import Dataset

_FOUND = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
FEATURES: tuple[Feature, ...] = tuple(
    sorted((m.FEATURE for m in _FOUND if hasattr(m, "FEATURE")), key=lambda feature: feature.place)
)
CHOICES: tuple[Choice, ...] = tuple(choice for feature in FEATURES for choice in feature.choices)


def halves(room: str) -> tuple[type, ...]:
    """Return the classes in the files of a room of features, such as `strategies.stages`."""
    found = iter_modules(import_module(room).__path__)
    modules = [import_module(f"{room}.{module.name}") for module in found]
    return tuple(kind for module in modules for kind in vars(module).values() if isinstance(kind, type))


def active(config: Config, contract: Algorithm) -> list[Feature]:
    """Return the features that a run has."""
    return [feature for feature in FEATURES if feature.active(config, contract)]


def with_features(config: Config, contract: Algorithm) -> Algorithm:
    """Return a contract with what the features of a run add to it: stages first."""
    contract = with_stages(contract, frozenset(name for f in FEATURES for name in f.stages(config)))
    for feature in active(config, contract):
        contract = feature.adds(config, contract)
    return contract


def with_read(config: Config, data: Dataset) -> Config:
    """Return a run's config with what its features read of data that all its clients share.

    Raises:
        ConfigError: The data are none that a feature could work with.
    """
    for feature in active(config, config.entry):
        config = feature.reads(config, data)
    return config


def check_features(config: Config, entry: Algorithm, contract: Algorithm) -> None:
    """Refuse features that do not go with the algorithm, given by its entry, with each other, or with keys.

    Raises:
        ConfigError: Naming the key, the reason, and what would go.
    """
    check_choices(config, entry, CHOICES)
    check_pairs(config, (pair for feature in FEATURES for pair in feature.pairs))
    for feature in active(config, contract):
        if why := feature.refuses(config, entry):
            raise ConfigError(f"run-config key {why}")


def against_divergence(config: Config) -> str:
    """Return the sentences that name features as remedies for a loss or model that is not finite."""
    return " ".join(said for feature in FEATURES if (said := feature.against_divergence(config)))


def fewest_nodes(config: Config) -> tuple[int, str]:
    """Return how few nodes a run may have, and the setting that says so."""
    return max((feature.nodes(config) for feature in active(config, config.entry)), default=(1, ""))


def check_simulated(config: Config) -> None:
    """Refuse features that need a link, in a simulation.

    Raises:
        ConfigError: Naming the key, the reason, and what to do.
    """
    for feature in active(config, config.entry):
        if why := feature.unsimulated(config):
            raise ConfigError(f"run-config key {why}")


def check_model_of(config: Config, contract: Algorithm, tensors: Tensors) -> None:
    """Refuse a model that a feature of the run cannot work with.

    Raises:
        ConfigError: Naming the key, one of the tensors, what was expected and the model.
    """
    for feature in active(config, contract):
        if why := feature.refuses_model(config, tensors):
            raise ConfigError(f'run-config key {why}; got "{tensors.model}"')

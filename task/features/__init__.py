"""The features of a run, in the order in which they act: one declaration a file.

A feature has the same file name here, in `strategies.stages` (its server half) and in `client_app.stages`
(its client half), and is named nowhere else in the trunk.
"""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features import (
    arrivals,
    coding,
    columns,
    contribution,
    dissimilarity,
    encryption,
    example_privacy,
    held_out,
    mixed_models,
    privacy,
    replica,
    secure_aggregation,
    transcript,
)
from task.features.feature import Feature

FEATURES: tuple[Feature, ...] = tuple(
    module.FEATURE
    for module in (
        mixed_models,
        held_out,
        coding,
        replica,
        columns,
        privacy,
        example_privacy,
        encryption,
        secure_aggregation,
        arrivals,
        contribution,
        dissimilarity,
        transcript,
    )
)


def active(config: Config, contract: Algorithm) -> list[Feature]:
    """Return the features that a run has."""
    return [feature for feature in FEATURES if feature.active(config, contract)]


__all__ = ["FEATURES", "Feature", "active"]

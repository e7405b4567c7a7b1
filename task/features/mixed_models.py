"""Clients that train parts of the model, or kinds of their own."""

from task.features.feature import Feature

FEATURE = Feature(
    "mixed_models",
    lambda config, _contract: config.parted or bool(config.models.levels or config.width.levels),
)

"""The model on its way down as codes, from one that a node has."""

from task.features.feature import Feature

FEATURE = Feature("replica", place=40, active=lambda config, _: config.codec.down != "none")

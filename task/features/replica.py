"""The model on its way down as codes, from one that a node has."""

from task.features.feature import Feature

FEATURE = Feature("replica", lambda config, _contract: config.codec.down != "none")

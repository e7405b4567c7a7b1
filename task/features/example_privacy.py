"""Differential privacy of examples: DP-SGD at the clients."""

from task.features.feature import Feature

FEATURE = Feature("example_privacy", place=70, active=lambda config, _: config.dp.local)

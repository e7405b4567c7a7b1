"""Differential privacy of examples: DP-SGD at the clients."""

from task.features.feature import Feature

FEATURE = Feature("example_privacy", lambda config, _contract: config.dp.local)

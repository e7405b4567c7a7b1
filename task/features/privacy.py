"""Differential privacy of clients: noise on exact sums."""

from task.features.feature import Feature

FEATURE = Feature("privacy", lambda config, _contract: config.dp.central)

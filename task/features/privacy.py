"""Differential privacy of clients: noise on exact sums."""

from task.features.feature import Feature

FEATURE = Feature("privacy", place=60, active=lambda config, _: config.dp.central)

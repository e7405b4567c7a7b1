"""Homomorphic encryption of sums."""

from task.features.feature import Feature

FEATURE = Feature("encryption", lambda config, _contract: config.server.he)

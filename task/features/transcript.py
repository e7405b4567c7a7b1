"""A transcript of each round that anyone can check."""

from task.features.feature import Feature

FEATURE = Feature("transcript", lambda config, _contract: config.server.transcript != "none")

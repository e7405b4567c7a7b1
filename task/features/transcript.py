"""A transcript of each round that anyone can check."""

from task.features.feature import Feature

FEATURE = Feature("transcript", place=130, active=lambda config, _: config.server.transcript != "none")

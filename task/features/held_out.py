"""Clients that never train and are measured after the last round."""

from task.features.feature import Feature

FEATURE = Feature("held_out", place=20, active=lambda config, _: config.server.heldout_clients > 0)

"""Secure aggregation: the server sees sums over nodes alone."""

from task.features.feature import Feature

FEATURE = Feature("secure_aggregation", place=110, active=lambda config, _: config.server.secagg)

"""Secure aggregation: the server sees sums over nodes alone."""

from task.features.feature import Feature

FEATURE = Feature("secure_aggregation", lambda config, _contract: config.server.secagg)

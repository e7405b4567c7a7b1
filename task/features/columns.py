"""Means and deviations of the clients' columns, learnt before round 1."""

from task.catalogue.columns import COLUMNS
from task.features.feature import Feature

FEATURE = Feature("columns", lambda _config, contract: COLUMNS in contract.phases)

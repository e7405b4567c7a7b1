"""Codes of what clients send, and what becomes of those that are not used."""

from task.features.feature import Feature

FEATURE = Feature("coding", lambda _config, _contract: True)

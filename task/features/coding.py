"""Codes of what clients send, and what becomes of those that are not used."""

from task.features.feature import Feature

FEATURE = Feature("coding", place=30, active=lambda *_: True)

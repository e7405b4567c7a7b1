"""Differential privacy: the mechanism, its accounting, and runs that keep the promise."""

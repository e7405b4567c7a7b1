"""Attacks on what a run gives away, to see whether it keeps its promise."""

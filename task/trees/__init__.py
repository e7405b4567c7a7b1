"""Gradient-boosted trees: the format, and the mathematics of growing them from sums over rows."""

"""Arrays, seeds, metrics and the exact reductions."""

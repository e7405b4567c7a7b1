"""Limits on a client's terms in exact sums, and the words for them in errors."""

FINITE = "finite number"  # in the expectation of every check that fails if a model diverged
MAX_TERM, MAX_INTEGER_TERM = 2.0**31, 2.0**55  # |weight * value| of a client that fits an exact sum

"""Exact sums of clients' scalars, for rules that don't see single ones."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class ScalarSums:
    """Exact sums of a scalar over the clients that sent it."""

    weighted: Fraction  # of weight * value, each product rounded to a float64
    weight: int
    by_examples: Fraction  # of n_k * value, likewise
    examples: int
    clients: int
    plain: Fraction  # of the values

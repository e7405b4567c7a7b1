"""What is known of many clients' scalars where no client's own are: sums, exact to the last bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class ScalarSums:
    """What is known of a scalar of many clients: exact sums over those that sent it."""

    weighted: Fraction  # of weight * value, each product rounded to a float64
    weight: int
    by_examples: Fraction  # of n_k * value, likewise
    examples: int
    clients: int
    plain: Fraction  # of the values


@dataclass(frozen=True)
class Sums:
    """The sum over nodes, without masks."""

    nodes: int
    clients: int
    weight: int
    examples: int
    scalars: Mapping[str, ScalarSums]

"""What the unmasked sum of a phase has besides arrays."""

from collections.abc import Mapping
from dataclasses import dataclass

from task.numerics.scalar_sums import ScalarSums


@dataclass(frozen=True)
class Sums:
    """The sum over nodes, without masks."""

    nodes: int
    clients: int
    weight: int
    examples: int
    scalars: Mapping[str, ScalarSums]

"""The weights of q-FFL, which both halves must agree on. Li et al., ICLR 2020, arXiv 1905.10497."""

import math
from typing import Final

SMALLEST_LOSS: Final = 1e-10
EXPONENT: Final = 24
"""The largest weight of a round lies within 2^-24 and 2^24; see `strategies.rules.qfedavg`."""


def log_weight(loss: float, reference: float, q: float) -> float:
    """Return log a_k = q log(F_k / F_ref); a loss counts as at least `SMALLEST_LOSS`."""
    return q * math.log(max(loss, SMALLEST_LOSS) / reference)

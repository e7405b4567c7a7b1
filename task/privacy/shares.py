"""Noise that nodes add, a share each, to sums that the server sees as one: distributed differential privacy.

Of the n nodes of a secure round a sum is opened only over t of them or more (`task.secagg.protocol.Rules`),
and c of them may reveal their noise. Each node adds a Gaussian of variance (z C)^2 / (t - c), so that the
rest has the variance (z C)^2 or more, whichever nodes drop out. Shares are rounded to integers one by one.
Each is 2^20 / sqrt(t - c) units wide or wider, so that their sum is indistinguishable from one rounded
Gaussian.

===========  =======================  =============================================  ======================
symbol       variable                 meaning                                        where
===========  =======================  =============================================  ======================
z C          ``std``                  standard deviation of the noise on a sum       dp.noise, dp.clip
t            ``least``                fewest nodes in a sum                          secagg-threshold
c            ``colluding``            nodes that may give their noise away           dp.colluding
===========  =======================  =============================================  ======================
"""

import math

from task.catalogue.entry import Algorithm
from task.config.sections import DPConfig
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.noise import Stream


def releases(entry: Algorithm) -> int:
    """Return how many sums a round releases, each of its phases one; together they are worth ``dp.noise``."""
    return 1 + sum(p.noised for p in entry.phases.values())


def multiplier(dp: DPConfig, entry: Algorithm) -> float:
    """Return the noise multiplier z of one release."""
    return dp.noise * math.sqrt(releases(entry))


def deviation(dp: DPConfig, entry: Algorithm) -> float:
    """Return z C of one release, of a bound that stays ``dp.clip``."""
    return multiplier(dp, entry) * dp.clip


def share(std: float, least: int, colluding: int) -> float:
    """Return the standard deviation of one node's noise."""
    return std / math.sqrt(least - colluding)


def with_share(sums: NamedArrays, std: float, noise: Stream) -> Arrays:
    """Return sums of integers with noise of a standard deviation in units, array by array."""
    return {n: a + noise.integers(a.size, std).reshape(a.shape) for n, a in sums.items()}

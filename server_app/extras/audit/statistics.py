"""What canaries' scores say about epsilon: an estimate, and lower bounds that hold with 95 % confidence.

A canary's score is ``sqrt(d) cos(w_T - w_0, u_i)``. Of a canary that took no part it follows N(0, 1) for
d >= 1000 numbers, whatever the run did, since its direction was drawn apart from it: the null hypothesis
needs no sample (Andrew et al. 2023, arXiv 2302.03098). The test by guesses is that of Steinke, Nasr and
Jagielski 2023, arXiv 2305.08846.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
LEVEL = 0.05  # of all bounds: that they do not hold
RANKS = (10, 0.1, 0.5)  # the thresholds: the tenth highest score, or such a share of them


def two_gaussians(mean: float, std: float, delta: float) -> float:
    """Return the least epsilon at which N(mean, std^2) and N(0, 1) are (epsilon, delta)-indistinguishable."""
    wide = 12.0 * max(std, 1.0)
    x = np.linspace(min(0.0, mean) - wide, max(0.0, mean) + wide, 200_001)
    step = float(x[1] - x[0])
    log_p = -0.5 * ((x - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
    log_q = -0.5 * x**2 - math.log(math.sqrt(2 * math.pi))

    def apart(epsilon: float) -> float:
        def one(a: Scores, b: Scores) -> float:
            over = a > b + epsilon
            return float((np.exp(a[over]) - np.exp(b[over] + epsilon)).sum()) * step

        return max(one(log_p, log_q), one(log_q, log_p))

    low, high = 0.0, 1.0
    if apart(low) <= delta:
        return 0.0
    while apart(high) > delta and high < 1e4:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if apart(middle) > delta else (low, middle)
    return high


def lower_bound(scores: Scores, delta: float, level: float = LEVEL) -> float:
    """Return an epsilon below which a run cannot be (epsilon, delta)-DP, given the scores of those in.

    The attacker says "in" above a threshold t. The share P of those in that this is true of is bounded below
    by a Jeffreys interval, and of the others it is Q = P[N(0, 1) > t]: epsilon >= ln((P - delta) / Q). The
    thresholds are order statistics whose ranks are fixed beforehand; each bound has its share of the level.
    """
    ordered, n = np.sort(scores)[::-1], len(scores)
    ranks = sorted({k for r in RANKS if 1 <= (k := int(r if r >= 1 else r * n)) <= n})
    found = [0.0]
    for k in ranks:
        rate = jeffreys_low(k, n, level / len(ranks)) - delta
        if rate > 0:
            found.append(math.log(rate) - log_tail(float(ordered[k - 1])))
    return max(found)


def jeffreys_low(hits: int, trials: int, level: float) -> float:
    """Return the one-sided lower end of the Jeffreys interval of a rate."""
    from scipy.stats import beta

    return float(beta.ppf(level, hits + 0.5, trials - hits + 0.5)) if hits else 0.0


def log_tail(t: float) -> float:
    """Return ln P[N(0, 1) > t]."""
    from scipy.stats import norm

    return float(norm.logsf(t))


def guesses_right(scores: Scores, inside: Sequence[bool], guesses: int) -> int:
    """Return how many of those with the highest scores are in."""
    return int(np.asarray(inside)[np.argsort(-scores, kind="stable")[:guesses]].sum())


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of this number of right guesses under (epsilon, delta)-DP."""
    from scipy.stats import binom

    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tails = binom.sf(right - 1 - np.arange(right + 1), guesses, chance)  # P[Bin >= right - i]
    steps = np.arange(1, right + 1)
    more = float(((tails[1:] - tails[0]) / steps).max()) if right else 0.0
    return min(float(tails[0]) + 2 * canaries * delta * more, 1.0)


def one_run_bound(
    scores: Scores, inside: Sequence[bool], delta: float, level: float = LEVEL
) -> dict[str, Any]:
    """Return the largest epsilon that a fifth of the canaries, guessed to be in, rules out."""
    n = len(scores)
    guesses = n // 5
    right = guesses_right(scores, inside, guesses)
    low, high = 0.0, 20.0
    if p_value(n, guesses, right, low, delta) >= level:
        high = 0.0
    for _ in range(40 if high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(n, guesses, right, middle, delta) < level else (low, middle)
    return {"guesses": guesses, "right": right, "at_least": low}

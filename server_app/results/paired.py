"""The difference of two groups of runs over the seeds that they share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from server_app.results.groups import Run

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """Mean of first minus second over the pairs, and its confidence interval."""

    mean: float
    low: float
    high: float
    pairs: int


def paired_difference(differences: Sequence[float]) -> Difference:
    """Return the mean of paired differences with Student's interval (paired t).

    It is mean ± t s / sqrt(n), where s is the sample deviation and t the quantile of n - 1 degrees of
    freedom: right if the differences are about normal, which a few seeds cannot show.

    Raises:
        ValueError: There are fewer than two pairs.
    """
    from scipy.stats import t as student

    x = np.asarray(differences, dtype=np.float64)
    if x.size < 2:
        raise ValueError(f"expected at least two pairs; got {x.size}")
    mean, n = float(x.mean()), x.size
    half = float(student.ppf((1 + LEVEL) / 2, n - 1)) * float(x.std(ddof=1)) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)


def over_seeds(
    first: Sequence[Run], second: Sequence[Run], value: Callable[[Run], float | None]
) -> Difference | None:
    """Return `paired_difference` over the seeds that both groups have a number for; None below two."""
    ours, theirs = (
        {run.seed: v for run in runs if (v := value(run)) is not None} for runs in (first, second)
    )
    shared = [seed for seed in ours if seed in theirs]
    return paired_difference([ours[s] - theirs[s] for s in shared]) if len(shared) > 1 else None

"""Summary numbers of a run: McMahan's rounds-to-target, and fairness over clients.

Everything here is a pure function of plain sequences, in float64.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TENTHS = 10  # of the probability, for its calibration; an even number, so that 1/2 is between two


def monotone(accuracies: Sequence[float]) -> Floats:
    """Return the running maximum of a curve: the best value seen so far."""
    return np.maximum.accumulate(np.asarray(accuracies, dtype=np.float64))


def crossing(x: Sequence[float], accuracies: Sequence[float | None], target: float) -> float | None:
    """Return the x at which the running maximum of a curve crosses a target, linearly interpolated.

    With x = rounds this is the metric of McMahan et al. 2017, rarely whole; x, which never falls, may
    as well be seconds or bytes. Points that are None or not finite were not measured and are left out.

    Returns:
        The crossing; the first x if the curve starts at the target or above; None if it never gets there.

    Raises:
        ValueError: `x` and `accuracies` differ in length, or `x` falls.
    """
    if len(x) != len(accuracies):
        raise ValueError(f"expected one accuracy for each x; got {len(accuracies)} for {len(x)}")
    pairs = [(a, b) for a, b in zip(x, accuracies, strict=True) if b is not None and math.isfinite(b)]
    xs = np.asarray([a for a, _ in pairs], dtype=np.float64)
    if np.any(np.diff(xs) < 0):
        raise ValueError("expected x that never falls")
    best = monotone([b for _, b in pairs])
    reached = np.flatnonzero(best >= target)
    if reached.size == 0:
        return None
    i = int(reached[0])
    if i == 0:
        return float(xs[0])
    # best[i-1] < target <= best[i], so the denominator is positive.
    share = (target - best[i - 1]) / (best[i] - best[i - 1])
    return float(xs[i - 1] + share * (xs[i] - xs[i - 1]))


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2) of values >= 0.

    1 = all equal, 1/n = one has everything. All zero counts as equal.

    Raises:
        ValueError: There are no values, or a negative one.
    """
    x = _some(values)
    if x.min() < 0:
        raise ValueError(f"expected values >= 0; got {x.min():g}")
    top = x.max()
    if top == 0:
        return 1.0
    x = x / top  # the index has no scale; squares of huge or tiny values leave the float range
    return float(x.sum() ** 2 / (x.size * np.square(x).sum()))


def worst_decile(values: Sequence[float]) -> float:
    """Return the mean of the lowest tenth of the values, rounded up to whole values.

    For 1 to 10 clients that is the lowest, for 11 to 20 the mean of the two lowest. Lowest is worst for
    an accuracy; pass losses with their sign turned.

    Raises:
        ValueError: There are no values.
    """
    x = np.sort(_some(values))
    # Integers: ceil(0.1 * 30) is 4 in floating point.
    return float(x[: -(-x.size // 10)].mean())


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, standard deviation (of this population, ddof 0), worst decile and Jain index.

    Every client counts once, whatever its number of examples. All are None if there are no values; the
    index alone is None if one is negative, which it is not defined for.
    """
    if len(values) == 0:
        return {"mean": None, "std": None, "worst_decile": None, "jain": None}
    x = _some(values)
    return {
        "mean": float(x.mean()),
        "std": float(x.std()),
        "worst_decile": worst_decile(values),
        "jain": jain(values) if x.min() >= 0 else None,
    }


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean, rounded once and so independent of the order."""
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1) of repeated runs; one value has no deviation.

    Raises:
        ValueError: There are no values.
    """
    x = _some(values)
    return float(x.mean()), float(x.std(ddof=1)) if x.size > 1 else None


def _some(values: Sequence[float]) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("expected at least one value; got none")
    return x

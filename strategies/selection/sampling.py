"""Weighted draws without replacement."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def inclusion(weights: Floats, m: int) -> Floats:
    """Return the probabilities min(1, c w_k) that sum to m, float64 [K]; m <= K, weights > 0."""
    sure = np.zeros(len(weights), bool)
    while True:
        rest = m - int(sure.sum())
        total = math.fsum(weights[~sure].tolist())
        pi = np.where(sure, 1.0, rest * weights / total if total else 0.0)
        more = ~sure & (pi > 1 - 1e-9)
        if not more.any():
            return pi
        sure |= more


def draw_by_size(weights: Floats, m: int, rng: np.random.Generator) -> list[int]:
    """Draw m of K different numbers, number k with probability `inclusion`; ascending."""
    if len(weights) == 0:
        return []
    pi = inclusion(weights, m)
    sure = np.flatnonzero(pi == 1.0).tolist()
    others = rng.permutation(np.flatnonzero(pi < 1.0))
    edges = np.cumsum(pi[others])
    points = rng.random() + np.arange(m - len(sure))
    hit = np.searchsorted(edges, points, side="right").clip(max=len(others) - 1)
    return sorted([*sure, *others[hit].tolist()])


def draw_weighted(weights: Floats, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `size` different positions one after another, each time in proportion to the weights left."""
    least = float(weights.max()) * 1e-12 or 1.0  # so that enough are possible
    p = np.maximum(weights, least)
    drawn: npt.NDArray[np.int64] = rng.choice(len(p), size, replace=False, p=p / p.sum())
    return drawn

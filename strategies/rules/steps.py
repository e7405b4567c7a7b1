"""Steps of the server's model, each number rounded once, from float64."""

from collections.abc import Iterable

import numpy as np

from task.numerics.arrays import Arrays, NamedArrays


def step(arrays: NamedArrays, along: NamedArrays, scale: float) -> Arrays:
    """Return w + scale * along of the arrays that `along` has.

    >>> step({"w": np.array([1.0])}, {"w": np.array([4.0])}, -0.5)
    {'w': array([-1.])}
    """
    out: Arrays = {}
    for name, a in along.items():
        wide = arrays[name].astype(np.float64) + np.float64(scale) * a.astype(np.float64)
        out[name] = wide.astype(arrays[name].dtype)
    return out


def towards(arrays: NamedArrays, to: NamedArrays, share: float) -> Arrays:
    """Return (1 - share) w + share * to of the arrays that `to` has; a share of 1 gives `to` itself.

    >>> towards({"w": np.array([1.0])}, {"w": np.array([4.0])}, 0.5)
    {'w': array([2.5])}
    """
    out: Arrays = {}
    for name, a in to.items():
        wide = (1.0 - share) * arrays[name].astype(np.float64) + share * a.astype(np.float64)
        out[name] = wide.astype(arrays[name].dtype)
    return out


def moved(arrays: NamedArrays, to: NamedArrays, names: Iterable[str]) -> Arrays:
    """Return how far it is from arrays of these names to others, float64."""
    return {n: to[n].astype(np.float64) - arrays[n].astype(np.float64) for n in names}

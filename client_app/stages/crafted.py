"""Updates of malicious clients that are computed from the benign ones'.

With the benign Delta_j of a node, j = 1..n, mean mu and deviations p:

=================  ================================================================================
kind               what each malicious client sends for Delta
=================  ================================================================================
inner-product      -s mu                                   Xie, Koyejo, Gupta, UAI 2019, arXiv 1903.03936
min-max            mu - g p, g the largest with max_j |Delta - Delta_j|^2 <= max_ij |Delta_i - Delta_j|^2
min-sum            the same with sum_j |Delta - Delta_j|^2 <= min_i sum_j |Delta_i - Delta_j|^2
mimic              Delta_1, of the first benign client by name   Karimireddy et al. 2022, arXiv 2006.09365
=================  ================================================================================

Min-max and min-sum: Shejwalkar and Houmansadr, NDSS 2021, section 4, with the sample deviation as the
direction. The authors search for g, of at most 20; here it is the root of a quadratic.

Vectors are the parameters of all records together. The benign updates of the round are held in memory.
"""

import math
from collections.abc import Sequence

import numpy as np

from task.numerics.arrays import Arrays

Vectors = dict[tuple[str, str], np.ndarray]  # float64, by record and parameter


def vectors_of(records: dict[str, Arrays], parameters: Sequence[str]) -> Vectors:
    """Return the parameters of a client's records."""
    return {
        (field, n): arrays[n].astype(np.float64)
        for field, arrays in records.items()
        for n in parameters
        if n in arrays
    }


def dot(a: Vectors, b: Vectors) -> float:
    """Return the inner product over all of them."""
    return math.fsum(float((a[at] * b[at]).sum()) for at in a)


def mean_of(benign: Sequence[Vectors]) -> Vectors:
    """Return mu."""
    return {at: np.mean([x[at] for x in benign], axis=0) for at in benign[0]}


def hidden(benign: Sequence[Vectors], *, by_sum: bool, scale: float = 0.0) -> Vectors:
    """Return mu - g p of min-max, or `by_sum` of min-sum; `scale` > 0 is g.

    With z_j = mu - Delta_j, |mu - g p - Delta_j|^2 = |z_j|^2 - 2 g <z_j, p> + g^2 |p|^2.
    """
    mu, n = mean_of(benign), len(benign)
    away = [{at: mu[at] - x[at] for at in mu} for x in benign]
    p = {at: np.sqrt(sum(np.square(z[at]) for z in away) / (n - 1)) for at in mu}
    own, along, square = [dot(z, z) for z in away], [dot(z, p) for z in away], dot(p, p)
    if scale or not square:
        return {at: mu[at] - scale * p[at] for at in mu}
    inner = np.array([[dot(a, b) for b in away] for a in away])
    apart = np.maximum(np.diag(inner)[:, None] + np.diag(inner) - 2 * inner, 0.0)
    if by_sum:
        g = math.sqrt(max(float(apart.sum(1).min()) - math.fsum(own), 0.0) / (n * square))
    else:
        most = float(apart.max())
        roots = [
            b + math.sqrt(max(b * b + square * (most - a), 0.0)) for a, b in zip(own, along, strict=True)
        ]
        g = max(min(roots) / square, 0.0)
    return {at: mu[at] - g * p[at] for at in mu}


def crafted(kind: str, benign: Sequence[Vectors], base: Vectors, scale: float) -> Vectors:
    """Return what malicious clients send of each parameter; `base` is what a record is relative to.

    `benign` are what the benign clients send, by name; `scale` is the strength, 0 = the kind's own.
    """
    if kind == "mimic":
        return benign[0]
    if kind == "inner-product":
        mu, s = mean_of(benign), scale or 0.1
        return {at: base[at] - s * (mu[at] - base[at]) for at in mu}
    return hidden(benign, by_sum=kind == "min-sum", scale=scale)

"""Means of clients' low-rank updates B_i A_i, in float64 and without their products of d x k numbers.

The mean of updates is not the product of the means of factors: they differ by the covariance of the factors,

    sum_i p_i B_i A_i - Bm Am = sum_i p_i (B_i - Bm) (A_i - Am),    Bm = sum_i p_i B_i,  Am = sum_i p_i A_i,

of rank up to (K - 1) r. `product_mean` finds the best update of rank r (Bai et al. 2024, FlexLoRA, arXiv
2402.11505), `norm_mean` is HetLoRA's weighting of padded factors (Cho et al. 2024, arXiv 2401.06432).

===========  ============  =========================  ==============
symbol       variable      shape, dtype               where
===========  ============  =========================  ==============
A_i, B_i     ``a``, ``b``  [K, r, k], [K, d, r]       uploads
p_i          ``share``     float64 [K], sum 1         n_i / sum n_j
U S V^T      u, s, v       SVD of sum_i p_i B_i A_i   server
===========  ============  =========================  ==============
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Factors = Sequence[NDArray[Any]] | NDArray[Any]  # of the clients, one after another


def product_mean(a: Factors, b: Factors, weights: Sequence[float], rank: int) -> tuple[Floats, Floats, float]:
    """Return A [rank, k] and B [d, rank], B A nearest to sum_i p_i B_i A_i, and the loss.

    By Eckart and Young it is the truncated SVD. B_i and A_i are stacked, and the two QR factors of the stacks
    leave an SVD of sum r_i squared numbers. B = U S and A = V^T: A's rows have norm 1, about that of their
    start, in the order of the singular values, so that the first r_i of them are the best of rank r_i.
    The sign of each direction makes the largest entry of its column of U positive. Factors of ranks that
    differ may be padded by zeros, which add nothing. The loss is the Frobenius norm of the difference
    over that of the mean.

    >>> product_mean([[[1.0]], [[3.0]]], [[[2.0]], [[0.0]]], [1, 1], 1)  # means of factors make 2, not 1
    (array([[1.]]), array([[1.]]), 0.0)
    """
    share = np.asarray(weights, np.float64) / np.sum(weights)
    left = np.hstack([p * np.asarray(m, np.float64) for p, m in zip(share, b, strict=True)])
    right = np.vstack([np.asarray(m, np.float64) for m in a])
    outer, q = np.linalg.qr(left)
    inner, r = np.linalg.qr(right.T)
    u, s, v = np.linalg.svd(q @ r.T)
    size = min(rank, len(s))
    if not s.any():  # no update yet: A stays what the clients have, so that B has a gradient
        mean = sum(p * np.asarray(m, np.float64) for p, m in zip(share, a, strict=True))
        return _padded(np.asarray(mean), rank, 0), np.zeros((len(left), rank)), 0.0
    u, v = (outer @ u)[:, :size], (v[:size] @ inner.T)
    signs = np.sign(u[np.abs(u).argmax(axis=0), np.arange(size)])
    lost = float(np.sqrt(np.sum(s[size:] ** 2) / np.sum(s**2)))
    made_b, made_a = u * (s[:size] * signs), v * signs[:, None]
    return _padded(made_a, rank, 0), _padded(made_b, rank, 1), lost


def norm_mean(a: Factors, b: Factors, weights: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Return the means of A and B weighted by ||B_i A_i||_F, and these weights.

    The factors are padded with zeros to one rank. Where no client has an update, the weights are p_i.
    """
    norms = np.array([product_norm(x, y) for x, y in zip(a, b, strict=True)])
    share = norms / norms.sum() if norms.any() else np.asarray(weights, np.float64) / np.sum(weights)
    means = [sum(p * np.asarray(m, np.float64) for p, m in zip(share, of, strict=True)) for of in (a, b)]
    return np.asarray(means[0]), np.asarray(means[1]), share


def product_norm(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return ||B A||_F = sqrt(trace(B^T B A A^T)), from r x r numbers."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sqrt(max(np.sum((y.T @ y) * (x @ x.T)), 0.0)))


def _padded(factor: Floats, rank: int, axis: int) -> Floats:
    """Return a factor cut or padded with zeros to a rank along an axis."""
    factor = factor[(slice(None),) * axis + (slice(rank),)]
    missing = [(0, rank - factor.shape[axis] if i == axis else 0) for i in range(2)]
    return np.pad(factor, missing)

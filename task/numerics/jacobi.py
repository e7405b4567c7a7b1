"""Eigenvalues and eigenvectors of a symmetric matrix by Jacobi's method, with the same bits on any machine.

Golub and Van Loan 2013, Section 8.5: rotations, each of which makes one element off the diagonal 0, row by
row until all are 0. LAPACK's bits depend on the library and its threads; these are additions,
multiplications, divisions and square roots of IEEE arithmetic, element by element. An element is left alone
when it is below 2^-53 of the geometric mean of its two diagonal ones, so that small eigenvalues of a
covariance matrix keep their digits, too (Demmel and Veselic 1992).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_SWEEPS = 60  # a handful is usual
_EPSILON = 2.0**-53
_LEAST = 2.0**-100  # of the trace: smaller elements are rounding


def eigen(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of a symmetric matrix [p, p], largest first, and a row for each eigenvector.

    The largest element of a vector, in size, is positive.
    """
    a, p = matrix.copy(), len(matrix)
    vectors = np.eye(p)
    least = _LEAST * float(np.abs(np.diag(a)).sum())
    for _ in range(_SWEEPS):
        turned = False
        for i in range(p - 1):
            for j in range(i + 1, p):
                off, first, second = a[i, j].item(), a[i, i].item(), a[j, j].item()
                if abs(off) <= max(_EPSILON * math.sqrt(abs(first)) * math.sqrt(abs(second)), least):
                    continue
                turned = True
                c, s = _rotation(first, second, off)
                _turn(a, i, j, c, s)
                _turn(a.T, i, j, c, s)
                _turn(vectors, i, j, c, s)
                a[i, j] = a[j, i] = 0.0
        if not turned:
            break
    order = np.argsort(-np.diag(a), kind="stable")
    vectors = vectors[order]
    largest = np.abs(vectors).argmax(axis=1)
    signs = np.where(vectors[np.arange(p), largest] < 0, -1.0, 1.0)
    return np.diag(a)[order], vectors * signs[:, None]


def _rotation(first: float, second: float, off: float) -> tuple[float, float]:
    """Return cosine and sine of the smaller angle that makes an element 0."""
    theta = (second - first) / (2.0 * off)
    if abs(theta) > 1e100:
        t = 0.5 / theta
    else:
        t = math.copysign(1.0, theta) / (abs(theta) + math.sqrt(theta * theta + 1.0))
    c = 1.0 / math.sqrt(t * t + 1.0)
    return c, t * c


def _turn(a: Floats, i: int, j: int, c: float, s: float) -> None:
    """Turn two rows."""
    first, second = a[i].copy(), a[j].copy()
    a[i] = c * first - s * second
    a[j] = s * first + c * second

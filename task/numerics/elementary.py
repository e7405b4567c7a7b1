"""exp and log with the same bits on every processor, for values that are rounded to a grid and hashed.

NumPy's own differ in their last bits between instruction sets. These use IEEE additions and multiplications,
`rint`, `frexp` and `ldexp` alone, element by element, so that neither the processor, nor how an array is cut,
changes a bit; NumPy fuses no multiplication with an addition.

exp(x) = 2^k exp(r), k = rint(x / ln 2), r = x - k ln 2 with ln 2 in two parts (Cody and Waite, 1980), exp(r)
by Taylor's polynomial of degree 13: |r| <= 0.347, and the first term left out is below 2^-56. log(x) =
k ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), x = m 2^k with m from sqrt(1/2) to sqrt(2), atanh by its series to
degree 25: |s| <= 0.172, and the first term left out is below 2^-70.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 bits of ln 2, so that k times it is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
INVERSE_LN2 = float.fromhex("0x1.71547652b82fep+0")
LARGEST, SMALLEST = 700.0, -700.0  # of exp's arguments
_TAYLOR = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_ATANH = tuple(1.0 / n for n in range(25, 0, -2))
_HALF_ROOT = math.sqrt(0.5)


def exp(x: Floats) -> Floats:
    """Return e^x of finite float64; arguments beyond -700 and 700 count as these."""
    clipped = np.minimum(np.maximum(x, SMALLEST), LARGEST)
    k = np.rint(clipped * INVERSE_LN2)
    r = (clipped - k * LN2_HIGH) - k * LN2_LOW
    found = np.full_like(r, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        found = found * r + coefficient
    return np.ldexp(found, k.astype(np.int64))


def log(x: Floats) -> Floats:
    """Return ln x of finite float64 above 0; of others, NaN."""
    good = x > 0
    m, k = np.frexp(np.where(good, x, 1.0))
    low = m < _HALF_ROOT
    m, k = np.where(low, m * 2.0, m), (k - low).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = np.full_like(s, _ATANH[0])
    for coefficient in _ATANH[1:]:
        series = series * square + coefficient
    found = k * LN2_HIGH + (2.0 * s * series + k * LN2_LOW)
    return np.where(good, found, np.nan)


def log_factorial(n: npt.NDArray[np.int64]) -> Floats:
    """Return ln n! of integers >= 0 as the sum of ln 1, ln 2, ... in that order."""
    most = int(n.max(initial=0))
    table = np.concatenate([[0.0], np.cumsum(log(np.arange(1.0, most + 1.0)))])
    found: Floats = table[n]
    return found

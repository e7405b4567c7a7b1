"""Fixed-point sums of 64 or 32 bits: clients' weighted changes as integers in a unit fixed beforehand.

A client sends rint(n_k (x_k - w^t) 2^g) for the record x_k, and the mean is w^t + 2^-g S / sum_k n_k with the
sum S of the integers, which is exact modulo 2^bits. The server chooses the unit 2^-g of a phase by what it
knows before it asks, so that S cannot wrap, whichever of the asked clients answer:

    |S| <= 2^g C sum_k n_k + m / 2 <= MOST[bits]

Each client is rounded once, by half a unit at most, wherever it is trained: a number of the mean is off by at
most 2^-(g+1) m / sum_k n_k, that is by some C m 2^-bits.

===========  =============================  ======================================  =================
symbol       variable                       meaning                                 where
===========  =============================  ======================================  =================
C            ``bound``                      largest L2 norm of a client's change    max-update-norm
m            ``clients``                    clients that are asked
n_k          ``weight``, their sum          weights: examples, or ones
g            ``exponent``                   the grid's unit is 2^-g                 the order
===========  =============================  ======================================  =================
"""

import math

import numpy as np

from task.errors import ConfigError, FieldError
from task.numerics.arrays import Arrays, NamedArrays

EXACT = 96  # bits of the sums that are not rounded
# Limits of sums: 32 bits with sign; for 64 bits the limit of a term of the exact fold.
MOST = {64: 2**55, 32: 2**31 - 1}
SLACK = 1 + 1e-6  # tolerance for rounding of a norm at its bound
FINEST = 2.0**-12  # share of C: the largest allowed error of a number of the mean
SUM_GRID = "sum-grid"  # entry of an order: g


def exponent(bits: int, clients: int, weight: int, bound: float) -> int:
    """Return the largest g with which the sum of this number of clients cannot wrap.

    Raises:
        ConfigError: There are too many of them: the grid would be too coarse.
    """
    _, e = math.frexp(max(MOST[bits] - clients, 1) / (weight * bound * SLACK))
    error = math.ldexp(clients / weight, -e)  # of a mean: half a unit, 2^-(g+1), by client
    if error > FINEST * bound:
        raise ConfigError(
            f'run-config key "secagg-bits": sums of {clients:,} clients with weights of {weight:,} in all, '
            f"each within max-update-norm = {bound:g}, fit {bits} bits in units of 2^{1 - e}, by which a "
            f"number of the mean may be off by {error:.2g}; expected at most {FINEST * bound:.2g}. Set "
            f"secagg-bits to 64 or {EXACT}, or ask fewer clients"
        )
    return e - 1


def rounded(record: str, change: NamedArrays, weight: int, exponent: int, bits: int) -> Arrays:
    """Return a client's change of float64 times its weight as int64, in units of 2^-exponent, halves to even.

    Raises:
        FieldError: One does not fit a sum.
    """
    made: Arrays = {}
    for name, a in change.items():
        units = np.rint(a * math.ldexp(weight, exponent))
        if units.size and not (most := float(np.abs(units).max())) <= MOST[bits]:
            expected = f"changes that fit {bits} bits in units of 2^{-exponent}"
            raise FieldError(f"{record}/{name}", expected, f"{most:g} units")
        made[name] = units.astype(np.int64)
    return made

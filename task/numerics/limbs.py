"""Exact sums of numbers as integers in limbs, independent of the order of the terms.

A sum is a whole number of 2^-192, and arrays of its limbs are added as they are.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
LIMB, WHOLE, UNIT = 32, 12, 192  # bits of a limb, limbs of a sum, and its unit is 2^-UNIT
LIMBS = WHOLE + 1  # the last one counts values outside the range: NaN, infinity, 2^128 and more


def exact(values: npt.NDArray[np.float64]) -> Ints:
    """Return the sum over the first axis as limbs [..., LIMBS]; values below 2^-139 count as 0.

    Limb i counts 2^(32 i - 192); its sign is that of the sum. Limbs of several sums may be added.
    """
    flat = values.reshape(len(values), -1)
    fits = np.abs(flat) < 2.0**128
    mantissas, exponents = np.frexp(np.where(fits & (np.abs(flat) >= 2.0 ** (53 - UNIT)), flat, 0.0))
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    limbs = np.zeros((flat.shape[1], LIMBS), np.int64)
    for column in range(flat.shape[1]):
        total = 0
        for e in np.unique(exponents[:, column]).tolist():
            some = whole[exponents[:, column] == e, column]
            # halves, so that int64 sums of any number of them stay exact
            units = (int((some >> 26).sum()) << 26) + int((some & (2**26 - 1)).sum())
            total += units << (e - 53 + UNIT) if units else 0
        sign, rest = (-1 if total < 0 else 1), abs(total)
        for i in range(WHOLE):
            limbs[column, i] = sign * ((rest >> (LIMB * i)) & (2**LIMB - 1))
    limbs[:, WHOLE] = (~fits).sum(0)
    return limbs.reshape(*values.shape[1:], LIMBS)


def number_of(limbs: Ints) -> Fraction:
    """Return the sum that limbs [LIMBS] stand for.

    Raises:
        ArithmeticError: A value was too large or not finite.
    """
    *parts, lost = limbs.tolist()
    if lost:
        raise ArithmeticError(f"{lost} values that are not finite")
    return Fraction(sum(limb << (LIMB * i) for i, limb in enumerate(parts)), 2**UNIT)

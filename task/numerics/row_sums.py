"""Exact sums of what rows contribute: the same integers however the rows are divided among files and nodes.

Each row's term is rounded once, to a whole number of 2^-51, as `task.numerics.reduce.Sum` rounds what one
client sends; the integers are then added exactly. So the sum over all rows is that of a `Sum` to which every
row was added by itself. A sum that floats had made first, and that was rounded then, would depend on the
division.

On the wire an integer is the digits of `task.numerics.moments`, which are added as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.errors import FieldError
from task.numerics.moments import from_digits, to_digits
from task.numerics.terms import MAX_TERM

UNIT_BITS = 51  # of `task.numerics.terms.LOW_UNIT`
HIGH_BITS = 20  # of the first of two parts, each of which is a whole float64 without loss
DIGITS = 4  # 128 bits: terms below 2^31, at most 2^29 rows of a client and 2^16 clients
_NUMBERS = 2**21  # terms in memory at once, 16 MiB
_BLOCK = 2048  # rows whose parts an int64 holds: |part| < 2^51


def blocks(rows: int, terms: int) -> Iterator[slice]:
    """Yield parts of rows with so many terms each that fit in memory; any parts give the same sums."""
    size = max(_NUMBERS // max(terms, 1), 16)
    return (slice(start, start + size) for start in range(0, rows, size))


def row_sums(terms: npt.NDArray[np.float64], what: str) -> list[int]:
    """Return the sum of each column of terms [rows, numbers], in units of 2^-51.

    Raises:
        FieldError: A term is not finite, or not below 2^31; `what` names the terms.
    """
    largest = float(np.abs(terms).max(initial=0.0))
    if not largest < MAX_TERM:
        raise FieldError(what, f"terms of rows below {MAX_TERM:g}", f"{largest:g}: declare narrower ranges")
    totals = [0] * terms.shape[1]
    for start in range(0, len(terms), _BLOCK):
        block = terms[start : start + _BLOCK]
        high = np.rint(np.ldexp(block, HIGH_BITS))
        low = np.rint(np.ldexp(block - np.ldexp(high, -HIGH_BITS), UNIT_BITS))  # the difference is exact
        wide, fine = high.astype(np.int64).sum(axis=0), low.astype(np.int64).sum(axis=0)
        for j, (w, f) in enumerate(zip(wide.tolist(), fine.tolist(), strict=True)):
            totals[j] += (w << (UNIT_BITS - HIGH_BITS)) + f
    return totals


def to_wire(totals: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return sums as they travel, int64 [numbers, DIGITS]."""
    rows = [to_digits(total, DIGITS) for total in totals]
    return np.stack(rows) if rows else np.zeros((0, DIGITS), np.int64)


def from_wire(digits: npt.NDArray[np.int64]) -> list[int]:
    """Return the integers of what travelled, or of sums of it."""
    return [from_digits(row) for row in digits]


def value(total: int) -> Fraction:
    """Return the number that a sum stands for."""
    return Fraction(total, 1 << UNIT_BITS)

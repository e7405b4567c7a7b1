"""Whole numbers g and h of rows as one number each, which may be added before it is opened again.

A row is the number

    1 + h 2^a + (g + 2^G) 2^b,    |g| <= 2^G,    0 <= h <= 2^H,    a = bits of N,    b = 2 a + H

of at most N rows that are added. A sum over n <= N rows is n + (sum h) 2^a + (sum g + n 2^G) 2^b with
n < 2^a, sum h < 2^(a + H) and 0 <= sum g + n 2^G < 2^(a + G + 1): no field runs over into the next one, and
the three sums are read off exactly. `Packing.bits` = 3 a + G + H + 1 is the size of the whole.

=========  ===============  ===========================================================================
symbol     variable         meaning
=========  ===============  ===========================================================================
N          ``rows``         most rows of a sum
G, H       ``g``, ``h``     bits of the largest |g| and h: they may be 2^G and 2^H themselves; 30 as of
                            `task.trees.objectives`
=========  ===============  ===========================================================================

>>> packing = Packing(rows=3, g=4, h=2)
>>> packing.sums([sum(packing.numbers(np.array([-16, 5, 16]), np.array([4, 0, 3])))])
array([[5, 7, 3]])
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.errors import FieldError
from task.vertical.paillier import room

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """How the numbers of a row, and their sums, share one number."""

    rows: int
    g: int = 30
    h: int = 30

    @property
    def _count(self) -> int:
        return self.rows.bit_length()

    @property
    def bits(self) -> int:
        """Bits of the number of a row, or of a sum."""
        return 3 * self._count + self.g + self.h + 1

    def slots(self, key_bits: int) -> int:
        """Return how many sums one plain number has room for; `key_bits` is as of `paillier.widths`."""
        return max(room(key_bits) // self.bits, 1)

    def numbers(self, g: Ints, h: Ints) -> list[int]:
        """Return the number of each row, of g and h [N].

        Raises:
            FieldError: There are more rows than said, or a g or h is beyond its bounds.
        """
        most_g, most_h = 1 << self.g, 1 << self.h
        good = len(g) <= self.rows and (np.abs(g) <= most_g).all() and ((h >= 0) & (h <= most_h)).all()
        if not good:
            raise FieldError(
                "gradients",
                f"at most {self.rows} rows of numbers up to 2^{self.g} and 2^{self.h}",
                "more rows, or larger numbers",
            )
        a, b = self._count, 2 * self._count + self.h
        return [1 + (hi << a) + (gi + most_g << b) for gi, hi in zip(g.tolist(), h.tolist(), strict=True)]

    def sums(self, numbers: Sequence[int]) -> Ints:
        """Return sum g, sum h and the number of rows of each sum of rows' numbers, int64 [sums, 3].

        Raises:
            FieldError: One is no such sum.
        """
        a, found = self._count, np.zeros((len(numbers), 3), np.int64)
        for i, number in enumerate(numbers):
            n, h, g = number % (1 << a), number >> a & (1 << a + self.h) - 1, number >> 2 * a + self.h
            g -= n << self.g
            if n > self.rows or abs(g) > n << self.g or h > n << self.h:
                raise FieldError("histograms", f"sums over at most {self.rows} rows", "another number")
            found[i] = g, h, n
        return found

    def opened(self, plain: Sequence[int], count: int, key_bits: int) -> list[int]:
        """Return the first `count` sums of plain numbers that have `slots` sums each, the first one lowest.

        Raises:
            FieldError: They have other numbers than sums.
        """
        slots = self.slots(key_bits)
        if any(number >> self.bits * slots for number in plain):
            raise FieldError("histograms", f"numbers of {slots} sums", "larger ones")
        found = [number >> self.bits * j & (1 << self.bits) - 1 for number in plain for j in range(slots)]
        if len(found) < count or any(found[count:]):
            raise FieldError("histograms", f"{count} sums", "another number of them")
        return found[:count]

"""A code's random numbers, from its seed: the raw words of NumPy's PCG64, which are the same in all releases.

The words are taken in one order: signs, places, uniforms.
"""

import numpy as np


class Draws:
    """The words of one seed, from the first on."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.PCG64(seed)

    def bits(self, count: int) -> np.ndarray:
        """Return fair bits, uint8, 0 or 1: those of ceil(count / 64) words, the lowest byte first."""
        words = self._words.random_raw(-(-count // 64)).astype("<u8")
        return np.unpackbits(words.view(np.uint8), count=count)

    def uniforms(self, count: int) -> np.ndarray:
        """Return multiples of 2^-24 from 0 to below 1, float32: the upper 24 bits of a word each."""
        return (self._words.random_raw(count) >> 40).astype(np.float32) * np.float32(2.0**-24)

    def places(self, size: int, count: int) -> np.ndarray:
        """Return `count` of `size` places, sorted, int64; each choice is as likely as any other.

        They are the first different ones among words modulo `size` (uniform to `size` / 2^64); of more than
        half of the places, those that are not taken are drawn.
        """
        few = min(count, size - count)
        drawn, found = np.zeros(size, bool), 0
        while found < few:
            drawn[self._words.random_raw(few - found) % np.uint64(size)] = True
            found = int(np.count_nonzero(drawn))
        return np.flatnonzero(drawn if few == count else ~drawn)

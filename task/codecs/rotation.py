"""A random rotation of each block: H D' H D x / B, where H is Hadamard's matrix and D, D' are random signs.

Suresh et al. 2017 rotate once, H D x / sqrt(B). A block with few large entries then becomes one of few
different values, and EDEN's estimate of it is biased; after the second rotation the entries are nearly
normal whatever the block was, and the bias that remains is of order |x| / B. The factor 1 / B is exact. Every
entry is made by additions and subtractions in a fixed order, so that the bits are the same on every machine.
"""

import numpy as np

from task.codecs.draws import Draws

WORK = 1 << 16  # entries rotated at once, so that they stay in the cache


class Rotation:
    """The rotation of [blocks, B] float32 from the next words of a seed: the signs D of all, then D'."""

    def __init__(self, draws: Draws, blocks: int, block: int) -> None:
        self._shape = blocks, block
        self._first, self._second = (draws.bits(blocks * block).reshape(blocks, block) for _ in range(2))

    def forth(self, x: np.ndarray) -> np.ndarray:
        """Return the rotated blocks."""
        return self._turn(x, self._first, None)

    def back(self, y: np.ndarray) -> np.ndarray:
        """Return the blocks that were rotated."""
        return self._turn(y, None, self._first)

    def _turn(self, x: np.ndarray, before: np.ndarray | None, after: np.ndarray | None) -> np.ndarray:
        blocks, block = self._shape
        out = np.empty(self._shape, np.float32)
        many = max(1, WORK // block)
        for i in range(0, blocks, many):
            some = slice(i, i + many)
            # Transposed, an addition is over neighbours in memory from the first step on.
            t = np.array(x[some].T, np.float32, order="C")
            if before is not None:
                _flip(t, before[some])
            t = _hadamard(t)
            _flip(t, self._second[some])
            t = _hadamard(t)
            if after is not None:
                _flip(t, after[some])
            np.multiply(t.T, np.float32(1 / block), out=out[some])
        return out


class NoRotation(Rotation):
    """Leaves the blocks as they are, and draws nothing: for comparison."""

    def __init__(self, draws: Draws, blocks: int, block: int) -> None:
        pass

    def forth(self, x: np.ndarray) -> np.ndarray:
        """Return the blocks."""
        return x

    def back(self, y: np.ndarray) -> np.ndarray:
        """Return the blocks."""
        return y


def _flip(t: np.ndarray, bits: np.ndarray) -> None:
    """Change the signs of `t`, [B, blocks], where `bits`, [blocks, B], are 1."""
    signs = t.view(np.uint32)
    signs ^= bits.T.astype(np.uint32, order="C") << np.uint32(31)


def _hadamard(t: np.ndarray) -> np.ndarray:
    """Return H t; overwrites t."""
    block, many = t.shape
    out, half = np.empty_like(t), 1
    while half < block:
        a, b = (u.reshape(block // (2 * half), 2, half * many) for u in (t, out))
        np.add(a[:, 0], a[:, 1], out=b[:, 0])
        np.subtract(a[:, 0], a[:, 1], out=b[:, 1])
        t, out, half = out, t, 2 * half
    return t

"""Arrays that differ from a base at some places only: models after sparse updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from task.numerics.arrays import BLOCK, blocks
from task.numerics.stack import StackRow


class Base:
    """An array that many `Held` start from; what all of them need of it is computed once.

    It must not change as long as one of them is in use.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.flat = array.reshape(-1)

    @cached_property
    def peak(self) -> float:
        """The largest absolute value; NaN or infinity if any element is."""
        return peak(self.flat)

    @cached_property
    def summit(self) -> int:
        """The place of the first value that is as large as `peak`."""
        return int(np.argmax(np.abs(self.flat))) if self.flat.size else 0


@dataclass(frozen=True, eq=False)
class Held:
    """A floating array: `values`, of its dtype, at the flat places `index`, and those of `start` elsewhere.

    `index` is int64, sorted, without repetition, and within the array.
    """

    start: Base
    index: np.ndarray
    values: np.ndarray

    @property
    def base(self) -> np.ndarray:
        """The array that gives all other values."""
        return self.start.array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of `dense`."""
        return self.base.shape

    @property
    def dtype(self) -> np.dtype:
        """That of `dense`."""
        return self.base.dtype

    @property
    def size(self) -> int:
        """That of `dense`."""
        return self.base.size

    @property
    def nbytes(self) -> int:
        """Bytes of the places and their values; those of the base are shared."""
        return self.index.nbytes + self.values.nbytes

    @cached_property
    def peak(self) -> float:
        """The largest absolute value of `dense`; NaN or infinity if any element is."""
        own, start = peak(self.values), self.start
        if own >= start.peak or np.isnan(own):
            return own
        at = int(np.searchsorted(self.index, start.summit))
        covered = at < self.index.size and self.index[at] == start.summit
        return peak(self.dense()) if covered else start.peak

    @cached_property
    def before(self) -> np.ndarray:
        """What `start` has at the places."""
        return self.start.flat.take(self.index)

    def dense(self) -> np.ndarray:
        """Return the whole array, a copy."""
        out = np.array(self.base, order="C")
        out.reshape(-1)[self.index] = self.values
        return out


Foldable = Mapping[str, np.ndarray | Held | StackRow]  # arrays by name, to be read only


def dense(a: np.ndarray | Held | StackRow) -> np.ndarray:
    """Return the array that `a` is or stands for."""
    return a.dense() if isinstance(a, Held | StackRow) else a


def peaks_of(arrays: Foldable, known: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the largest absolute values by name; of those that are `known` no array is read."""
    found = known or {}
    return {name: found[name] if name in found else peak(a) for name, a in arrays.items()}


def peak(a: np.ndarray | Held | StackRow) -> float:
    """Return the largest absolute value; NaN or infinity if any element is."""
    if isinstance(a, Held | StackRow):
        return a.peak
    flat = a.reshape(-1)
    if a.dtype.kind != "f":
        return float(max(-int(flat.min()), int(flat.max()))) if a.size else 0.0
    # min and max carry NaN through and meet every infinity.
    if 0 < a.size <= BLOCK:
        return abs(max(-float(flat.min()), float(flat.max())))
    ends = [end for block in blocks(a.size, BLOCK) for end in (flat[block].min(), flat[block].max())]
    return float(np.abs(ends).max()) if ends else 0.0

"""Sparse codecs: the largest entries of each tensor travel, with their values or with one magnitude.

Table: for each tensor the number of entries k_i, uint32, and for `stc` their magnitude mu_i, float32.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from task.codecs import rice
from task.codecs.codec import HEADER, Codec, Left, Reader, finite
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held

SAMPLE = 1 << 11  # magnitudes from which a first threshold is guessed


class _Largest(Codec):
    """k_i = max(1, ceil(p n_i)) entries of each tensor, chosen by magnitude; positions as in `rice`."""

    biased = True
    ternary: ClassVar[bool]  # signs and magnitudes are sent, not values

    @property
    def sparse(self) -> bool:
        """Whether only some entries travel: yes."""
        return True

    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return what no code of tensors of these shapes exceeds."""
        sizes = [math.prod(shape) for shape in shapes]
        k = sum(map(self.kept, sizes))
        planes = (rice.most_bits(k, sum(sizes)) + k * self.ternary) / 8 + 2
        return HEADER.size + 8 * len(sizes) + 4 * k * (not self.ternary) + int(planes)

    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        kept = [largest(a.reshape(-1), self.kept(a.size)) for a in x.values()]
        counts = [index.size for index in kept]
        table, flags, sent, rest = self._table(kept, x, values)
        left, at, size = {}, 0, 0
        places = np.concatenate(kept or [np.empty(0, np.int64)])
        for (name, a), index in zip(x.items(), kept, strict=True):
            here = slice(at, at + index.size)
            left[name] = Left(Base(a), index, rest[here], sent[here], self.ternary)
            places[here] += size
            at, size = here.stop, size + a.size
        b = rice.parameter(places.size, size)
        return b, np.array(counts, "<u4").tobytes() + table + rice.encode(places, flags, b), left

    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        counts = reader.take("<u4", len(bases), "counts").tolist()
        sizes = [start.flat.size for start in bases.values()]
        for name, count, size in zip(bases, counts, sizes, strict=True):
            if count > self.kept(size):
                raise reader.refuse(f"at most {self.kept(size)} of {size} entries", count, name)
        numbers = self._numbers(reader, counts)
        index, flags = rice.decode(reader, sum(counts), self.ternary, bits, sum(sizes))
        ends = np.cumsum(sizes)
        found = np.diff(np.searchsorted(index, ends), prepend=0).tolist()
        if found != counts:
            raise reader.refuse(f"{counts[:9]} positions by tensor", found[:9])
        new = self._sent(numbers, counts, flags)
        out: dict[str, np.ndarray | Held] = {}
        at = 0
        for (name, start), count, end in zip(bases.items(), counts, ends.tolist(), strict=True):
            here = slice(at, at + count)
            index[here] -= end - start.flat.size
            held = Held(start, index[here], new[here])
            if self.ternary:
                np.add(held.values, held.before, out=held.values)
            out[name] = finite(reader, name, held)
            at = here.stop
        return out

    @abstractmethod
    def _table(
        self, kept: list[np.ndarray], x: Arrays, values: Arrays
    ) -> tuple[bytes, np.ndarray | None, np.ndarray, np.ndarray]:
        """Return, given the places, what follows the counts, the flags, and what is sent and left of each."""

    @abstractmethod
    def _numbers(self, reader: Reader, counts: list[int]) -> np.ndarray:
        """Read what follows the counts."""

    @abstractmethod
    def _sent(self, numbers: np.ndarray, counts: list[int], flags: np.ndarray) -> np.ndarray:
        """Return for each entry its change, if the codec is ternary, else its value; a new float32 array."""


class TopK(_Largest):
    """The new value of each entry kept, not its change, so that p = 1 gives the arrays bit for bit.

    After the table, a float32 for each entry kept.
    """

    name, number = "top-k", 4
    ternary = False

    def _table(
        self, kept: list[np.ndarray], x: Arrays, values: Arrays
    ) -> tuple[bytes, None, np.ndarray, np.ndarray]:
        sent = _taken(kept, values)
        return sent.astype("<f4").tobytes(), None, sent, np.zeros_like(sent)

    def _numbers(self, reader: Reader, counts: list[int]) -> np.ndarray:
        return reader.take("<f4", sum(counts), "values")

    def _sent(self, numbers: np.ndarray, counts: list[int], flags: np.ndarray) -> np.ndarray:
        return numbers.astype(np.float32)


class STC(_Largest):
    """Sparse ternary compression: signs of the entries kept, and for each tensor their mean magnitude.

    Sattler et al., IEEE TNNLS 31(9) 2020, arXiv 1903.02891, algorithm 1. Their "at least the k-th largest"
    keeps more where magnitudes are equal, and all entries where that one is 0; here k are kept, and none that
    is 0. The flag of a position says that the entry is negative.
    """

    name, number = "stc", 5
    ternary = True
    reads_values = False

    def _table(
        self, kept: list[np.ndarray], x: Arrays, values: Arrays
    ) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
        some, counts = _taken(kept, x), [index.size for index in kept]
        flags, magnitudes, means, at = some < 0, np.abs(some), np.zeros(len(kept), "<f4"), 0
        for i, count in enumerate(counts):
            if count:
                means[i] = np.add.reduce(magnitudes[at : at + count], dtype=np.float64) / count
            at += count
        sent = self._sent(means, counts, flags)
        return means.tobytes(), flags, sent, some - sent

    def _numbers(self, reader: Reader, counts: list[int]) -> np.ndarray:
        means = reader.take("<f4", len(counts), "magnitudes")
        if not np.all(np.isfinite(means) & ((means > 0) == (np.array(counts) > 0)) & ~np.signbit(means)):
            raise reader.refuse("a magnitude above 0 for each tensor with entries, else 0", means[:9])
        return means

    def _sent(self, numbers: np.ndarray, counts: list[int], flags: np.ndarray) -> np.ndarray:
        signed = flags.astype(np.uint32)
        signed <<= np.uint32(31)
        at = 0
        for magnitude, count in zip(numbers.astype(np.float32).view(np.uint32), counts, strict=True):
            signed[at : at + count] |= magnitude
            at += count
        return signed.view(np.float32)


def _taken(kept: list[np.ndarray], x: Arrays) -> np.ndarray:
    """Return the entries of all tensors at these places, float32."""
    some = [a.reshape(-1).take(index) for a, index in zip(x.values(), kept, strict=True)]
    return np.concatenate([np.empty(0, np.float32), *some])


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Return the sorted places of the k largest |x|, int64; fewer where fewer are not 0.

    With v the k-th largest |x|: all that are larger, then the first of those equal to v.
    """
    magnitude = np.abs(x)
    places = _candidates(magnitude, k)
    some = magnitude if places is None else magnitude.take(places)
    if not 0 < k <= some.size:
        return np.empty(0, np.int64)
    v = np.partition(some, some.size - k)[some.size - k]
    found: np.ndarray = np.flatnonzero(some >= v if v else some > 0)
    if found.size > k:
        equal = np.flatnonzero(some.take(found) == v)
        found = np.delete(found, equal[k - found.size :])
    return found if places is None else places.take(found)


def _candidates(magnitude: np.ndarray, k: int) -> np.ndarray | None:
    """Return the places of at least k magnitudes that no other one exceeds; None: look at all of them.

    The threshold is guessed from a sample, so that about twice the needed number remain. An odd step
    meets all columns of most matrices.
    """
    n = magnitude.size
    if n < 8 * SAMPLE or k > n // 8:
        return None
    sample = magnitude[:: n // SAMPLE | 1]
    rank = int(1.25 * k * sample.size / n) + 12
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    places = np.flatnonzero(magnitude >= threshold)
    return places if places.size >= k else None

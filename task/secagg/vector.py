"""What is masked: a node's sums as integers modulo 2^96, and a few numbers that are exact sums of float64s.

Sums on a declared grid (`task.secagg.fixed_point`) are integers modulo 2^64 or 2^32 and have no upper word.

`words` of a sum V = high 2^31 + low (`task.numerics.reduce`) are those of V as one two's complement integer:
the lower 64 bits and the upper 32. Masks are the raw words of a keystream. Sums of masked words give the same
words as the sum itself, whatever the order, as long as |V| stays below 2^95.

A *number* is any sum of float64s: an integer of units 2^-1074 modulo 2^2208, in which 2^110 of the largest
float64s have room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from task.errors import SecureAggregationError
from task.secagg.fixed_point import EXACT
from task.secagg.primitives import Keystream, encode, tag

Low = npt.NDArray[np.uint64] | npt.NDArray[np.uint32]
High = npt.NDArray[np.uint32]
Mask = tuple[bytes, int]  # key of a keystream, and whether it is added (1) or subtracted (-1)
CARRY = 31  # bits of `low` in a sum's two limbs
NUMBER_UNIT, NUMBER_BYTES = 1074, 276
NUMBER_MODULUS = 1 << (8 * NUMBER_BYTES)
_BLOCK = 1 << 15  # numbers that are masked at a time: their words stay in the cache
_ZEROS = memoryview(bytes(EXACT // 8 * _BLOCK))
_COUNTS = 127  # masks whose carries a signed byte can count


@dataclass
class Vector:
    """Integers modulo 2^96, 2^64 or 2^32, [N], and numbers modulo 2^2208; masked or not."""

    low: Low  # their lower 64 bits, or all 32
    high: High  # their upper 32 bits, if there are 96
    numbers: list[int]

    @classmethod
    def zeros(cls, bits: int, size: int, numbers: int) -> "Vector":
        """Return a vector of zeros."""
        low, high = words_like(bits, size).values()
        return cls(low, high, [0] * numbers)

    def add(self, other: "Vector") -> None:
        """Add another vector.

        Raises:
            SecureAggregationError: It is not of this form.
        """
        if other.form != self.form or other.high.shape != self.high.shape:
            (bits, size, numbers), got = self.form, other.form
            raise SecureAggregationError(
                f"expected a masked vector of {size} sums of {bits} bits and {numbers} scalars; got {got[1]} "
                f"of {got[0]} and {got[2]}"
            )
        self.low += other.low
        if self.high.size:
            self.high += other.high
            self.high += self.low < other.low
        for i, number in enumerate(other.numbers):
            self.numbers[i] = (self.numbers[i] + number) % NUMBER_MODULUS

    @property
    def form(self) -> tuple[int, int, int]:
        """Bits of its sums, how many there are, and how many numbers: part of every mask's key."""
        bits = 32 if self.low.itemsize == 4 else EXACT if self.high.size == self.low.size else 64
        return bits, len(self.low), len(self.numbers)

    def mask(self, masks: Sequence[Mask]) -> None:
        """Add (sign 1) or subtract (-1) the keystreams of some keys in place.

        All of them are added up block by block while a block is in the cache. What the lower words carry is
        counted by itself, in bytes, and goes into the upper words once in a while.
        """
        streams = [(Keystream(key), sign) for key, sign in masks]
        size, wide = min(_BLOCK, self.low.size), self.low.itemsize
        step = wide + 4 * (self.high.size > 0)  # bytes of a sum
        buffer, over = np.empty(step * size, np.uint8), np.empty(size, bool)
        carry = np.zeros(size, np.int8)
        for start in range(0, self.low.size, _BLOCK):
            low, high = self.low[start : start + _BLOCK], self.high[start : start + _BLOCK]
            n = low.size
            more, zeros = buffer[: step * n], _ZEROS[: step * n]
            more_low, more_high = more[: wide * n].view(low.dtype), more[wide * n :].view(np.uint32)
            for i, (stream, sign) in enumerate(streams, start=1):
                stream.fill(more.data, zeros)
                if not high.size:
                    (np.add if sign > 0 else np.subtract)(low, more_low, out=low)
                    continue
                if sign > 0:
                    low += more_low
                    np.less(low, more_low, out=over[:n])
                    high += more_high
                    carry[:n] += over[:n].view(np.int8)
                else:
                    np.less(low, more_low, out=over[:n])
                    low -= more_low
                    high -= more_high
                    carry[:n] -= over[:n].view(np.int8)
                if i % _COUNTS == 0 or i == len(streams):
                    high += carry[:n].astype(np.int32).view(np.uint32)
                    carry[:n] = 0
        for stream, sign in streams:
            for i, number in enumerate(self.numbers):
                mask = int.from_bytes(stream.read(NUMBER_BYTES), "little")
                self.numbers[i] = (number + sign * mask) % NUMBER_MODULUS

    def number_bytes(self) -> bytes:
        """Return the numbers for the wire, `NUMBER_BYTES` each, little endian."""
        return b"".join(n.to_bytes(NUMBER_BYTES, "little") for n in self.numbers)

    def tag(self, key: bytes) -> bytes:
        """Return 16 bytes that no other vector has, for who does not know the key (`primitives.tag`)."""
        words = [part.data.cast("B") for part in (self.low, self.high) if part.nbytes]
        return tag(key, encode(*self.form), *words, self.number_bytes())


def numbers_from(raw: bytes) -> list[int]:
    """Return the numbers of `Vector.number_bytes`.

    Raises:
        SecureAggregationError: The length is not one of whole numbers.
    """
    if len(raw) % NUMBER_BYTES:
        raise SecureAggregationError(f"expected scalars of {NUMBER_BYTES} bytes; got {len(raw)} bytes in all")
    return [int.from_bytes(raw[i : i + NUMBER_BYTES], "little") for i in range(0, len(raw), NUMBER_BYTES)]


def words_like(bits: int, size: int) -> dict[str, npt.NDArray[Any]]:
    """Return zero words for this number of sums, by name: ``low`` and ``high``."""
    low = np.zeros(size, np.uint32 if bits == 32 else np.uint64)
    return {"low": low, "high": np.zeros(size if bits == EXACT else 0, np.uint32)}


def as_residues(sums: npt.NDArray[np.int64], bits: int) -> tuple[Low, High]:
    """Return sums modulo 2^64 or 2^32 as words."""
    low = sums.astype(np.int64).view(np.uint64)
    return low if bits == 64 else low.astype(np.uint32), np.zeros(0, np.uint32)


def as_sums(low: Low) -> npt.NDArray[np.int64]:
    """Return the sums that have these residues and lie around 0."""
    return low.view(np.int64 if low.itemsize == 8 else np.int32).astype(np.int64)


def as_words(high: npt.NDArray[np.int64], low: npt.NDArray[np.int64]) -> tuple[Low, High]:
    """Return high 2^31 + low modulo 2^96 as words; 0 <= low < 2^31."""
    return ((high << CARRY) | low).view(np.uint64), (high >> (64 - CARRY)).astype(np.uint32)


def as_limbs(low: Low, high: High) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the limbs high and low of sums in words.

    Raises:
        SecureAggregationError: A sum does not fit: it is no sum of what nodes may send, or masks are left.
    """
    upper = high.view(np.int32).astype(np.int64)
    if upper.size and not (upper.min() >= -(1 << 30) and upper.max() < 1 << 30):
        raise SecureAggregationError(
            "expected unmasked sums below 2^94 units; got larger ones: a mask is left"
        )
    lower = low.view(np.int64)
    rest = (low >> np.uint64(CARRY)).astype(np.int64)  # the lower 33 bits of the high limb
    return (upper << (64 - CARRY)) | rest, lower & ((1 << CARRY) - 1)


def as_number(total: Fraction) -> int:
    """Return a sum of float64s as a number.

    Raises:
        SecureAggregationError: It is no whole number of 2^-1074.
    """
    units = total * (1 << NUMBER_UNIT)
    if units.denominator != 1:
        raise SecureAggregationError("expected sums of float64s; got a number with finer parts")
    return units.numerator % NUMBER_MODULUS


def as_fraction(number: int) -> Fraction:
    """Return the sum that a number stands for."""
    signed = number - NUMBER_MODULUS if number >> (8 * NUMBER_BYTES - 1) else number
    return Fraction(signed, 1 << NUMBER_UNIT)


def total(values: Iterable[float]) -> Fraction:
    """Return the exact sum of float64s."""
    return sum((Fraction(v) for v in values), Fraction(0))


def joined(bits: int, parts: Sequence[tuple[Low, High]]) -> tuple[Low, High]:
    """Return the words of several arrays one after the other."""
    low, high = words_like(bits, 0).values()
    low = np.concatenate([low, *(low.reshape(-1) for low, _ in parts)])
    return low, np.concatenate([high, *(high.reshape(-1) for _, high in parts)])

"""Base of the codecs, and the form of their codes: a header, a table, planes.

    header   16 bytes, little-endian: magic 0xBC, version 1, codec, bits (1 byte each); tensors (4); seed (8)
    table    what the codec says of each tensor or block: how many entries, scales
    planes   the entries, in bits

Lengths follow from header, table and shapes; padding bits, and bits that the decoder does not need, are 0: it
refuses all else. docs/reference/compression.md has the tables and planes of each codec.
"""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from task.errors import ConfigError, FieldError
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held, peak

HEADER = struct.Struct("<4BIQ")
MAGIC, VERSION = 0xBC, 1
T = TypeVar("T", bound="np.ndarray | Held")


class Reader:
    """Reads a code from front to back; `refuse` gives the error for whatever is wrong with it."""

    def __init__(self, code: bytes | memoryview, what: str) -> None:
        self.data = memoryview(code).cast("B")
        self.at = 0
        self.what = what

    def refuse(self, expected: str, got: object, name: str = "") -> FieldError:
        """Return the error of a code, or of the part of the array `name`."""
        return FieldError(f"{self.what}/{name}" if name else self.what, expected, str(got))

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.data) - self.at

    def take(self, dtype: str, count: int, item: str) -> np.ndarray:
        """Return the next `count` numbers.

        Raises:
            FieldError: There are fewer.
        """
        size = np.dtype(dtype).itemsize * count
        if size > self.left:
            raise self.refuse(f"a code with {size} bytes of {item}", f"{self.left} bytes")
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += size
        return found

    def bits(self, count: int, item: str) -> np.ndarray:
        """Return the next `count` bits, uint8, 0 or 1; they fill up their last byte with zeros.

        Raises:
            FieldError: There are fewer, or what fills up is not 0.
        """
        packed = self.take("u1", -(-count // 8), item)
        if count % 8 and packed[-1] & (0xFF >> count % 8):
            raise self.refuse(f"zeros after the {count} bits of {item}", "ones")
        return np.unpackbits(packed, count=count)

    def end(self) -> None:
        """Refuse bytes that are left.

        Raises:
            FieldError: There are some.
        """
        if self.left:
            raise self.refuse(f"a code of {self.at} bytes", f"{len(self.data)}")


@dataclass(frozen=True, eq=False)
class Left(Held):
    """The residual of a code: what it leaves out of an update, and what it sends at the places `index`.

    `sent` is float32: changes, or the entries' new values (not `changes`).
    """

    sent: np.ndarray
    changes: bool

    def decoded(self, base: Base) -> Held:
        """Return what `Codec.decode` makes of the code: the bits are the same."""
        held = Held(base, self.index, self.sent.copy())
        if self.changes:
            np.add(held.values, held.before, out=held.values)
        return held


class Codec(ABC):
    """A pair of pure functions: an update as bytes, and from these bytes the new arrays.

    Args:
        keep: Fraction of the entries that travel, p; codecs that send all of them do not look at it.
        bits: Bits an entry; 0 is the codec's own default.
        block: Entries that are rotated together, a power of two.

    Raises:
        ConfigError: A knob is out of its range.
    """

    name: ClassVar[str]
    number: ClassVar[int]  # in the header
    biased: ClassVar[bool] = False  # needs error feedback
    widths: ClassVar[tuple[int, ...]] = (0,)  # choices of `bits`, the default first
    seeded: ClassVar[bool] = False  # the decoder draws as the encoder did
    reads_values: ClassVar[bool] = True  # the encoder considers the decoded entries, not only x

    def __init__(self, keep: float, bits: int, block: int) -> None:
        if not 0 < keep <= 1:
            raise ConfigError(f"codec.keep: expected a fraction above 0 and at most 1; got {keep}")
        if block < 64 or block & (block - 1) or block > 1 << 20:
            raise ConfigError(f"codec.block: expected a power of two from 64 to {1 << 20}; got {block}")
        if bits and bits not in self.widths and len(self.widths) > 1:
            some = ", ".join(map(str, sorted(self.widths)))
            raise ConfigError(f"codec.bits: expected one of {some} for {self.name}; got {bits}")
        self.keep, self.block = keep, block
        self.bits = bits if bits in self.widths else self.widths[0]

    @property
    def sparse(self) -> bool:
        """Whether only some entries travel and the others stay as they are in the base."""
        return False

    def encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[bytes, dict[str, Left]]:
        """Return the code of an update, and what that leaves out, if the codec is biased.

        Args:
            x: The update and the residual, by tensor name, float32, finite.
            values: What the entries become if they are sent in full, of the same names and shapes: base + x;
                any without `reads_values`.
            seed: From 0 to below 2^64.

        Returns:
            The code, and by name the update less what the code stands for, as what differs from `x`; {} of
            unbiased codecs.
        """
        with np.errstate(all="ignore"):  # a decoder refuses what overflows
            bits, body, left = self._encode(x, values, seed)
        head = HEADER.pack(MAGIC, VERSION, self.number, bits, len(x), seed if self.seeded else 0)
        return head + body, left

    def decode(
        self,
        code: bytes | memoryview,
        base: Mapping[str, np.ndarray | Base],
        what: str,
        seed: int | None = None,
    ) -> dict[str, np.ndarray | Held]:
        """Return base + update, float32 by name, dense or, from a sparse codec, as what changes in the base.

        Args:
            code: Untrusted.
            base: What the update is relative to, float32, in the encoder's order; zeros for a change. A
            caller that decodes many codes gives a `Base` for each array, so that their `Held` share it.
            what: The field's name, for errors.
            seed: That the encoder must have drawn from; None = any. The choice of the seed is the choice of
            what is drawn.

        Raises:
            FieldError: These are not the bytes of a code of this codec, with its knobs, for these shapes, or
                they stand for numbers that are not finite.
        """
        bases = {name: a if isinstance(a, Base) else Base(a) for name, a in base.items()}
        reader, most = Reader(code, what), self.most_bytes([b.array.shape for b in bases.values()])
        if len(reader.data) > most:
            raise reader.refuse(f"a code of {self.name} of at most {most} bytes", f"{len(reader.data)}")
        head = bytes(reader.take("u1", HEADER.size, "header"))
        magic, version, number, bits, tensors, drawn = HEADER.unpack(head)
        want = (MAGIC, VERSION, self.number, len(bases))
        if (magic, version, number, tensors) != want or (drawn and not self.seeded):
            got = f"{magic:#x}, {version}, {number}, {tensors} with seed {drawn}"
            expected = f"{MAGIC:#x}, {VERSION}, {self.number}, {len(bases)} tensors"
            seeded = "a seed" if self.seeded else "seed 0"
            raise reader.refuse(f"the header of {self.name}: {expected} with {seeded}", got)
        if self.seeded and seed not in (None, drawn):
            raise reader.refuse(f"seed {seed}, which run, round and client give", f"{drawn}")
        with np.errstate(all="ignore"):
            return self._decode(reader, bits, drawn, bases)

    def _check_length(self, reader: Reader, bits: int, bases: Mapping[str, Base]) -> None:
        """Refuse a code of a codec without bits whose codes all have one length."""
        length = self.most_bytes([start.array.shape for start in bases.values()])
        if bits or len(reader.data) != length:
            raise reader.refuse(f"a code of {length} bytes with 0 bits", f"{len(reader.data)} with {bits}")

    @abstractmethod
    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return an upper bound on the bytes of a code of tensors of these shapes."""

    @abstractmethod
    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        """Return the header's bits, what follows the header, and what it leaves out."""

    @abstractmethod
    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        """Read what follows the header."""

    def kept(self, size: int) -> int:
        """Return how many of a tensor's entries are sent at most: max(1, ceil(p n)); 0 if it is empty."""
        return min(size, max(1, math.ceil(self.keep * size)))


def finite(reader: Reader, name: str, a: T) -> T:
    """Return a new array that is finite.

    Raises:
        FieldError: It is not.
    """
    if not math.isfinite(peak(a)):
        raise reader.refuse("finite numbers", "a code that gives NaN or infinity", name)
    return a

"""Arrays in messages that stay where they are, until they leave the machine.

Flower carries an array as the bytes of a ``.npy`` file. Inside one machine these would be made, copied and
read again for nothing, so a message has the array itself, and makes the bytes when someone asks for them.
What a message says of its size does not depend on that.
"""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy_format

from task.numerics import pages
from task.wire import npy


class InPlace(Array):
    """An array of a message, as it lies in memory; it must not change as long as the message is there."""

    def __init__(self, held: np.ndarray) -> None:
        named: dict[str, Any] = {"dtype": str(held.dtype), "shape": tuple(held.shape), "stype": npy.FORM}
        self.__dict__.update(named, held=np.asarray(held, order="C"))

    @property
    def held(self) -> np.ndarray:
        """The array."""
        return cast(np.ndarray, self.__dict__["held"])

    def again(self) -> "InPlace":
        """Return the array as another message has it, whose bytes are made for that one alone."""
        return type(self)(self.held)

    def move(self, copy: np.ndarray) -> None:
        """Use a copy of the array from now on."""
        self.__dict__["held"] = copy

    def view(self) -> np.ndarray:
        """Return the array, read-only."""
        view = self.held.view()
        view.flags.writeable = False
        return view

    @property
    def data(self) -> bytes:  # type: ignore[override]  # Flower's is an attribute
        """The bytes of its ``.npy`` file, made now."""
        return b"".join([header(self.dtype, self.shape), self.held.reshape(-1).view(np.uint8).data])

    @property
    def wire_bytes(self) -> int:
        """The length of `data`."""
        return len(header(self.dtype, self.shape)) + self.held.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the array."""
        return in_place, (self.held,)


class HeldSum(InPlace):
    """A sum as `task.numerics.reduce.Sum.held` returns it, of which two int32 arrays would travel."""

    @property
    def wire_bytes(self) -> int:
        """The bytes of both, without their names."""
        return 2 * (len(header("int32", self.shape)) + 4 * self.held.size)

    def view(self) -> np.ndarray:
        """Return the sum, which is the reader's to change."""
        return self.held

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the array."""
        return held_sum, (self.held,)


def held_sum(held: np.ndarray) -> HeldSum:
    """Return a sum as a message has it that stays on its machine."""
    return HeldSum(held)


def in_place(held: np.ndarray) -> InPlace:
    """Return an array as a message has it."""
    return InPlace(held)


InPlace.__qualname__ = HeldSum.__qualname__ = (
    Array.__qualname__
)  # Flower writes the class's name into what it sends


@lru_cache(maxsize=4096)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what a ``.npy`` file of such an array in C order begins with."""
    buffer = BytesIO()
    said = {"descr": npy_format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(buffer, said)
    return buffer.getvalue()


def give_bytes(content: RecordDict) -> None:
    """Make the bytes of arrays that leave the machine, one by one; the memory of each array is then free."""
    size = 0
    for record in [each for each in content.values() if isinstance(each, ArrayRecord)]:
        for name in record:
            a = record[name]
            if isinstance(a, InPlace):
                record[name] = Array(a.dtype, a.shape, a.stype, a.data)
                size += a.held.nbytes
            del a
    pages.reclaim(size)


def size_of(array: Array) -> int:
    """Return the bytes of an array on the wire."""
    return array.wire_bytes if isinstance(array, InPlace) else len(array.data)


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return these very arrays as a record; Flower's own class copies what it is made of."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def record_bytes(record: ArrayRecord) -> int:
    """Return what Flower's ``count_bytes`` does: the bytes of the arrays and the letters of their names."""
    found = 0
    for name, array in record.items():
        found += size_of(array) + len(name) * (2 if isinstance(array, HeldSum) else 1)
    return found

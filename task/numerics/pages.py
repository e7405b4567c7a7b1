"""Arrays in memory that the processes of a simulation share.

A model that the driver makes is read by every worker, and a worker's sums are read by the driver. As pages of
a file without a name they are handed over by its descriptor, and each process maps them: nothing is copied,
and each page is there once. Only a simulation does that (`in_use`); elsewhere, and where a system has no such
files, arrays are NumPy's own.
"""

import ctypes
import gc
import math
import mmap
import os
import weakref
from collections.abc import Mapping

import numpy as np

LEAST = 1 << 22  # bytes; what is smaller is sooner copied than mapped
LARGE = 1 << 24  # bytes of a transfer after which it pays to look for what is free
ALIGNED = 64  # bytes: PyTorch's own, as kernels round by where numbers lie
_use = False
_large = False  # whether this process has had pages since `trim`


class Pages(mmap.mmap):
    """The mapped pages of a file; `file` is its descriptor, open as long as this is there."""

    file: int

    @classmethod
    def of(cls, file: int, *, ours: bool) -> "Pages":
        """Map a file, which is closed with the map.

        If it is `ours` others see what is written; else they don't, and each page that is written is copied.
        """
        global _large
        _large = True
        pages = cls(file, 0, access=mmap.ACCESS_WRITE if ours else mmap.ACCESS_COPY)
        pages.file = file
        weakref.finalize(pages, os.close, file)
        return pages


def in_use(*, use: bool) -> bool:
    """Say whether arrays of this process are to be shared with others; return what was said before."""
    global _use
    before, _use = _use, use and hasattr(os, "memfd_create")
    return before


def used() -> bool:
    """Return whether arrays of this process are to be shared with others."""
    return _use


def zeros(like: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, np.ndarray]:
    """Return arrays of zeros by name, of these shapes and dtypes; together in pages if they are large."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in like.items()}
    if not _use or sum(sizes.values()) < LEAST:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in like.items()}
    file, at, places = os.memfd_create("bouquet"), 0, {}
    for name, size in sizes.items():
        places[name], at = at, at + -(-size // ALIGNED) * ALIGNED
    os.ftruncate(file, at)
    pages = Pages.of(file, ours=True)
    return {name: array(pages, places[name], shape, dtype.str) for name, (shape, dtype) in like.items()}


def copied(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return copies of arrays, made as `zeros` are."""
    found = zeros({name: (a.shape, a.dtype) for name, a in arrays.items()})
    for name, a in arrays.items():
        found[name][...] = a
    return found


def alias(a: np.ndarray) -> np.ndarray | None:
    """Return an array in pages once more, and not read-only; None if it lies in none."""
    found = place_of(a) if a.flags.c_contiguous else None
    return array(*found, a.shape, a.dtype.str) if found else None


def trim(*, always: bool = False) -> None:
    """Give memory that is free in this process back to the system, if it had pages since the last call.

    The allocator keeps what lies between other things, which of a large model is more than a copy of it.
    With `always` it is given back whether there were pages or not.
    """
    global _large
    if _large or always:
        _large = False
        release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library has it
        if release is not None:
            release(0)


def reclaim(size: int) -> None:
    """Free what a transfer of this number of bytes has left in this process, if it was a large one.

    HTTP requests and responses, with their content, are in reference cycles, which the collector would find
    much later.
    """
    if size >= LARGE:
        gc.collect()
        trim(always=True)


def array(pages: Pages, place: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the array that lies at a place in pages."""
    return np.ndarray(shape, np.dtype(dtype), pages, place)


def place_of(a: np.ndarray) -> tuple[Pages, int] | None:
    """Return the pages that an array lies in, and where it begins there; None if it lies in no such pages."""
    base: object = a
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, Pages):
        return None
    begin = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    return base, a.__array_interface__["data"][0] - begin

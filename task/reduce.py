"""Reductions: how the same field of many clients becomes one, exactly.

A reduction has `add` (one client), `merge` (another partial reduction) and `result`; `check` and
`check_merge` refuse beforehand what those would refuse, so that several fields are folded all or none.
The result does not depend on the order of arrival nor on which node folded which clients, bit for bit:

* Float terms ``weight * x`` are split into a high part, a multiple of 2^-20, and a low part, a multiple
  of 2^-51 (each split rounds a single term, once, before anything is added). Sums of such multiples are
  exact in float64 while they stay below 2^33 and 2^2; exact sums are associative. This is the
  pre-rounding of reproducible summation (Demmel & Nguyen, 2013) with two fixed bins. What is lost is
  2^-52 of each term, absolutely, far below the last bit of a float32 parameter.
* Integer arrays (counters of normalisation layers) are summed as integers.
* `Stack` sorts by client name; beyond `SPOOL` bytes its rows lie in a temporary file.

The guard: `add` refuses a term that does not fit (|weight * x| >= 2^31, or a running sum that could
reach 2^33) with `FieldError`, so that a diverged client is quarantined and never rounds somebody else.

Memory of `Mean` and `Sum`: two float64 per parameter, whatever the number of clients. On the wire a partial
sum is two int32 per parameter (12 bytes where a sum exceeds 2^11), so that a node's merged reply costs
as much as two models, whatever the number of its clients.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from task.arrays import Arrays
from task.errors import FieldError, StateError, WireError

HIGH = 1.5 * 2.0**32  # t + HIGH - HIGH rounds t to a multiple of 2^-20 (|t| < 2^31)
LOW = 3.0  # r + LOW - LOW rounds r to a multiple of 2^-51 (|r| <= 2^-21)
HIGH_UNIT, LOW_UNIT = 2.0**-20, 2.0**-51
MAX_TERM = 2.0**31
MAX_SUM = 2.0**32  # half of the exact range, so that a merge of two checked sums is exact too
MAX_INTEGER = 2.0**62
MAX_TERMS = 2**20  # low parts: 2^20 terms of at most 2^-21
SPOOL = 1 << 26  # bytes of rows that a `Stack` holds in memory
BLOCK = 1 << 14  # elements worked on at once: 3 float64 buffers of 128 KiB stay in the L2 cache


class Reduction(Protocol):
    """What every reduction offers."""

    name: ClassVar[str]

    def check(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> object:
        """Refuse what `add` would refuse."""

    def add(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> None:
        """Fold in one client's arrays with an integer weight."""

    def check_merge(self, records: Mapping[str, Mapping[str, np.ndarray]], count: int) -> object:
        """Refuse what `merge` would refuse."""

    def merge(self, records: Mapping[str, Mapping[str, np.ndarray]], weight: int, count: int) -> None:
        """Fold in what `partial` of another reduction returned, with its weight and count."""

    def partial(self) -> dict[str, Arrays]:
        """Return the reduction so far as named records, ready for the wire."""

    def result(self) -> Arrays:
        """Return the reduced arrays in the dtypes that came in."""


class Sum:
    """Weighted sum over clients: sum_k weight_k * x_k, exact until its last rounding.

    Args:
        like: Arrays of the names, shapes and dtypes that will come in.
    """

    name: ClassVar[str] = "sum"

    def __init__(self, like: Mapping[str, np.ndarray]) -> None:
        self.weight = 0
        self.count = 0
        floats = {name for name, a in like.items() if a.dtype.kind == "f"}
        self._dtype = {name: a.dtype for name, a in like.items()}
        self._bound = dict.fromkeys(like, 0.0)
        self._high = {n: np.zeros(a.shape, np.float64 if n in floats else np.int64) for n, a in like.items()}
        self._low = {n: np.zeros(a.shape) for n, a in like.items() if n in floats}

    def check(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> dict[str, float]:
        """Return the largest |weight * value| by name.

        Raises:
            FieldError: A term does not fit the exact range.
        """
        bounds = {name: _peak(a) * weight for name, a in arrays.items()}
        for name, bound in bounds.items():
            total = self._bound[name] + bound
            term, most = (MAX_TERM, MAX_SUM) if name in self._low else (MAX_INTEGER, MAX_INTEGER)
            if not (bound < term and total < most) or self.count + 1 > MAX_TERMS:
                raise FieldError(
                    name,
                    f"|weight * value| below {term:g} and its sum over the cohort below {most:g}",
                    f"{bound:g} and {total:g}: the model diverged, or the data need scaling",
                )
        return bounds

    def add(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> None:
        """Fold in one client's arrays.

        Raises:
            FieldError: A term does not fit the exact range; nothing was folded then.
        """
        bounds = self.check(arrays, weight, client)
        for name, a in arrays.items():
            self._bound[name] += bounds[name]
            if name in self._low:
                _fold(self._high[name], self._low[name], a, float(weight))
            else:
                self._high[name] += a.astype(np.int64) * weight
        self.weight += weight
        self.count += 1

    def partial(self) -> dict[str, Arrays]:
        """Return the exact sum as ``high`` of every array and ``low`` of the floating ones.

        The low part is what exceeds a multiple of 2^-20, counted in 2^-51, int32. The high part is counted
        in 2^-20 as int32 where that is wide enough, else float64. Integer sums are int64.
        """
        high: Arrays = dict(self._high)
        low: Arrays = {}
        for name, rest in self._low.items():
            carry = (rest + HIGH) - HIGH
            whole = high[name] + carry
            low[name] = ((rest - carry) / LOW_UNIT).astype(np.int32)
            fits = whole.size == 0 or abs(whole).max() / HIGH_UNIT < 2**31
            high[name] = (whole / HIGH_UNIT).astype(np.int32) if fits else whole
        return {"high": high, "low": low}

    def check_merge(self, records: Mapping[str, Mapping[str, np.ndarray]], count: int) -> Arrays:
        """Return the high parts as float64.

        Raises:
            FieldError: The sums leave the exact range.
        """
        highs: Arrays = {n: a * HIGH_UNIT if a.dtype == np.int32 else a for n, a in records["high"].items()}
        for name, high in highs.items():
            total = self._bound[name] + _peak(high) + count * 2.0**-20
            most = MAX_SUM if name in self._low else MAX_INTEGER
            if not total < most or self.count + count > MAX_TERMS:
                raise FieldError(name, f"sums below {most:g}", f"{total:g}")
        return highs

    def merge(self, records: Mapping[str, Mapping[str, np.ndarray]], weight: int, count: int) -> None:
        """Fold in another node's `partial`.

        Raises:
            FieldError: The sums leave the exact range; nothing was folded then.
        """
        for name, high in self.check_merge(records, count).items():
            self._bound[name] += _peak(high)
            self._high[name] += high
            if name in self._low:
                self._low[name] += records["low"][name] * LOW_UNIT
        self.weight += weight
        self.count += count

    def result(self) -> Arrays:
        """Return the sums in the dtypes that came in."""
        return {name: self._value(name, 1) for name in self._high}

    def _value(self, name: str, divisor: int) -> np.ndarray:
        high = self._high[name]
        if name in self._low:
            return ((high + self._low[name]) / divisor).astype(self._dtype[name])
        # Integers stay integers: nearest, halves up, exact for any size.
        return ((2 * high + divisor) // (2 * divisor)).astype(self._dtype[name])


class Mean(Sum):
    """Weighted mean over clients: sum_k weight_k * x_k / sum_k weight_k (McMahan's erratum form)."""

    name: ClassVar[str] = "mean"

    def result(self) -> Arrays:
        """Return the means in the dtypes that came in.

        Raises:
            WireError: Nothing was added.
        """
        if self.weight <= 0:
            raise WireError("a mean needs at least one client with a positive weight; got none")
        return {name: self._value(name, self.weight) for name in self._high}


class Stack:
    """All clients' arrays side by side, shape [K, ...], in the order of client names.

    More than `spool` bytes of rows go to a temporary file without a name in ``$TMPDIR``; `result` then gives
    read-only arrays that are mapped from it, so that the process holds what it looks at and no more. See
    `release`.

    Args:
        like: Arrays of the names, shapes and dtypes that will come in.
        spool: Bytes that are held in memory; None = `SPOOL`.
    """

    name: ClassVar[str] = "stack"

    def __init__(self, like: Mapping[str, np.ndarray], spool: int | None = None) -> None:
        self.weight = 0
        self._spool = SPOOL if spool is None else spool
        self._like = {name: (a.shape, a.dtype, a.nbytes) for name, a in like.items()}
        self._row_bytes = sum(_padded(size) for _, _, size in self._like.values())
        self._weights: dict[str, int] = {}
        self._held: dict[str, Arrays] = {}
        self._file: int | None = None  # descriptor
        self._slots: dict[str, int] = {}  # place in the file by client

    @property
    def count(self) -> int:
        """Number of clients K."""
        return len(self._weights)

    @property
    def clients(self) -> list[str]:
        """Client names in row order."""
        return sorted(self._weights)

    @property
    def weights(self) -> np.ndarray:
        """Weights in row order, int64 [K]."""
        return np.array([self._weights[c] for c in self.clients], np.int64)

    def check(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> None:
        """Refuse a second reply of a client.

        Raises:
            FieldError: The client is in the stack already.
        """
        if client in self._weights:
            raise FieldError("", f"one reply a round from {client}", "two")

    def add(self, arrays: Mapping[str, np.ndarray], weight: int, client: str) -> None:
        """Keep one client's arrays.

        Raises:
            FieldError: The client is in the stack already.
            StateError: The temporary file cannot be written.
        """
        self.check(arrays, weight, client)
        self._held[client] = dict(arrays)
        if self._file is not None or self._row_bytes * len(self._held) > self._spool:
            self._write_out()
        self._weights[client] = weight
        self.weight += weight

    def _write_out(self) -> None:
        """Move the rows in memory to the end of the file."""
        try:
            if self._file is None:
                self._file, path = tempfile.mkstemp(prefix="bouquet-")
                weakref.finalize(self, os.close, self._file)
                os.unlink(path)  # the space is free again when nobody has it open or mapped
            for client in list(self._held):
                at = len(self._slots) * self._row_bytes
                for name, (_, dtype, size) in self._like.items():
                    a = np.asarray(self._held[client][name], dtype, order="C")
                    _write(self._file, a.reshape(-1).view(np.uint8).data, at)
                    at += _padded(size)
                self._slots[client] = len(self._slots)
                del self._held[client]
            os.truncate(self._file, len(self._slots) * self._row_bytes)
        except OSError as err:
            raise StateError(
                f"replies that the rule needs one by one: {err} in {tempfile.gettempdir()} after "
                f"{len(self._slots)} of {self._row_bytes / 1e6:.3g} MB each; set TMPDIR to a larger folder"
            ) from None

    def _sort_file(self) -> None:
        """Bring the rows of the file into the order of names, in place, with one row in memory."""
        assert self._file is not None
        size, order = self._row_bytes, [self._slots[c] for c in self.clients]  # row i comes from order[i]
        for first in range(len(order)):
            if order[first] == first:
                continue
            spare = os.pread(self._file, size, first * size)
            i = first
            while order[i] != first:
                row = os.pread(self._file, size, order[i] * size)
                _write(self._file, memoryview(row), i * size)
                order[i], i = i, order[i]
            _write(self._file, memoryview(spare), i * size)
            order[i] = i
        self._slots = {c: i for i, c in enumerate(self.clients)}

    def _mapped(self) -> Arrays:
        """Return the file's rows as arrays [K, ...] in the order of slots."""
        assert self._file is not None
        rows, out, at = len(self._slots), {}, 0
        pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) if self._row_bytes else b""
        for name, (shape, dtype, size) in self._like.items():
            if size:
                inner = np.empty(shape, dtype).strides if shape else ()
                out[name] = np.ndarray((rows, *shape), dtype, pages, at, (self._row_bytes, *inner))
            else:
                out[name] = np.empty((rows, *shape), dtype)
            at += _padded(size)
        return out

    def partial(self) -> dict[str, Arrays]:
        """Return one record per client; the weight travels as the array ``""``."""
        mapped = {} if self._file is None else self._mapped()
        rows = {c: {n: a[i] for n, a in mapped.items()} for c, i in self._slots.items()} | self._held
        return {c: {**row, "": np.array(self._weights[c], np.int64)} for c, row in rows.items()}

    def check_merge(self, records: Mapping[str, Mapping[str, np.ndarray]], count: int) -> None:
        """Refuse clients that are in the stack already."""
        for client in records:
            self.check({}, 0, client)

    def merge(self, records: Mapping[str, Mapping[str, np.ndarray]], weight: int, count: int) -> None:
        """Take over another node's rows."""
        self.check_merge(records, count)
        for client, row in records.items():
            self.add({k: v for k, v in row.items() if k}, int(row[""]), client)

    def result(self) -> Arrays:
        """Return every field with a leading client axis, shape [K, ...].

        Rows that were spooled come as read-only arrays; each client's row is contiguous, the whole is not.
        An `add` makes them stale.
        """
        if self._file is not None:
            self._sort_file()
            return self._mapped()
        rows = [self._held[c] for c in self.clients]
        return {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def release(array: np.ndarray) -> None:
    """Give back the memory that holds the pages of a spooled `Stack`'s array; it can be read as before.

    Who goes through a stack in one pass calls this now and then, and its memory does not grow with K.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _padded(size: int) -> int:
    """Return the bytes that an array takes in a row of the file: a multiple of 64, for any dtype."""
    return -(-size // 64) * 64


def _write(file: int, data: memoryview, at: int) -> None:
    """Write all of `data` at an offset; one call may write less."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)


REDUCTIONS: dict[str, type[Mean] | type[Sum] | type[Stack]] = {"mean": Mean, "stack": Stack, "sum": Sum}


def _peak(a: np.ndarray) -> float:
    """Return the largest absolute value; NaN if any element is NaN."""
    return 0.0 if a.size == 0 else float(max(-a.min(), a.max()) if a.dtype.kind == "f" else abs(a).max())


def _fold(high: np.ndarray, low: np.ndarray, x: np.ndarray, weight: float) -> None:
    """Add the exact split of ``weight * x`` to `high` and `low`, block by block.

    A float32 times a weight below 2^29 is exact in float64; ``t - h`` is exact as well (Sterbenz), so
    the only rounding is the one to the grid of `low`.
    """
    high_, low_, x_ = high.reshape(-1), low.reshape(-1), x.reshape(-1)
    t, h = np.empty((2, min(BLOCK, x_.size)))
    for i in range(0, x_.size, BLOCK):
        block = slice(i, i + BLOCK)
        n = x_[block].size
        t_, h_ = t[:n], h[:n]
        np.multiply(x_[block], weight, out=t_, dtype=np.float64)
        np.add(t_, HIGH, out=h_)
        h_ -= HIGH
        high_[block] += h_
        t_ -= h_
        t_ += LOW
        t_ -= LOW
        low_[block] += t_

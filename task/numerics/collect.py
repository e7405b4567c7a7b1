"""The reduction that keeps every client's arrays, for rules that need them one by one.

Beyond `SPOOL` bytes the rows lie in a temporary file, so that memory does not grow with the cohort.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from task.errors import FieldError, StateError, local, reason
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.held import Foldable, dense, peaks_of
from task.numerics.terms import FINITE, MAX_INTEGER_TERM, MAX_TERM
from task.units import human_bytes

SPOOL = 1 << 26  # bytes of rows that a `Collect` holds in memory


class Collect:
    """All clients' arrays side by side, shape [K, ...], in the order of client names.

    `like` are arrays of the names, shapes and dtypes that will come in. More than `spool` bytes of rows, by
    default `SPOOL`, go to a temporary file without a name in ``$TMPDIR``; `result` then gives read-only
    arrays that are mapped from it, so that the process holds what it reads and no more. See `release`.
    """

    name: ClassVar[str] = "collect"

    def __init__(self, like: NamedArrays, spool: int | None = None) -> None:
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

    def check(
        self, arrays: Foldable, weight: int, client: str, peaks: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the largest |value| by name.

        Raises:
            FieldError: The client was added already, or a value is as large as a sum refuses.
        """
        if client in self._weights:
            raise FieldError("", f"one reply a round from {client}", "two")
        found = peaks_of(arrays, peaks)
        for name, largest in found.items():
            most = MAX_TERM if self._like[name][1].kind == "f" else MAX_INTEGER_TERM
            if not largest < most:
                expected = f"{FINITE}s, |value| below {most:g}"
                raise FieldError(name, expected, f"{largest:g}: the model diverged, or the data need scaling")
        return found

    def add(
        self, arrays: Foldable, weight: int, client: str, checked: Mapping[str, float] | None = None
    ) -> None:
        """Keep one client's arrays.

        Raises:
            FieldError: What `check` refuses.
            StateError: The temporary file cannot be written.
        """
        if checked is None:
            self.check(arrays, weight, client)
        self._held[client] = {name: dense(a) for name, a in arrays.items()}
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
                os.unlink(path)  # the space is freed when no process has it open or mapped
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
                f"replies that the rule needs one by one: {reason(err)} in "
                f"{local(tempfile.gettempdir())} after "
                f"{len(self._slots)} of {human_bytes(self._row_bytes)} each; set TMPDIR to a larger folder"
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

    def check_merge(self, records: Mapping[str, NamedArrays], count: int) -> dict[str, float]:
        """Refuse what `check` refuses, of each client."""
        for client, row in records.items():
            self.check({k: v for k, v in row.items() if k}, 0, client)
        return {}

    def merge(
        self, records: Mapping[str, NamedArrays], weight: int, count: int, checked: Mapping[str, float]
    ) -> None:
        """Take over another node's rows."""
        for client, row in records.items():
            self.add({k: v for k, v in row.items() if k}, int(row[""]), client, {})

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


class CollectParts(Collect):
    """Clients' arrays that differ in form, as parts of a model do: a `Collect` for each form.

    A `result` has an array's rows of the clients that have it. So forms must have no name in common there, as
    models of several kinds have none.
    """

    def __init__(self, form: Callable[[str], NamedArrays]) -> None:
        super().__init__({})
        self._form = form  # returns the form of a client's arrays
        self._alike: dict[tuple[tuple[str, tuple[int, ...]], ...], Collect] = {}

    def _of(self, client: str) -> Collect:
        like = self._form(client)
        form = tuple((name, a.shape) for name, a in like.items())
        if form not in self._alike:
            self._alike[form] = Collect(like)
        return self._alike[form]

    def check(
        self, arrays: Foldable, weight: int, client: str, peaks: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return what `Collect.check` does, and raise it."""
        return self._of(client).check(arrays, weight, client, peaks)

    def add(
        self, arrays: Foldable, weight: int, client: str, checked: Mapping[str, float] | None = None
    ) -> None:
        """Keep one client's arrays; raises what `Collect.add` does."""
        self._of(client).add(arrays, weight, client, checked)
        self._weights[client] = weight
        self.weight += weight

    def partial(self) -> dict[str, Arrays]:
        """Return one record per client, as `Collect.partial` does."""
        return {c: row for collect in self._alike.values() for c, row in collect.partial().items()}

    def result(self) -> Arrays:
        """Return every array with a leading axis of the clients that have it, in the order of names."""
        return {name: a for collect in self._alike.values() for name, a in collect.result().items()}


def release(array: np.ndarray) -> None:
    """Give back the memory that holds the pages of a spooled `Collect`'s array; it can be read as before.

    A pass over all rows calls this now and then, and its memory does not grow with K.
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

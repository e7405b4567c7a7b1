"""Hand objects from process to process: as pickles, but for arrays in shared pages.

Of these the other side gets the descriptor of the file, and maps it, see `task.numerics.pages`.
"""

import io
import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from task.numerics import pages
from task.numerics.pages import Pages
from task.wire.in_place import InPlace

_HEAD = 2  # bytes before the pickle: how many files come after it


class _Pickler(pickle.Pickler):
    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink, pickle.HIGHEST_PROTOCOL)
        self.files: list[Pages] = []

    def reducer_override(self, obj: Any) -> Any:
        """Pickle an array in pages as its place."""
        if isinstance(obj, InPlace) and obj.held.nbytes >= pages.LEAST and not pages.place_of(obj.held):
            obj.move(pages.copied({"": obj.held})[""])  # once, whoever else gets this message
        elif type(obj) is np.ndarray and obj.nbytes >= pages.ALIGNED and obj.flags.c_contiguous:
            found = pages.place_of(obj)
            if found is not None:
                return pages.array, (found[0], found[1], obj.shape, obj.dtype.str)
        return NotImplemented

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of pages among the files that come after the pickle."""
        if type(obj) is not Pages:
            return None
        if not any(obj is known for known in self.files):
            self.files.append(obj)
        return next(i for i, known in enumerate(self.files) if known is obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: memoryview, mapped: list[Pages]) -> None:
        super().__init__(io.BytesIO(data))
        self.mapped = mapped

    def persistent_load(self, number: int) -> Pages:
        """Return the pages of this number."""
        return self.mapped[number]


def send(pipe: Connection, value: object) -> None:
    """Send an object; arrays in pages are not copied, and the other side may change them from now on."""
    sink = io.BytesIO()
    sink.write(bytes(_HEAD))
    pickler = _Pickler(sink)
    pickler.dump(value)
    with sink.getbuffer() as data:
        data[:_HEAD] = len(pickler.files).to_bytes(_HEAD, "little")
        pipe.send_bytes(data)
    for each in pickler.files:
        send_handle(pipe, each.file, None)


def receive(pipe: Connection, *, ours: bool) -> Any:
    """Return the object that comes; `ours` says whether its pages are this process's to change.

    Raises:
        EOFError: The other side is gone.
    """
    data = memoryview(pipe.recv_bytes())
    mapped = [Pages.of(recv_handle(pipe), ours=ours) for _ in range(int.from_bytes(data[:_HEAD], "little"))]
    return _Unpickler(data[_HEAD:], mapped).load()

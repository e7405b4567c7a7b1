"""Arrays that came over the wire: bytes in NumPy's ``.npy`` form, from an untrusted sender.

NumPy reads a header as a Python expression: nested or odd ones cost memory or time, or raise arbitrary
errors. Here a header must match the one pattern that NumPy writes for plain numbers, and agree with what is
said of the array next to it and with the number of bytes, before an array is made; and that is a view of the
bytes. So nothing is allocated, whatever is claimed, and nothing is run.
"""

import math
import re

import numpy as np

from task.errors import FieldError
from task.numerics.arrays import BFLOAT16

FORM = "numpy.ndarray"  # what Flower calls this form
LONGEST_HEADER = 1024  # bytes; the longest that NumPy writes, for 32 dimensions, has some 700
_WANTED = "an array in NumPy's .npy form"
_MAGIC = b"\x93NUMPY"
# Each number must be followed by a comma or be the last, so that the pattern matches in only one way.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufc]\d{1,2}|\|V2)', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), ?\} *\n?"
)
_KINDS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
DTYPES = {name: np.dtype(name) for name in _KINDS.split()} | {str(BFLOAT16): BFLOAT16}


def view(name: str, form: str, dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    """Return the array that lies in `data`, in place and read-only.

    `name` is for the error; `form` (only `FORM` is read), `dtype` and `shape` are what the record says.

    Raises:
        FieldError: It is in another form, or the record, the header and the bytes do not agree.
    """
    claimed = DTYPES.get(dtype)
    if claimed is None:
        raise FieldError(name, "a NumPy dtype of plain numbers", repr(dtype[:40]))
    if len(shape) > 32 or any(n < 0 for n in shape):
        raise FieldError(name, "sizes of at most 32 dimensions", f"{list(shape[:8])}")
    size = math.prod(shape) * claimed.itemsize
    if size > len(data):
        raise FieldError(name, f"{size} bytes for shape {shape[:8]}", f"{len(data)} bytes")
    if form != FORM:
        raise FieldError(name, _WANTED, f"the form {form[:40]!r}")
    header, start = _header(name, data)
    match = _HEADER.fullmatch(header)
    if match is None:
        raise FieldError(name, _WANTED, f"the header {header[:80]!r}")
    try:
        found = np.dtype(match[1].decode())
    except TypeError:
        raise FieldError(name, _WANTED, f"the dtype {match[1]!r}") from None
    sizes = tuple(int(n) for n in match[3].split(b",") if n.strip())
    if found != claimed or sizes != shape or len(data) - start != size:
        got = f"a header that says {found}{list(sizes[:8])}, and {len(data) - start} bytes"
        raise FieldError(name, f"{claimed}{list(shape[:8])} in {size} bytes", got)
    flat = np.frombuffer(data, found, offset=start) if size else np.empty(0, found)
    flat.flags.writeable = False
    return flat.reshape(sizes, order="F" if match[2] == b"True" else "C")


def _header(name: str, data: bytes) -> tuple[bytes, int]:
    """Return the header and where the numbers begin."""
    if data[:6] != _MAGIC or data[6:8] not in (b"\x01\x00", b"\x02\x00"):
        raise FieldError(name, _WANTED, f"bytes that begin with {data[:8]!r}")
    wide = 2 if data[6] == 1 else 4
    length = int.from_bytes(data[8 : 8 + wide], "little")
    start = 8 + wide + length
    if length > LONGEST_HEADER or start > len(data):
        raise FieldError(name, _WANTED, f"a header of {length} bytes among {len(data)}")
    return bytes(data[8 + wide : start]), start

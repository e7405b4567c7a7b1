"""Arrays from somebody who lies: refused by name, whatever they claim, without taking memory for it."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest

from task.errors import FieldError
from task.wire import npy


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def with_header(text: str, data: bytes = b"\0" * 64, version: bytes = b"\x01\x00") -> bytes:
    length = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + text.encode() + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }\n"
HEADERS = {
    "30 GB": GOOD.replace("(4, 4)", "(8000000000,)"),
    "a shape beyond int64": GOOD.replace("(4, 4)", f"({10**18}, {10**18})"),
    "negative": GOOD.replace("(4, 4)", "(-4, -4)"),
    "a float for a size": GOOD.replace("(4, 4)", "(4.0, 4)"),
    "true for a size": GOOD.replace("(4, 4)", "(True, 16)"),
    "another dtype": GOOD.replace("<f4", "<i4"),
    "another byte order": GOOD.replace("<f4", ">f4"),
    "python objects": GOOD.replace("<f4", "|O"),
    "a sub-array": GOOD.replace("'<f4'", "'(1000000000,)f4'"),
    "a record": GOOD.replace("'<f4'", "[('a', '<f4')]"),
    "a comma": GOOD.replace("<f4", "f4,"),
    "a bracket": GOOD.replace("<f4", "(1,f4"),
    "no such size": GOOD.replace("<f4", "<f3"),
    "text": GOOD.replace("<f4", "<U4"),
    "nested": "(" * 2000 + ")" * 1900,
    "nested minus": "-" * 4000 + "1",
    "nested lists": "[" * 90 + "]" * 90,
    "digits": GOOD.replace("(4, 4)", "(" + "4" * 3000 + ",)"),
    "commas": GOOD.replace("(4, 4)", "(" + "1, " * 1000 + ")"),
    "open quote": "{'descr': '<f4",
    "nothing": "",
    "twice": GOOD + GOOD,
    "a call": "__import__('os').getcwd()",
}
BYTES = {
    **{k: with_header(h) for k, h in HEADERS.items()},
    "nothing at all": b"",
    "magic alone": b"\x93NUMPY",
    "a header that does not fit": b"\x93NUMPY\x01\x00\xff\xff" + GOOD.encode(),
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + GOOD.encode(),
    "a version of its own": with_header(GOOD, version=b"\x03\x00"),
    "cut": saved(np.zeros((4, 4), np.float32))[:-1],
    "one more": saved(np.zeros((4, 4), np.float32)) + b"\0",
    "pickled objects": saved(np.array([{"a": 1}], dtype=object)),
    "a zip": b"PK\x03\x04" + b"\0" * 200,
    "a pickle": b"\x80\x04\x95" + b"\0" * 200,
}


def peak_of(
    data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (4, 4), form: str = npy.FORM
) -> int:
    """Return the most memory that reading takes, which must refuse the array and name it."""
    tracemalloc.start()
    try:
        with pytest.raises(FieldError) as error:
            npy.view("layer", form, dtype, shape, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.field == "layer"
    assert len(str(error.value)) < 500
    return peak


@pytest.mark.parametrize("kind", sorted(BYTES))
def test_bytes_that_lie_are_refused_and_take_no_memory(kind: str) -> None:
    assert peak_of(BYTES[kind]) < 200_000


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (8_000_000_000,)), ("float32", (2**40, 2**40)), ("float32", (-4, -4)), ("float32", (16,)),
        ("float64", (4, 4)), ("object", (4, 4)), ("(9,)f4", (4, 4)), ("f4,", (4, 4)),
        ("float33" * 10**4, (4, 4)),
        ("float32", (1,) * 40), ("float32", ()), ("float32", (0,)),
    ],
)  # fmt: skip
def test_what_is_told_beside_the_bytes_must_agree_with_them(dtype: str, shape: tuple[int, ...]) -> None:
    assert peak_of(saved(np.zeros((4, 4), np.float32)), dtype, shape) < 200_000


@pytest.mark.parametrize("form", ["", "pickle", "torch.save", "numpy.ndarray\n"])
def test_other_forms_are_refused(form: str) -> None:
    peak_of(saved(np.zeros((4, 4), np.float32)), form=form)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.zeros((0, 5), np.int64),
        np.array(True),
        np.arange(3, dtype=np.complex64),
        np.zeros((1,) * 32, np.uint8),
        np.array([], np.float16),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_what_numpy_writes_is_read_in_place(array: np.ndarray) -> None:
    data = saved(array)
    got = npy.view("a", npy.FORM, str(array.dtype), array.shape, data)
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    assert np.array_equal(got, array)
    assert not got.flags.writeable
    assert not got.size or np.shares_memory(got, np.frombuffer(data, np.uint8))


def test_a_large_array_is_not_copied() -> None:
    data = saved(np.zeros(10**6, np.float32))
    tracemalloc.start()
    npy.view("a", npy.FORM, "float32", (10**6,), data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_random_damage_to_a_header_is_refused_or_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    data = saved(whole)
    refused = 0
    for _ in range(3000):
        broken = bytearray(data)
        for at in rng.integers(0, 128, size=int(rng.integers(1, 4))):
            broken[at] = int(rng.integers(0, 256))
        try:
            got = npy.view("a", npy.FORM, "float32", (4, 4), bytes(broken))
        except FieldError:
            refused += 1
        else:
            assert sorted(got.reshape(-1).tolist()) == whole.reshape(-1).tolist()
    assert refused > 2000

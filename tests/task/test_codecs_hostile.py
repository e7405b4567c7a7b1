"""Codes from anybody: a field error or finite arrays, in bounded time and memory."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from task.codecs import codec_of, rice
from task.codecs.codec import HEADER, Reader
from task.errors import FieldError
from task.numerics.held import Base, Held, dense

KINDS = [
    ("fp16", 0),
    ("int8", 0),
    ("eden", 1),
    ("eden", 4),
    ("top-k", 0),
    ("stc", 0),
    ("rand-k", 0),
    ("rand-k", 2),
]
MUTATIONS = 60_000
RARE = [0x7FC00000, 0xFF800000, 0x7F800000, 0xFFFFFFFF, 0x80000000, 0, 1, 0x7F7FFFFF, 0x7FFFFFFF]
BASE = {"a": np.full((3, 11), 1.5, np.float32), "b": np.zeros(4, np.float32), "c": np.array(-2, np.float32)}


def update(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {n: rng.standard_normal(a.shape).astype(np.float32) for n, a in BASE.items()}


def mutated(code: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(code)
    for _ in range(rng.integers(1, 4)):
        kind, at = rng.integers(6), int(rng.integers(len(data))) if data else 0
        if kind == 0 and data:
            data[at] ^= 1 << rng.integers(8)
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 9))]
        elif kind == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 3 and len(data) >= 8:  # fields change places
            other = int(rng.integers(len(data) - 4))
            at = min(at, len(data) - 4)
            data[at : at + 4], data[other : other + 4] = data[other : other + 4], data[at : at + 4]
        elif kind == 4:  # a number that is none, too large, negative
            at -= at % 4
            data[at : at + 4] = struct.pack("<I", RARE[rng.integers(len(RARE))])
        elif data:
            data[at] = int(rng.integers(256))
    return bytes(data)


@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_a_mutated_code_gives_a_field_error_or_finite_arrays(name: str, bits: int) -> None:
    rng = np.random.default_rng(1)
    codec = codec_of(name, 0.3, bits, 64)
    bases = {n: Base(a) for n, a in BASE.items()}
    x = update(rng)
    good, _ = codec.encode(x, x, 5)
    taken, refused, fields = 0, 0, set[str]()
    for _ in range(MUTATIONS // len(KINDS)):
        try:
            new = codec.decode(mutated(good, rng), bases, "arrays")
        except FieldError as err:
            fields.add(err.field)
            refused += 1
            continue
        taken += 1
        for n, a in new.items():
            values = a.values if isinstance(a, Held) else a
            assert (a.shape, a.dtype) == (BASE[n].shape, np.float32)
            assert np.isfinite(values).all()
            if isinstance(a, Held):
                assert np.all(np.diff(a.index) > 0)
                assert not a.size or not a.index.size or 0 <= a.index[0] <= a.index[-1] < a.size
    assert refused > 600
    assert fields <= {"arrays", *(f"arrays/{n}" for n in BASE)}
    assert taken > 60
    assert BASE["a"][0, 0] == 1.5


def head(number: int, bits: int, tensors: int = 1, seed: int = 0) -> bytes:
    return HEADER.pack(0xBC, 1, number, bits, tensors, seed)


def u4(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def f4(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


STC, TOPK = 5, 4


@pytest.mark.parametrize(
    ("name", "code", "match"),
    [
        ("stc", b"", "16 bytes of header"),
        ("stc", head(STC, 0)[:15], "16 bytes of header"),
        ("stc", head(STC, 0, seed=1) + u4(0) + f4(0), "seed 0"),
        ("stc", head(STC, 0, tensors=2), "1 tensors"),
        ("stc", head(STC, 0) + u4(9) + f4(1) + b"\xff\xff\xff\x80", "at most 5 of 10 entries; got 9"),
        ("stc", head(STC, 0) + u4(2**32 - 1) + f4(1), "at most 5 of 10 entries"),
        ("stc", head(STC, 0) + u4(1) + f4(0) + b"\x00\x80", "above 0"),
        ("stc", head(STC, 0) + u4(1) + f4(-1) + b"\x00\x80", "above 0"),
        ("stc", head(STC, 0) + u4(1) + f4(float("nan")) + b"\x00\x80", "above 0"),
        ("stc", head(STC, 0) + u4(1) + f4(float("inf")) + b"\x00\x80", "above 0"),
        ("stc", head(STC, 0) + u4(0) + f4(1), "above 0"),
        ("stc", head(STC, 0) + u4(1) + f4(3e38) + b"\x00\x80", "finite"),  # base + mu overflows
        ("stc", head(STC, 0) + u4(1) + f4(1) + b"\x40\x80", "zeros after the 1 bits"),
        ("stc", head(STC, 0) + u4(1) + f4(1) + b"\x00\x80\x00", "in its last byte"),
        ("stc", head(STC, 0) + u4(1) + f4(1) + b"\x00\xc0", "1 ones in the unary plane"),
        ("stc", head(STC, 0) + u4(1) + f4(1) + b"\x00\x00", "1 ones in the unary plane"),
        ("stc", head(STC, 0) + u4(1) + f4(1) + b"\x00\x00\x20", "positions below 10"),  # 0000 0000 001
        ("stc", head(STC, 4) + u4(1) + f4(1) + b"\xf0\x80", "positions below 10; got 15"),
        ("stc", head(STC, 32) + u4(1) + f4(1) + b"\x80", "from 0 to 31"),
        ("stc", head(STC, 1) + u4(0) + f4(0), "from 0 to 0"),
        ("stc", head(STC, 0) + u4(1) + f4(1) + bytes(400) + b"\x80", "at most"),
        ("top-k", head(TOPK, 0) + u4(1) + f4(float("nan")) + b"\x80", "finite"),
        ("top-k", head(TOPK, 0) + u4(3) + f4(1), "12 bytes of values"),
        ("fp16", head(1, 16) + f4(float("nan")) + bytes(20), "finite"),
        ("fp16", head(1, 16) + f4(3e38) + b"\xff\x7b" * 10, "finite"),
        ("fp16", head(1, 16) + f4(1) + bytes(18), "20 bytes of entries"),
        ("fp16", head(1, 8) + f4(1) + bytes(20), "16 bits"),
        ("int8", head(2, 8) + b"\x80\x3f" + b"\x80" + bytes(9), "-127 to 127"),
        ("int8", head(2, 8) + b"\x80\xbf" + bytes(10), "steps"),
        ("int8", head(2, 8) + b"\x80\x7f" + bytes(10), "steps"),
        ("int8", head(2, 8) + b"\x80\x3f" + bytes(9), "28 bytes"),
        ("eden", head(3, 2) + f4(float("inf")) + bytes(16), "scales"),
        ("eden", head(3, 2) + f4(-1) + bytes(16), "scales"),
        ("eden", head(3, 2) + f4(3e38) + bytes(16), "finite"),
        ("eden", head(3, 1) + f4(1) + bytes(16), "2 bits"),
    ],
)
def test_each_claim_is_checked(name: str, code: bytes, match: str) -> None:
    base = {"w": np.full(10, 3e38 if "3e38" in match else 1e38, np.float32)}
    if match == "finite":
        base["w"][:] = 3e38
    with pytest.raises(FieldError, match=match):
        codec_of(name, 0.5, 0, 64).decode(code, base, "arrays")


@pytest.mark.parametrize("name", ["rand-k", "eden", "mask", "low-rank"])
def test_a_code_is_drawn_from_the_seed_that_is_expected_of_it(name: str) -> None:
    codec, base = codec_of(name, 0.5, 0, 64), {"w": np.zeros((10, 8), np.float32)}
    x = {"w": np.random.default_rng(3).standard_normal((10, 8)).astype(np.float32)}
    code, _ = codec.encode(x, x, 7)
    decoded = [dense(codec.decode(code, base, "arrays", seed)["w"]) for seed in (None, 7)]
    np.testing.assert_array_equal(*decoded)
    for seed in (0, 8):
        with pytest.raises(FieldError, match=rf"seed {seed}, .*round and client.*got 7"):
            codec.decode(code, base, "arrays", seed)


def test_a_parameter_that_would_overflow_is_refused_before_it_is_used() -> None:
    planes = np.packbits([0] * 64 + [0] * 5_000 + [1, 1]).tobytes()
    with pytest.raises(FieldError, match="positions below 10"):
        rice.decode(Reader(planes, "arrays"), 2, True, 31, 10)


def test_positions_belong_to_the_tensors_that_claim_them() -> None:
    base = {"a": np.zeros(10, np.float32), "b": np.zeros(10, np.float32)}
    codec = codec_of("stc", 0.2, 0, 64)
    x = {"a": np.arange(10, dtype=np.float32), "b": np.arange(10, dtype=np.float32)}
    code = codec.encode(x, x, 0)[0]
    table = struct.unpack_from("<2I2f", code, 16)
    assert table[:2] == (2, 2)
    for counts in ((1, 2), (2, 1), (1, 1), (2, 3)):
        with pytest.raises(FieldError, match="arrays"):
            codec.decode(code[:16] + struct.pack("<2I", *counts) + code[24:], base, "arrays")
    # Two at places 8 and 9 of each; both of the first tensor's cannot be those of the second.
    early = codec.encode({"a": x["a"], "b": x["b"] * 0}, x, 0)[0]
    moved = early[:16] + struct.pack("<2I2f", 0, 2, 0, 8.5) + early[32:]
    with pytest.raises(FieldError, match="positions by tensor"):
        codec.decode(moved, base, "arrays")


@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_memory_is_bounded_before_anything_is_unpacked(name: str, bits: int) -> None:
    """A long code is refused by its length; one of the right length takes a few times the dense arrays."""
    size = 200_000
    base = {"w": np.zeros(size, np.float32)}
    codec = codec_of(name, 0.5, bits, 4096)
    x = {"w": np.random.default_rng(2).standard_normal(size).astype(np.float32)}
    good, _ = codec.encode(x, x, 0)
    head_of = good[: HEADER.size]
    for code, most in (
        (head_of + bytes(50_000_000), 100_000),
        (head_of + b"\xff" * (codec.most_bytes([(size,)]) - HEADER.size), 20 * size),
        (good, 40 * size),
    ):
        tracemalloc.start()
        try:
            assert dense(codec.decode(code, base, "w")["w"]).shape == (size,)
        except FieldError:
            assert code is not good
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= most

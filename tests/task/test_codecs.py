"""Codecs against the papers' arithmetic, by hand and by the slow reference; sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from task.codecs import CODECS, codec_of, rice
from task.codecs.codec import HEADER, Codec, Reader
from task.errors import ConfigError, FieldError
from task.numerics.held import Base, Held, dense
from tests.reference import codecs as reference

Arrays = dict[str, np.ndarray]
ALL = [
    ("fp16", 0),
    ("int8", 0),
    ("eden", 1),
    ("eden", 2),
    ("eden", 3),
    ("eden", 4),
    ("top-k", 0),
    ("stc", 0),
    ("rand-k", 0),
    ("rand-k", 1),
    ("rand-k", 3),
    ("rand-k", 8),
]
SPARSE = [("top-k", 0), ("stc", 0), ("rand-k", 0)]
DENSITIES = [1 / 25, 1 / 50, 1 / 100, 1 / 200, 1 / 400, 1 / 1000]


def case(seed: int, scale: float = 0.01) -> tuple[Arrays, Arrays, Arrays]:
    """Return base, update and base + update."""
    rng = np.random.default_rng(seed)
    base = {
        "w": rng.standard_normal((40, 21), np.float32),
        "b": np.zeros(7, np.float32),
        "scalar": np.array(1.5, np.float32),
        "none": np.zeros((0, 3), np.float32),
        "v": rng.standard_normal(300, np.float32),
    }
    x = {n: (rng.standard_normal(a.shape) * scale).astype(np.float32) for n, a in base.items()}
    return base, x, {n: base[n] + x[n] for n in base}


def decoded(codec: Codec, code: bytes, base: Arrays) -> Arrays:
    return {name: dense(a) for name, a in codec.decode(code, base, "arrays").items()}


def zeros(x: Arrays) -> Arrays:
    return {name: np.zeros_like(a) for name, a in x.items()}


def vector(*values: float) -> Arrays:
    return {"w": np.array(values, np.float32)}


# -- by hand ---------------------------------------------------------------------------------------------


def test_stc_sends_the_mean_magnitude_of_the_largest() -> None:
    # k = ceil(0.5 * 5) = 3: |-4|, |3|, |2|; mu = 3
    x = vector(1, -4, 2, 0.5, 3)
    code, left = codec_of("stc", 0.5, 0, 64).encode(x, x, 0)
    assert decoded(codec_of("stc", 0.5, 0, 64), code, zeros(x))["w"].tolist() == [0, -3, 3, 0, 3]
    assert dense(left["w"]).tolist() == [1, -1, -1, 0.5, 0]
    base = vector(10, 10, 10, 10, 10)
    assert decoded(codec_of("stc", 0.5, 0, 64), code, base)["w"].tolist() == [10, 7, 13, 10, 13]


def test_the_bytes_of_a_small_stc_code() -> None:
    """Places 1, 2, 4 of 5: p = 0.6, b = 0; gaps 2, 1, 2: unary 01 1 01; flags 1 0 0; mu = 3 = 0x40400000."""
    x = vector(1, -4, 2, 0.5, 3)
    code, _ = codec_of("stc", 0.5, 0, 64).encode(x, x, 77)
    header = bytes([0xBC, 1, 5, 0]) + (1).to_bytes(4, "little") + bytes(8)
    assert code == header + b"\x03\0\0\0" + b"\0\0\x40\x40" + bytes([0b10000000]) + bytes([0b01101000])


def test_topk_sends_values_not_changes() -> None:
    base, x = vector(100, 200, 300), vector(0.001, -5, 3)
    codec = codec_of("top-k", 0.34, 0, 64)  # ceil(1.02) = 2
    code, left = codec.encode(x, vector(100.001, 195, 303.5), 0)
    assert decoded(codec, code, base)["w"].tolist() == [100, 195, 303.5]
    assert dense(left["w"]).tolist() == [np.float32(0.001), 0, 0]
    assert len(code) == 16 + 4 + 8 + 1  # header, k, two values; b = 0, so that 0 1 1 is all


def test_of_equal_magnitudes_the_first_are_kept_and_zeros_never() -> None:
    x = vector(1, -1, 2, 1, -1, 0, -0.0)
    for keep, places in ((2 / 7, [0, 2]), (3 / 7, [0, 1, 2]), (4 / 7, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3, 4])):
        codec = codec_of("top-k", keep, 0, 64)
        held = codec.decode(codec.encode(x, x, 0)[0], zeros(x), "w")["w"]
        assert isinstance(held, Held)
        assert held.index.tolist() == places


def test_int8_by_hand() -> None:
    """The step of 254 and less is 2: those that are multiples of it are exact."""
    x = vector(254, -254, 2, 0, -100)
    code, _ = codec_of("int8", 1, 0, 64).encode(x, x, 3)
    assert code[16:] == b"\x00\x40" + np.array([127, -127, 1, 0, -50], np.int8).tobytes()


def test_a_step_of_int8_never_clips() -> None:
    rng = np.random.default_rng(5)
    for scale in (1e-44, 1e-38, 1.0, 3.3e38):
        x = {"w": (rng.uniform(-1, 1, 5000) * scale).astype(np.float32)}
        codec = codec_of("int8", 1, 0, 64)
        new = decoded(codec, codec.encode(x, x, 1)[0], zeros(x))["w"]
        step = np.float32(np.abs(x["w"]).max()) / 127 * 1.01 + 1e-40
        assert np.abs(new.astype(float) - x["w"]).max() <= step


@pytest.mark.parametrize("largest", [1e-45, 1e-30, 1e-6, 1.0, 3.4e38])
def test_fp16_neither_overflows_nor_vanishes(largest: float) -> None:
    x = vector(largest, -largest / 3, largest / 1000)
    codec = codec_of("fp16", 1, 0, 64)
    new = decoded(codec, codec.encode(x, x, 1)[0], zeros(x))["w"]
    assert np.abs(new - x["w"]).max() <= 2.0**-11 * largest
    assert new[0] != 0


@pytest.mark.parametrize(("name", "bits"), ALL)
def test_an_update_of_zero_changes_nothing(name: str, bits: int) -> None:
    base, x, _ = case(1)
    codec = codec_of(name, 0.1, bits, 64)
    code, left = codec.encode(zeros(x), base, 9)
    new = decoded(codec, code, base)
    assert all(np.array_equal(new[n], base[n]) for n in base)
    assert not any(dense(a).any() for a in left.values())


# -- the reference ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bits"), ALL)
@pytest.mark.parametrize("keep", [0.03, 0.4, 1.0])
@pytest.mark.parametrize("block", [64, 256])
def test_a_code_means_what_the_reference_reads(name: str, bits: int, keep: float, block: int) -> None:
    codec = codec_of(name, keep, bits, block)
    assert codec.name == name
    check(codec, keep, bits, block)


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("keep", [0.03, 1.0])
def test_a_code_without_rotation_means_what_the_reference_reads(bits: int, keep: float) -> None:
    check(codec_of("rand-k", keep, bits, 64, rotate=False), keep, bits, 64)


def check(codec: Codec, keep: float, bits: int, block: int) -> None:
    """Compare an update's code with the slow reference."""
    base, x, values = case(2)
    name = codec.name
    assert codec.sparse == ((name, bits) in SPARSE)
    assert codec.biased == (name in ("top-k", "stc"))
    code, rest = codec.encode(x, values, 123456789012345678)
    left = {n: dense(a) for n, a in rest.items()}
    assert len(code) <= codec.most_bytes([a.shape for a in base.values()])
    new = codec.decode(memoryview(code), base, "arrays")
    want = reference.decode(name, code, {n: a.ravel() for n, a in base.items()}, keep, bits, block)
    for n, a in new.items():
        assert isinstance(a, Held) == codec.sparse
        assert (a.shape, a.dtype) == (base[n].shape, np.float32)
        assert np.allclose(dense(a).ravel(), want[n], rtol=2e-7, atol=2e-7)
        # Of a biased codec what is left out and what is decoded make the update; others leave nothing to owe.
        if not codec.biased:
            assert not left
        elif isinstance(a, Held):
            same = rest[n].decoded(Base(base[n]))  # without reading the code
            assert (same.index.tobytes(), same.values.tobytes()) == (a.index.tobytes(), a.values.tobytes())
            assert np.allclose(left[n] + (dense(a) - base[n]), x[n], atol=5e-7)
            others = np.delete(np.arange(a.size), a.index)
            assert np.array_equal(left[n].ravel()[others], x[n].ravel()[others])
            assert name != "top-k" or not left[n].ravel()[a.index].any()


@pytest.mark.parametrize("keep", [0.01, 0.1, 0.5, 1.0])
def test_stc_is_the_papers_but_for_ties(keep: float) -> None:
    rng = np.random.default_rng(3)
    x = {"a": rng.standard_normal(700).astype(np.float32), "b": rng.integers(-2, 3, 90).astype(np.float32)}
    codec = codec_of("stc", keep, 0, 64)
    code, left = codec.encode(x, x, 0)
    new, want = decoded(codec, code, zeros(x)), reference.stc(x, keep)
    for n in x:
        assert np.array_equal(new[n], want[n])
        assert np.array_equal(dense(left[n]), x[n] - want[n].astype(np.float32))  # A + c = A_old + update


@pytest.mark.parametrize("seed", range(25))
def test_the_choice_is_that_of_a_full_sort(seed: int) -> None:
    """Also where a sample gives the threshold: many zeros, few values, one large block at the end."""
    rng = np.random.default_rng(seed)
    n = 70_000
    x = rng.standard_normal(n).astype(np.float32)
    at = np.arange(n)
    end, stride = np.where(at > n - 900, x * 100, 0), np.where(at % 8 == 0, x * 100, x)
    x = (x, np.round(x * 2), x * (rng.random(n) < 0.01), end, stride)[seed % 5]
    keep = (0.0001, 0.01, 0.12, 0.3, 1.0)[seed // 5]
    codec = codec_of("top-k", keep, 0, 64)
    held = codec.decode(codec.encode({"w": x}, {"w": x}, 0)[0], {"w": np.zeros(n, np.float32)}, "w")["w"]
    assert isinstance(held, Held)
    k = math.ceil(keep * n)
    order = np.lexsort((np.arange(n), -np.abs(x)))[:k]
    assert np.array_equal(held.index, np.sort(order[x[order] != 0]))


def test_topk_of_all_gives_the_arrays_bit_for_bit_and_stc_does_not() -> None:
    base, x, values = case(4)
    x["w"][0, :5] = 0
    values["w"][0, :5] = base["w"][0, :5]
    for name, same in (("top-k", True), ("stc", False)):
        codec = codec_of(name, 1.0, 0, 64)
        new = decoded(codec, codec.encode(x, values, 0)[0], base)
        assert (new["w"].tobytes() == values["w"].tobytes()) is same


# -- positions -------------------------------------------------------------------------------------------


def positions(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False))


@pytest.mark.parametrize("flagged", [False, True])
@pytest.mark.parametrize(("n", "k"), [(n, k) for n in (1, 2, 7, 100_000) for k in {0, 1, n // 100, n}])
def test_positions_come_back_in_the_bits_of_the_formula(n: int, k: int, flagged: bool) -> None:
    index, rng = positions(n, k), np.random.default_rng(1)
    flags = rng.random(k) < 0.5 if flagged else None
    b = rice.parameter(k, n)
    code = rice.encode(index, flags, b)
    found, signs = rice.decode(Reader(code, "w"), k, flagged, b, n)
    assert np.array_equal(found, index)
    assert flags is None or np.array_equal(signs, flags)
    gaps = np.diff(index, prepend=-1).tolist()
    unary = sum((g - 1 >> b) + 1 for g in gaps)  # exact bits of a gap: floor((g - 1) / 2^b) + 1 + b
    assert len(code) == -(-unary // 8) + -(-k * (b + flagged) // 8)
    assert 8 * len(code) - 14 <= rice.most_bits(k, n) + k * flagged
    if n < 10_000 or k <= 1000:
        assert code == reference.planes(index.tolist(), None if flags is None else flags.tolist(), b)


@pytest.mark.parametrize("p", DENSITIES)
def test_positions_take_at_most_a_percent_more_than_their_entropy(p: float) -> None:
    n = 2_000_000
    k = round(p * n)
    b = rice.parameter(k, n)
    assert b == reference.best(p)
    size = 8 * len(rice.encode(positions(n, k), np.zeros(k, bool), b))
    entropy = n * (-p * math.log2(p) - (1 - p) * math.log2(1 - p)) + k
    assert entropy * 0.999 < size <= 1.01 * entropy
    best = min(8 * len(rice.encode(positions(n, k), np.zeros(k, bool), c)) for c in (max(b - 1, 0), b + 1))
    assert size <= best * 1.0005


def test_no_code_is_longer_than_the_bound() -> None:
    rng = np.random.default_rng(7)
    for n in (1, 2, 3, 10, 100, 5000):
        for keep in (0.001, 0.01, 0.05, 0.3, 0.62, 0.9, 1.0):
            for name in ("top-k", "stc"):
                codec = codec_of(name, keep, 0, 64)
                for density in (0.0, 0.001, 0.1, 1.0):
                    x = {"w": (rng.standard_normal(n) * (rng.random(n) < density)).astype(np.float32)}
                    if density == 0.001:
                        x["w"][-1] = 1  # the last place alone: one long gap
                    assert len(codec.encode(x, x, 0)[0]) <= codec.most_bytes([(n,)])


# -- sizes -----------------------------------------------------------------------------------------------

MLP = [(200, 784), (200,), (200, 200), (200,), (10, 200), (10,)]  # 199,210
CNN = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 3136), (512,), (10, 512), (10,)]  # 1,663,370


@pytest.mark.parametrize(
    ("name", "keep", "bits", "small", "large"),
    [
        ("fp16", 1, 0, 398_420, 3_326_740),
        ("int8", 1, 0, 200_768, 1_676_366),
        ("eden", 1, 2, 50_372, 418_396),
        ("eden", 1, 1, 25_284, 210_012),
        ("top-k", 0.01, 0, 9_987, 83_393),
        ("rand-k", 0.01, 0, 7_968, 66_532),
        ("stc", 1 / 25, 0, 7_057, 58_926),
        ("stc", 1 / 100, 0, 2_268, 18_937),
        ("stc", 1 / 400, 0, 692, 5_777),
    ],
)
def test_sizes_are_those_of_the_formulas(name: str, keep: float, bits: int, small: int, large: int) -> None:
    rng = np.random.default_rng(8)
    for shapes, size in ((MLP, small), (CNN, large)):
        x = {str(i): rng.standard_normal(shape, np.float32) for i, shape in enumerate(shapes)}
        codec = codec_of(name, keep, bits, 4096)
        code, _ = codec.encode(x, x, 0)
        assert len(code) <= 1.02 * size + 200
        assert len(code) >= 0.98 * size
        assert len(code) <= codec.most_bytes([a.shape for a in x.values()])
        most = codec.most_bytes([a.shape for a in x.values()])
        assert most <= 1.4 * len(code) + 200


# -- knobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "knobs", "key"),
    [
        ("stc", (0.0, 0, 64), "codec.keep"),
        ("stc", (1.5, 0, 64), "codec.keep"),
        ("eden", (1.0, 5, 64), "codec.bits"),
        ("rand-k", (1.0, 9, 64), "codec.bits"),
        ("eden", (1.0, 1, 100), "codec.block"),
        ("eden", (1.0, 1, 32), "codec.block"),
    ],
)
def test_a_knob_out_of_range_is_refused(name: str, knobs: tuple[Any, ...], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        codec_of(name, *knobs)


def test_every_codec_is_in_the_table_and_refuses_the_codes_of_others() -> None:
    base, x, values = case(6)
    assert sorted(CODECS) == sorted({name for name, _ in ALL})
    codecs = [codec_of(name, 0.1, bits, 64) for name, bits in ALL]
    for codec in codecs:
        code, _ = codec.encode(x, values, 1)
        for other in codecs:
            if (other.name, other.bits) != (codec.name, codec.bits):
                with pytest.raises(FieldError, match="field 'arrays'"):
                    other.decode(code, base, "arrays")
    header = HEADER.unpack(code[: HEADER.size])
    assert header[0] == 0xBC

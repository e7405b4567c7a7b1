"""Codes of structured updates and of signs: what they stand for, their lengths, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from client_app.solvers.sgd import Solver
from client_app.training.loop import train
from task.codecs import codec_of
from task.codecs.codec import HEADER, Codec
from task.codecs.structured import factor, positions
from task.config.knobs import Config
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held, dense
from tests.client_app.test_restriction import KEEP, SEED, task_of

KINDS = ["mask", "low-rank", "sign"]
SHAPES = {"conv": (6, 3, 5, 5), "bias": (6,), "dense": (4, 20), "thin": (5, 1), "one": ()}


def arrays(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def codec(name: str, keep: float = KEEP) -> Codec:
    return codec_of(name, keep, 0, 4096)


def coded(name: str, keep: float = KEEP) -> tuple[Arrays, Arrays, bytes]:
    base, x = arrays(1), arrays(2)
    code, _ = codec(name, keep).encode(x, {n: base[n] + a for n, a in x.items()}, SEED)
    return base, x, code


def read(name: str, code: bytes, base: Arrays, keep: float = KEEP) -> Arrays:
    return {n: dense(a) for n, a in codec(name, keep).decode(code, base, "arrays").items()}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("keep", [0.01, KEEP, 0.6, 1.0])
def test_what_is_decoded_has_the_form_of_the_model(name: str, keep: float) -> None:
    base, x, code = coded(name, keep)
    got = read(name, code, base, keep)
    assert {n: (a.shape, a.dtype) for n, a in got.items()} == {n: (a.shape, np.float32) for n, a in x.items()}


def test_of_a_mask_the_values_are_sent_and_nothing_else_changes() -> None:
    base, x, code = coded("mask")
    got = codec("mask").decode(code, base, "arrays")
    for n, a in x.items():
        at, here = positions(SEED, n, a.shape, KEEP), got[n]
        assert isinstance(here, Held)
        assert np.array_equal(here.index, at)
        assert np.array_equal(here.values, (base[n] + a).reshape(-1)[at])  # to the bit


@pytest.mark.parametrize("name", ["mask", "low-rank"])
def test_at_keep_1_the_arrays_travel_bit_for_bit(name: str) -> None:
    base, x, code = coded(name, keep=1.0)
    got = read(name, code, base, keep=1.0)
    assert all(np.array_equal(got[n], base[n] + a) for n, a in x.items())
    assert len(code) == HEADER.size + 4 * sum(a.size for a in x.values())


def test_lengths_by_hand() -> None:
    # conv: 450 numbers, d1 = 75; dense: 80, d1 = 20; thin: 5, d1 = 1; bias 6; one 1
    shapes = list(SHAPES.values())
    mask = 112 + 20 + 1 + 6 + 1  # round(112.5) = 112; round(1.25) = 1
    low_rank = 19 * 6 + 5 * 4 + 5 + 6 + 1  # round(18.75) = 19 rows; a matrix of one column is whole
    want = {"mask": 16 + 4 * mask, "low-rank": 16 + 4 * low_rank, "sign": 16 + 68}  # 542 bits
    for name, length in want.items():
        assert len(coded(name)[2]) == codec(name).most_bytes(shapes) == length


@pytest.mark.parametrize("name", ["mask", "low-rank"])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_the_code_of_restricted_training_leaves_nothing_out(name: str, model: str) -> None:
    """Another seed, another layout of a convolution, a mask of the result: each of them would."""
    task = task_of(model, 1, [10], name)
    train(task, Solver(Config(), {}, {}, [{}]))
    (trained,) = task.states()
    x = {n: a - task.received[n] for n, a in trained.items()}
    code, _ = codec(name).encode(x, trained, SEED)
    got = read(name, code, task.received)
    for n, a in trained.items():
        if name == "mask":
            assert np.array_equal(got[n], a)
        np.testing.assert_allclose(got[n], a, rtol=0, atol=1e-6)
    other, _ = codec(name).encode(x, trained, SEED + 1)
    assert any(
        np.abs(dense(a) - trained[n]).max() > 1e-4
        for n, a in codec(name).decode(other, task.received, "").items()
    )


def test_b_is_the_least_squares_fit() -> None:
    base, x, code = coded("low-rank")
    A = factor(SEED, "dense", (4, 20), KEEP).astype(np.float64)
    B = np.linalg.lstsq(A, x["dense"].T.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose((read("low-rank", code, base)["dense"] - base["dense"]).T, A @ B, atol=1e-6)


def test_a_factor_with_equal_columns_still_gives_the_update() -> None:
    """Of two columns of four signs each eighth pair is equal or opposite."""
    for seed in range(60):
        A = factor(seed, "w", (3, 4), 0.5).astype(np.float64)
        H = A @ np.arange(6.0).reshape(2, 3)
        x = {"w": H.T.astype(np.float32)}
        code, _ = codec("low-rank", 0.5).encode(x, x, seed)
        zero = {"w": np.zeros((3, 4), np.float32)}
        np.testing.assert_allclose(read("low-rank", code, zero, 0.5)["w"], x["w"], atol=1e-5)


def test_signs_are_one_bit_each() -> None:
    zero = {"w": np.zeros(9, np.float32)}
    votes = {"w": np.array([1, -1, 1, 1, -1, 1, 1, 1, -1], np.float32)}
    code, _ = codec("sign").encode(votes, votes, 0)
    assert code[HEADER.size :] == bytes([0b01001000, 0b10000000])
    assert np.array_equal(read("sign", code, zero)["w"], votes["w"])
    assert read("sign", codec("sign").encode(zero, zero, 0)[0], zero)["w"].tolist() == [1.0] * 9


@pytest.mark.parametrize("name", KINDS)
def test_a_mutated_code_is_refused_or_gives_finite_arrays(name: str) -> None:
    base, _, code = coded(name)
    rng, bases = np.random.default_rng(7), {n: Base(a) for n, a in base.items()}
    refused = 0
    for _ in range(3000):
        mutated = bytearray(code)
        for at in rng.integers(0, len(code), rng.integers(1, 5)):
            mutated[at] = rng.integers(0, 256)
        if rng.random() < 0.3:
            mutated = mutated[: rng.integers(0, len(code))]
        if rng.random() < 0.1:
            mutated += bytes(3)
        try:
            got = codec(name).decode(bytes(mutated), bases, "arrays")
        except FieldError:
            refused += 1
            continue
        assert all(np.isfinite(dense(a)).all() and a.shape == base[n].shape for n, a in got.items())
    assert refused > 900


@pytest.mark.parametrize("name", ["mask", "low-rank"])
def test_numbers_that_are_not_finite_are_named(name: str) -> None:
    base, _, code = coded(name)
    with pytest.raises(FieldError, match="arrays/one"):
        codec(name).decode(code[:-4] + np.float32(np.nan).tobytes(), base, "arrays")

"""Codecs that draw: without bias, with the error that their papers give, the same bytes for a seed."""

from __future__ import annotations

import numpy as np
import pytest

from task.codecs import codec_of
from task.codecs.draws import Draws
from task.codecs.flat import CENTROIDS
from task.codecs.rotation import Rotation
from task.numerics.held import dense
from tests.reference import codecs as reference

DRAWS = 2000
RANDOM = [("int8", 0), ("eden", 1), ("eden", 2), ("eden", 4), ("rand-k", 0), ("rand-k", 2), ("rand-k", 1)]


def shapes(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    return {
        "normal": normal.astype(np.float32),
        "log-normal": (np.exp(1.5 * normal) * rng.choice([-1, 1], n)).astype(np.float32),
        "sparse": (normal * (np.arange(n) % 100 == 3)).astype(np.float32),
        "two": np.where(np.arange(n) < 2, np.arange(n) + 1, 0).astype(np.float32),
    }


def estimate(name: str, bits: int, x: np.ndarray, seed: int, block: int = 4096) -> np.ndarray:
    codec = codec_of(name, 0.25, bits, block)
    code, _ = codec.encode({"w": x}, {"w": x}, seed)
    return dense(codec.decode(code, {"w": np.zeros_like(x)}, "w")["w"])


@pytest.mark.parametrize(
    ("name", "bits", "rotate"), [*((*kind, True) for kind in RANDOM), ("rand-k", 2, False)]
)
@pytest.mark.parametrize("shape", ["log-normal", "two"])
def test_the_mean_over_seeds_is_the_update(name: str, bits: int, rotate: bool, shape: str) -> None:
    x = shapes(4096, 1)[shape]
    at_once = {str(i): x for i in range(100)}  # tensors of a block each, whose draws are independent
    codec, base = codec_of(name, 0.25, bits, 4096, rotate), {n: np.zeros_like(x) for n in at_once}
    errors, squares = np.zeros(x.size), np.zeros(x.size)
    for seed in range(DRAWS // len(at_once)):
        for a in codec.decode(codec.encode(at_once, at_once, seed)[0], base, "w").values():
            error = dense(a).astype(float) - x
            errors += error
            squares += error**2
    # 1e-6: rounding to float32, and the step of uniforms
    assert np.all(np.abs(errors) / DRAWS <= 5 * np.sqrt(squares) / DRAWS + 1e-6 * np.abs(x).max())


@pytest.mark.parametrize(
    ("bits", "nmse", "within"), [(1, 0.571, 0.02), (2, 0.133, 0.01), (3, 0.0358, 0.003), (4, 0.0096, 0.001)]
)
@pytest.mark.parametrize("shape", ["normal", "log-normal", "sparse"])
def test_the_error_of_eden_is_that_of_lloyd_and_max_whatever_the_update(
    bits: int, nmse: float, within: float, shape: str
) -> None:
    x = shapes(1 << 14, 2)[shape]
    drawn = np.stack([estimate("eden", bits, x, seed) for seed in range(20)]).astype(float)
    power = float((x.astype(float) ** 2).sum())
    assert abs(((drawn - x) ** 2).sum(1).mean() / power - nmse) < within
    mean = ((drawn.mean(0) - x) ** 2).sum() / power
    assert abs(20 * mean - nmse) < 2 * within  # 1 / m


def test_rotation_lowers_the_error_of_rounding_where_entries_differ_much() -> None:
    """Levels go from the least to the largest entry, so that one large entry makes them coarse for all."""
    x, errors = shapes(4096, 3)["sparse"], {}
    for rotate in (True, False):
        codec = codec_of("rand-k", 1.0, 1, 4096, rotate)
        codes = [codec.encode({"w": x}, {"w": x}, seed)[0] for seed in range(9)]
        drawn = [dense(codec.decode(code, {"w": np.zeros_like(x)}, "w")["w"]) for code in codes]
        errors[rotate] = np.square(np.stack(drawn) - x).sum(1).mean() / np.square(x).sum()
    assert errors[True] < errors[False] / 10


def test_a_shared_seed_does_not_average_out() -> None:
    """Why each client has a seed of its own: the same error twice is no smaller."""
    x = shapes(1 << 12, 3)["normal"]
    other = -x[::-1].copy()
    same, different = (
        ((estimate("eden", 1, x, 1) + estimate("eden", 1, x, s) - 2 * x) ** 2).sum() for s in (1, 2)
    )
    assert same > 1.5 * different
    assert estimate("eden", 1, other, 1).any()


@pytest.mark.parametrize("block", [64, 128, 4096])
def test_a_rotation_keeps_lengths_and_turns_back(block: int) -> None:
    x = np.random.default_rng(4).standard_normal((37, block)).astype(np.float32)
    rotation = Rotation(Draws(5), 37, block)
    y = rotation.forth(x)
    lengths = [(a.astype(float) ** 2).sum(1) for a in (x, y)]
    assert np.allclose(lengths[0], lengths[1], rtol=1e-6)
    assert np.abs(rotation.back(y) - x).max() < 1e-5
    assert np.array_equal(Rotation(Draws(5), 37, block).forth(x), y)
    assert not np.allclose(Rotation(Draws(6), 37, block).forth(x), y, atol=0.1)


def test_a_rotation_makes_any_block_nearly_normal() -> None:
    for x in shapes(4096, 6).values():
        y = Rotation(Draws(7), 1, 4096).forth(x[None])[0] / np.sqrt(np.mean(x.astype(float) ** 2))
        assert abs(np.mean(y**4) - 3) < 0.5  # its kurtosis
        assert np.abs(y).max() < 6


@pytest.mark.parametrize(("name", "bits"), RANDOM)
def test_a_seed_gives_the_same_bytes_and_another_one_others(name: str, bits: int) -> None:
    x = {"w": shapes(5000, 8)["normal"]}
    codec = codec_of(name, 0.25, bits, 4096)
    codes = [codec.encode(x, x, seed)[0] for seed in (2**64 - 1, 2**64 - 1, 3)]
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize(("size", "count"), [(1, 0), (1, 1), (10, 3), (10, 5), (10, 9), (10, 10), (1000, 60)])
def test_places_are_those_of_the_reference_and_each_as_likely(size: int, count: int) -> None:
    hits = np.zeros(size)
    for seed in range(1000):
        places = Draws(seed).places(size, count)
        assert places.dtype == np.int64
        if seed < 20:
            assert places.tolist() == reference.places(reference._words(seed), size, count)
        hits[places] += 1
    p = count / size
    assert np.all(np.abs(hits / 1000 - p) <= 5 * np.sqrt(p * (1 - p) / 1000))


def test_centroids_are_those_of_lloyd_and_max() -> None:
    for bits, found in CENTROIDS.items():
        assert np.allclose(found, reference.lloyd_max(bits), atol=1e-4)

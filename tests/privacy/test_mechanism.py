"""Noise is Gaussian, whole and secret; what it covers is a sum of integers of bounded sensitivity."""

from __future__ import annotations

import math

import numpy as np
import pytest

from task.catalogue.algorithms import ALGORITHMS
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.privacy.bounded_integers import WIDTH, ClipBound, clipped, exponent, square
from task.privacy.noise import Stream, coins, derived

SIZE = 1_000_000
SECRET = bytes(range(32))


def noise(*purpose: str | int, size: int = SIZE, std: float = 1.5e6) -> np.ndarray:
    return Stream(derived(SECRET, *purpose)).integers(size, std)


def test_noise_has_the_moments_of_a_gaussian_and_is_whole() -> None:
    x, std = noise("a"), 1.5e6
    assert x.dtype == np.int64
    z = x / std
    assert abs(z.mean()) < 5 / math.sqrt(SIZE)
    assert z.std() == pytest.approx(1.0, rel=0.01)
    assert (z**3).mean() == pytest.approx(0.0, abs=5 * math.sqrt(15 / SIZE))
    assert (z**4).mean() == pytest.approx(3.0, rel=0.01)
    for edge, tail in ((1.0, 0.158655), (2.0, 0.0227501), (3.0, 0.0013499), (4.0, 3.167e-5)):
        spread = 5 * math.sqrt(tail / SIZE)
        assert (z > edge).mean() == pytest.approx(tail, abs=spread)
        assert (z < -edge).mean() == pytest.approx(tail, abs=spread)


def test_noise_follows_from_its_purpose_and_from_nothing_else() -> None:
    assert np.array_equal(noise("a", 1, size=1000), noise("a", 1, size=1000))
    assert not np.array_equal(noise("a", 1, size=1000), noise("a", 2, size=1000))
    first, second = noise("round", 1) / 1.5e6, noise("round", 2) / 1.5e6
    assert abs(float(first @ second) / SIZE) < 5 / math.sqrt(SIZE)
    assert abs(float(first[1:] @ first[:-1]) / SIZE) < 5 / math.sqrt(SIZE)
    # The lengths of the parts count: no two purposes are written alike.
    assert derived(SECRET, "ab", "c") != derived(SECRET, "a", "bc")
    assert derived(SECRET, 1) != derived(bytes(32), 1)


def test_the_start_of_a_longer_draw_is_not_the_point() -> None:
    """Two draws of one stream differ: records of a round do not share their noise."""
    stream = Stream(derived(SECRET, "b"))
    assert not np.array_equal(stream.integers(1000, 1e6), stream.integers(1000, 1e6))


@pytest.mark.parametrize("std", [1e-6, 0.094, 0.1, 1.0, 2.0, 3.7e4])
def test_the_grid_follows_the_noise(std: float) -> None:
    assert 2**WIDTH <= std * 2.0 ** exponent(std) < 2 ** (WIDTH + 1)


def update(rng: np.random.Generator, scale: float) -> dict[str, Arrays]:
    def arrays() -> Arrays:
        return {"w": scale * rng.standard_normal((7, 3)), "b": scale * rng.standard_normal(5)}

    return {"arrays": arrays(), "control": arrays()}


def total(cohort: list[dict[str, Arrays]]) -> dict[str, Arrays]:
    zeros = {r: {n: np.zeros(a.shape, np.int64) for n, a in x.items()} for r, x in clipped_zero().items()}
    for one in cohort:
        zeros = {r: {n: a + one[r][n] for n, a in arrays.items()} for r, arrays in zeros.items()}
    return zeros


def clipped_zero() -> dict[str, Arrays]:
    return clipped(update(np.random.default_rng(0), 0.0), 1.0, 20)[0]


def test_no_client_moves_the_sum_by_more_than_the_bound() -> None:
    """1,000 random pairs of neighbouring cohorts, as integers: no violation, and it is attained."""
    rng = np.random.default_rng(1)
    largest = 0.0
    for _ in range(1000):
        bound, z = float(10 ** rng.uniform(-3, 1)), float(10 ** rng.uniform(-1, 1))
        g = exponent(z * bound)
        cohort = [
            clipped(update(rng, float(10 ** rng.uniform(-6, 6))), bound, g)[0]
            for _ in range(int(rng.integers(0, 4)))
        ]
        one = clipped(update(rng, float(10 ** rng.uniform(-6, 6))), bound, g)[0]
        with_one, without = total([*cohort, one]), total(cohort)
        difference = {r: {n: a - without[r][n] for n, a in x.items()} for r, x in with_one.items()}
        assert square(difference) <= math.ldexp(bound, g) ** 2
        largest = max(largest, math.sqrt(square(difference)) / math.ldexp(bound, g))
    assert largest > 1 - 1e-4


def test_all_records_share_one_bound() -> None:
    changes = {"arrays": {"w": np.array([3.0])}, "control": {"w": np.array([4.0])}}
    sent, within = clipped(changes, 1.0, 20)
    assert not within
    assert [sent[r]["w"][0] / 2**20 for r in ("arrays", "control")] == pytest.approx([0.6, 0.8], abs=2e-6)


def test_a_small_update_stays_as_it_is_but_for_truncation() -> None:
    changes = {"arrays": {"w": np.array([0.25, -0.125 - 2.0**-22, 0.0])}}
    sent, within = clipped(changes, 1.0, 20)
    assert within
    assert sent["arrays"]["w"].dtype == np.int32
    assert sent["arrays"]["w"].tolist() == [2**18, -(2**17), 0]


def test_an_update_without_any_change_is_zero() -> None:
    assert square(clipped_zero()) == 0


def test_an_update_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(FieldError, match="finite norm"):
        clipped({"arrays": {"w": np.array([1e200, 1e308])} | {"v": np.full(9, 1e308)}}, 1.0, 20)


def test_each_client_has_a_coin_of_its_own() -> None:
    names = [f"client-{i}" for i in range(20_000)]
    drawn = coins(SECRET, 3, names, 0.1)
    assert len(drawn) == pytest.approx(2000, abs=5 * math.sqrt(1800))
    # Whoever else is there changes nothing.
    assert coins(SECRET, 3, names[:100], 0.1) == [n for n in drawn if n in names[:100]]
    again = coins(SECRET, 4, names, 0.1)
    assert len({*drawn} & {*again}) == pytest.approx(200, abs=5 * math.sqrt(200))
    assert coins(bytes(32), 3, names, 0.1) != drawn
    assert coins(SECRET, 3, names, 1.0) == names


def test_the_server_bounds_a_sum_by_its_clients() -> None:
    """Of a node's sum only the triangle inequality is known: m clients, m times the bound."""
    bound = ClipBound(0.5, 3)  # 4 units
    record = ALGORITHMS["fedavg"].up[0]
    for clients, units, fits in ((1, 4, True), (1, 5, False), (3, 12, True), (3, 13, False)):
        arrays = {"w": np.array([0, units], np.int64)}
        if fits:
            bound.check(record, arrays, [{}] * clients)
        else:
            with pytest.raises(FieldError, match=r"dp\.clip"):
                bound.check(record, arrays, [{}] * clients)

"""Gradients of rows as one number each: values by hand, bounds, and sums under encryption."""

from __future__ import annotations

import numpy as np
import pytest

from task.errors import FieldError
from task.vertical.gradients import Packing
from task.vertical.paillier import SecretKey


def test_a_row_by_hand() -> None:
    """N = 3 rows have 2 bits: 1 + h 2^2 + (g + 16) 2^6 with h up to 4 and g up to 16."""
    packing = Packing(rows=3, g=4, h=2)
    assert packing.numbers(np.array([-16, 0, 5]), np.array([0, 4, 3])) == [1, 1041, 1 + 12 + 21 * 64]
    assert packing.bits == 13  # 3 rows of the largest numbers: 3 + 12 * 4 + 96 * 64 < 2^13
    assert packing.sums([1 + 1041 + 1357]).tolist() == [[-11, 7, 3]]


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 1000, 2**20])
@pytest.mark.parametrize(("g", "h"), [(30, 28), (30, 29), (1, 0)])
def test_the_largest_sums_of_all_rows_run_into_no_other(rows: int, g: int, h: int) -> None:
    packing = Packing(rows, g, h)
    for sign in (-1, 1):
        for n in (0, 1, rows):
            one = packing.numbers(np.array([sign << g]), np.array([1 << h]))[0]
            assert one * rows < 1 << packing.bits
            assert packing.sums([n * one]).tolist() == [[n * sign << g, n << h, n]]


@pytest.mark.parametrize("bits", [0, 2048])
def test_grouped_sums_come_back_whole(bits: int) -> None:
    rng, rows = np.random.default_rng(3), 6
    packing, key = Packing(rows, 30, 28), SecretKey.new(bits)
    g, h = rng.integers(-(2**30), 2**30 + 1, rows), rng.integers(0, 2**28 + 1, rows)
    slots = packing.slots(bits)
    assert slots == (2046 // packing.bits)
    groups = [rng.permutation(rows)[: i % (rows + 1)].tolist() for i in range(slots + 2)]
    ciphers = [key.encrypt(m) for m in packing.numbers(g, h)]
    made = [key.public.grouped(ciphers, groups, slots, packing.bits, packs=3) for _ in range(2)]
    for found in made:
        sums = packing.sums(packing.opened(key.decrypt(found), len(groups), bits))
        assert sums.tolist() == [[int(g[i].sum()), int(h[i].sum()), len(i)] for i in groups]
    if bits:  # each sum is re-randomised, even one of no rows, so that nobody can tell which rows were added
        assert len({*made[0], *made[1]}) == 6


def test_what_is_no_sum_of_rows_is_refused() -> None:
    packing = Packing(rows=3, g=4, h=2)
    with pytest.raises(FieldError, match="up to 2\\^4 and 2\\^2"):
        packing.numbers(np.array([17]), np.array([0]))
    with pytest.raises(FieldError, match="at most 3 rows"):
        packing.numbers(np.zeros(4, np.int64), np.zeros(4, np.int64))
    with pytest.raises(FieldError, match="histograms"):
        packing.sums([1 + (5 << 2)])  # one row whose h is 5
    with pytest.raises(FieldError, match="numbers of"):
        packing.opened([1 << packing.bits * packing.slots(0)], 1, 0)
    with pytest.raises(FieldError, match="1 sums"):
        packing.opened([1 << packing.bits], 1, 0)

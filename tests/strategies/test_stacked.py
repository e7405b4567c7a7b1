"""Arithmetic over stacks: sorting, distances that do not cancel, and memory that does not grow with K."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from strategies.rules import robust_math as stacked
from strategies.rules.robust_math import (
    COLUMNS,
    by_column,
    combine,
    gram,
    mean_rows,
    middle,
    network,
    sort_clients,
    squared_distances,
)
from task.numerics.arrays import Arrays
from task.numerics.collect import Collect


def stack_of(rows: list[Arrays], spool: int) -> Arrays:
    stack = Collect(rows[0], spool)
    for k, row in enumerate(rows):
        stack.add(row, 1, f"{k:03}")
    return stack.result()


def together(rows: list[Arrays]) -> Arrays:
    """Return rows that a `Collect` would refuse for their size."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("size", range(1, 12))
def test_the_network_sorts_everything(size: int) -> None:
    """It does if it sorts all rows of zeros and ones (the 0-1 principle)."""
    for bits in itertools.product((0, 1), repeat=size):
        v = list(bits)
        for i, j in network(size):
            assert i < j
            v[i], v[j] = min(v[i], v[j]), max(v[i], v[j])
        assert v == sorted(bits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_columns_are_sorted_and_the_input_stays(dtype: type) -> None:
    block = (np.random.default_rng(0).normal(size=(50, 301)) * 100).astype(dtype)
    before = block.copy()
    assert np.array_equal(np.stack(sort_clients(block)), np.sort(block, axis=0))
    assert np.array_equal(block, before)


def test_the_middle_of_an_even_number_is_rounded_once() -> None:
    """2^24 and 2^24 + 2 are float32, 2^24 + 1 is not: the mean is one in float64 only."""
    rows = [np.array([v], np.float32) for v in (0, 2.0**24, 2.0**24 + 2, 2.0**30)]
    assert middle(rows).tolist() == [2.0**24 + 1]
    assert middle(rows[:3]).dtype == np.float32


@pytest.mark.parametrize("spool", [0, 1 << 30])
def test_every_column_of_every_array_is_visited_and_dtypes_stay(spool: int) -> None:
    rng = np.random.default_rng(1)
    rows = [
        {
            "w": rng.normal(size=(3, COLUMNS)).astype(np.float32),  # several blocks
            "half": rng.normal(size=7).astype(np.float16),
            "seen": np.array(k, np.int64),
            "none": np.zeros((0, 4), np.float32),
        }
        for k in range(4)
    ]
    out = by_column(stack_of(rows, spool), lambda block: block.astype(np.float64).mean(0))
    for n, a in rows[0].items():
        assert (out[n].shape, out[n].dtype) == (a.shape, a.dtype)
    want = np.mean([r["w"] for r in rows], axis=0, dtype=np.float64)
    assert np.array_equal(out["w"], want.astype(np.float32))
    assert out["seen"] == 2  # (0 + 1 + 2 + 3) / 4 = 1.5, halves up
    both = combine(stack_of(rows, spool), np.array([0.0, 0.25, 0.0, 0.75]))
    assert np.allclose(both["w"], 0.25 * rows[1]["w"] + 0.75 * rows[3]["w"].astype(np.float64), rtol=1e-7)
    assert both["seen"] == 3  # 0.25 + 2.25 = 2.5, halves up
    one = combine(stack_of(rows, spool), np.array([0.0, 0.0, 1.0, 0.0]))
    assert all(np.array_equal(one[n], rows[2][n]) for n in one)


def direct(rows: list[Arrays], name: str) -> np.ndarray:
    """Return squared distances by differences in float64."""
    flat = [r[name].astype(np.float64).ravel() for r in rows]
    return np.array([[((a - b) ** 2).sum() for a in flat] for b in flat])


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4, 1e-7, 0.0])
def test_distances_are_right_where_clients_nearly_agree(spread: float) -> None:
    """Relative to 1e-7, though the models differ from each other by their last bits and from w^t by 1."""
    rng = np.random.default_rng(2)
    common = rng.normal(size=3000).astype(np.float32)
    rows = [{"w": common + np.float32(spread) * rng.normal(size=3000).astype(np.float32)} for _ in range(6)]
    centre = {"w": (common - 1).astype(np.float32)}
    got = squared_distances(stack_of(rows, 0), centre, ["w"])
    assert np.allclose(got, direct(rows, "w"), rtol=1e-7, atol=0)
    assert np.array_equal(got, got.T)


@pytest.mark.parametrize("huge", [1e10, 1e30, 3e38])
def test_a_client_with_huge_numbers_does_not_spoil_the_others_distances(huge: float) -> None:
    rng = np.random.default_rng(4)
    rows = [{"w": rng.normal(size=500).astype(np.float32)} for _ in range(5)]
    rows[0] = {"w": np.full(500, huge, np.float32)}
    got = squared_distances(together(rows), {"w": np.zeros(500, np.float32)}, ["w"])
    assert np.allclose(got[1:, 1:], direct(rows[1:], "w"), rtol=1e-7)
    assert np.all(got[0, 1:] > 1e20)


def test_what_overflows_is_infinitely_far() -> None:
    rows = [{"w": np.full(3, v)} for v in (1e200, 1.0, 2.0)]
    D = squared_distances(together(rows), {"w": np.zeros(3)}, ["w"])
    assert D.tolist() == [[0.0, np.inf, np.inf], [np.inf, 0.0, 3.0], [np.inf, 3.0, 0.0]]


def test_equal_clients_have_equal_rows_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some BLAS give equal rows of x other results in x x^T, in the last bit, by their position."""

    def by_position(*given: Any) -> np.ndarray:
        G = gram(*given)
        nudged = np.triu(G * (1 + np.finfo(float).eps * np.arange(len(G))[:, None]))
        return nudged + np.triu(nudged, 1).T

    monkeypatch.setattr(stacked, "gram", by_position)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        K, size = int(rng.integers(5, 24)), int(rng.integers(20, 3000))
        distinct = rng.normal(size=(K, size)).astype(np.float32)
        of = rng.integers(0, K // 2, K)
        rows, centre = [{"w": distinct[i]} for i in of], {"w": rng.normal(size=size).astype(np.float32)}
        D = squared_distances(stack_of(rows, 0), centre, ["w"])
        assert np.array_equal(D, D.T)
        for i, j in itertools.combinations(range(K), 2):
            if of[i] == of[j]:
                assert np.array_equal(D[i], D[j])
                assert D[i, j] == 0


def test_only_the_named_arrays_count_for_distances() -> None:
    rows = [{"w": np.array([v], np.float32), "mean": np.array([100.0 * v], np.float32)} for v in (1.0, 3.0)]
    centre = {"w": np.zeros(1, np.float32), "mean": np.zeros(1, np.float32)}
    assert gram(stack_of(rows, 0), centre, ["w"]).tolist() == [[1.0, 3.0], [3.0, 9.0]]
    assert squared_distances(stack_of(rows, 0), centre, ["w"])[0, 1] == 4.0


def test_the_number_of_cores_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    rows = [{"w": rng.normal(size=100_001).astype(np.float32)} for _ in range(5)]
    stack, centre = stack_of(rows, 0), {"w": np.zeros(100_001, np.float32)}
    results = []
    for cores in (1, 2, 3):
        monkeypatch.setattr(stacked, "CORES", cores)
        sums = gram(stack, centre, ["w"])
        results.append((sums.tobytes(), combine(stack, np.full(5, 0.2))["w"].tobytes()))
        assert np.allclose(
            sums, np.stack([r["w"] for r in rows]).astype(float) @ np.stack([r["w"] for r in rows]).T
        )
    assert len(set(results)) == 1


def test_memory_does_not_grow_with_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what NumPy allocates; the pages of the file are the system's, and are given back."""
    monkeypatch.setattr(stacked, "CORES", 2)
    released = []
    monkeypatch.setattr(stacked, "release", released.append)
    row = {"w": np.random.default_rng(5).normal(size=(300, 1000)).astype(np.float32)}  # 1.2 MB
    peaks = []
    for K in (10, 60):
        tracemalloc.start()
        stack = stack_of([row] * K, 1 << 20)
        by_column(stack, lambda block: mean_rows(sort_clients(block)))
        gram(stack, row, ["w"])
        combine(stack, np.full(K, 1 / K))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert released
    # Of each client only its share of the blocks that are worked on at once: a float32 and a few float64.
    assert peaks[1] - peaks[0] < 50 * 3 * min(stacked.CORES, stacked.PORTIONS) * 8 * COLUMNS
    assert peaks[1] < 60 * row["w"].nbytes / 3

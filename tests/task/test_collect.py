"""`Collect` beyond the memory: the file holds the same rows, in the order of names, and its pages go back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from task.errors import StateError
from task.numerics.arrays import Arrays
from task.numerics.collect import Collect, release
from tests.task.test_reduce import merge


def rows(count: int, seed: int = 0) -> dict[str, Arrays]:
    """Return arrays of all kinds that a model may have, by client, in an order that is not that of names."""
    rng = np.random.default_rng(seed)
    names = [f"client-{i:02}" for i in rng.permutation(count)]
    return {
        name: {
            "w": rng.normal(size=(3, 5)).astype(np.float32),
            "half": rng.normal(size=3).astype(np.float16),
            "seen": np.array(rng.integers(2**54), np.int64),
            "none": np.zeros((0, 2), np.float32),
            "double": np.asfortranarray(rng.normal(size=(4, 2))),
        }
        for name in names
    }


def filled(given: dict[str, Arrays], spool: int) -> Collect:
    stack = Collect(next(iter(given.values())), spool)
    for i, (client, row) in enumerate(given.items()):
        stack.add(row, i + 1, client)
    return stack


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("spool", [0, 500])
def test_spooled_rows_are_those_that_came(count: int, spool: int) -> None:
    given = rows(count)
    want, stack = filled(given, 1 << 30), filled(given, spool)
    for _ in range(2):  # the second result finds the file sorted
        got = stack.result()
        for name, a in want.result().items():
            assert (got[name].shape, got[name].dtype) == (a.shape, a.dtype)
            assert np.array_equal(got[name], a)
    assert stack.clients == sorted(given)
    assert stack.weights.tolist() == want.weights.tolist()


def test_rows_that_come_after_a_result_join_it() -> None:
    given = rows(9)
    stack = Collect(next(iter(given.values())), 0)
    for i, (client, row) in enumerate(given.items()):
        stack.add(row, 1, client)
        if i == 4:
            early = stack.result()["w"].copy()
    assert len(early) == 5
    assert np.array_equal(stack.result()["w"], filled(given, 1 << 30).result()["w"])


def test_spooled_parts_merge_as_those_in_memory() -> None:
    given = rows(8)
    names = list(given)
    whole = Collect(given[names[0]], 0)
    for part in (names[:3], names[3:]):
        one = filled({c: given[c] for c in part}, 0)
        merge(whole, one)
    assert np.array_equal(whole.result()["w"], filled(given, 1 << 30).result()["w"])
    assert whole.weights.sum() == sum(range(1, 4)) + sum(range(1, 6))


def test_spooled_arrays_are_read_only_views_that_flatten_without_a_copy() -> None:
    w = filled(rows(6), 0).result()["w"]
    flat = w.reshape(6, -1)
    assert np.shares_memory(flat, w)
    with pytest.raises(ValueError, match="read-only"):
        w[0, 0] = 1.0
    before = w.copy()
    release(flat[:, 3:])
    release(before)  # an array in memory: nothing happens
    assert np.array_equal(w, before)


def test_the_file_is_gone_with_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stack = filled(rows(5), 0)
    w = stack.result()["w"]
    del stack
    assert list(tmp_path.iterdir()) == []  # it never had a name
    assert np.isfinite(w).all()  # and is there as long as somebody looks


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StateError, match=r"No space left on device.*set TMPDIR to a larger folder"):
        filled(rows(2), 0)


def test_the_default_limit_counts_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("task.numerics.collect.SPOOL", 3000)
    row = {"w": np.zeros(250, np.float32)}  # 1000 bytes, 1024 in the file
    stack = Collect(row)
    for i in range(2):
        stack.add(row, 1, str(i))
    assert stack.result()["w"].flags.writeable
    stack.add(row, 1, "2")
    assert not stack.result()["w"].flags.writeable


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_pass_that_releases_keeps_the_process_small() -> None:
    """60 rows of 2 MB: reading all leaves 120 MB of pages; with `release` after each only that one."""

    def resident_mb() -> float:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    row = {"w": np.ones(500_000, np.float32)}
    stack = Collect(row, 1 << 20)
    before = resident_mb()
    for i in range(60):
        stack.add(row, 1, f"{i:02}")
    w = stack.result()["w"]
    peak = 0.0
    for k in range(60):
        assert w[k].sum() == 500_000
        peak = max(peak, resident_mb())
        release(w)
    assert peak - before < 30
    assert w.sum() == 60 * 500_000
    assert resident_mb() - before > 100  # so it does measure
    release(w)

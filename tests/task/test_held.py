"""Arrays that differ from a base at some places: a sum of them is that of their dense forms, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from task.errors import FieldError
from task.numerics import reduce
from task.numerics.collect import Collect
from task.numerics.held import Base, Held, dense, peak
from task.numerics.reduce import Mean, Sum
from task.wire.checks import check_arrays
from tests.task.test_reduce import merge

WEIGHTS = (1, 3, 600, 59_999, 2**20)
SCALES = (2.0**-55, 1e-9, 1e-3, 0.7, 1.0, 3.0, 900.0, 2.0**14)


def held(rng: np.random.Generator, start: Base, scale: float, share: float) -> Held:
    """Return some new values of all kinds, as large as `scale` or as the base."""
    index = np.flatnonzero(rng.random(start.flat.size) < share)
    values = (rng.standard_normal(index.size) * scale).astype(start.array.dtype)
    some = rng.random(index.size)
    values = np.where(some < 0.2, start.flat[index], values)
    values = np.where(some > 0.9, np.array(-0.0, values.dtype), values)
    return Held(start, index, values)


def random_base(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Base:
    a = (rng.standard_normal(shape) * rng.choice(SCALES)).astype(dtype)
    return Base(np.where(rng.random(shape) < 0.1, np.array(-0.0, dtype), a))


def state(total: Sum) -> tuple[Any, ...]:
    parts = total.partial()
    arrays = [(kind, n, a.dtype, a.tobytes()) for kind, by in parts.items() for n, a in by.items()]
    values = [(n, a.tobytes()) for n, a in total.result().items()]
    return arrays, values, total._bound, total.weight, total.count


def refusal(total: Sum, arrays: dict[str, Any], weight: int) -> str:
    """Fold in a client; return why it was refused, if it was."""
    try:
        total.add(arrays, weight, "client")
    except FieldError as err:
        return str(err)
    return ""


@pytest.mark.parametrize("seed", range(120))
def test_a_sum_of_held_arrays_is_that_of_their_dense_forms(seed: int, monkeypatch: Any) -> None:
    """Clients of several bases in any order, dense ones among them, merges, results in between."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(reduce, "MOST_PENDING", int(rng.choice([50, 2**16, 2**30])))
    dtype = rng.choice(np.array([np.float32, np.float32, np.float32, np.float64, np.float16]))
    shapes: dict[str, tuple[int, ...]] = {"w": (13, 9), "b": (5,), "scalar": (), "none": (0, 2)}
    like = {n: np.zeros(shape, dtype) for n, shape in shapes.items()} | {"count": np.zeros(2, np.int64)}
    bases = [{n: random_base(rng, shape, dtype) for n, shape in shapes.items()} for _ in range(3)]
    sparse, whole = ([Mean(like) for _ in range(2)] for _ in range(2))
    for _ in range(int(rng.integers(1, 40))):
        node, weight = int(rng.integers(2)), int(rng.choice(WEIGHTS))
        base, share, scale = bases[rng.integers(3)], rng.choice([0.0, 0.03, 0.5, 1.0]), rng.choice(SCALES)
        arrays: dict[str, Any] = {n: held(rng, start, scale, share) for n, start in base.items()}
        if rng.random() < 0.2:
            arrays["w"] = arrays["w"].dense()
        arrays["count"] = rng.integers(0, 9, 2)
        full = {n: dense(a) for n, a in arrays.items()}
        assert {n: peak(a) for n, a in arrays.items()} == {n: peak(a) for n, a in full.items()}
        assert refusal(whole[node], full, weight) == refusal(sparse[node], arrays, weight)
        if rng.random() < 0.1 and whole[node].count:
            assert state(sparse[node]) == state(whole[node])
    if all(m.count for m in whole):
        for one, two in (sparse, whole):
            merge(two, one)
        assert state(sparse[1]) == state(whole[1])


@pytest.mark.parametrize("covered", [0.0, 2.0**20, 1e30])
def test_a_sum_stays_exact_when_it_outgrows_its_low_part(covered: float) -> None:
    """12 * 1600 * 0.9 is more than `low` may have; a base may be as large as it likes where it is covered."""
    start = Base(np.array([covered, 0.25], np.float32))
    sparse, whole = Mean({"w": start.array}), Mean({"w": start.array})
    for i in range(12):
        a = Held(start, np.array([0]), np.array([0.9], np.float32))
        for arrays in ({"w": a}, {"w": a.dense()}):  # dense ones, too, let `low` be handed over in between
            sparse.add(arrays, 1600, str(i))
            whole.add({"w": a.dense()}, 1600, str(i))
    assert state(sparse) == state(whole)
    assert sparse.result()["w"].tolist() == [np.float32(0.9), 0.25]


def test_the_work_of_a_held_array_is_that_of_its_places() -> None:
    """A base is folded once, whatever the number of its clients, and only when the sum is looked at."""
    rng = np.random.default_rng(1)
    start = Base(rng.standard_normal(100_000).astype(np.float32))
    mean, calls = Mean({"w": start.array}), []
    add_dense = mean._add_dense
    mean._add_dense = lambda name, a, largest, weight: (  # type: ignore[method-assign]
        calls.append(weight),
        add_dense(name, a, largest, weight),
    )[1]
    for i in range(10):
        a = Held(start, np.array([i, 500 + i]), np.array([1, 2], np.float32))
        mean.add({"w": a}, 7, str(i))
    assert calls == []
    first = mean.result()["w"]
    assert calls == [70]
    assert np.array_equal(mean.result()["w"], first)
    assert first[20] == start.array[20]
    assert first[0] == np.float32((1.0 + 9 * float(start.array[0])) / 10)


def test_the_peak_is_that_of_the_dense_array() -> None:
    start = Base(np.array([1, -9, 3], np.float32))
    for index, values, want in (
        ([], [], 9),
        ([0], [5], 9),
        ([1], [2], 3),  # the base's largest is no longer there
        ([1], [-9], 9),
        ([2], [-12], 12),
        ([0, 1, 2], [0, 0, 0], 0),
    ):
        assert Held(start, np.array(index, int), np.array(values, np.float32)).peak == want
    assert np.isnan(Held(start, np.array([0]), np.array([np.nan], np.float32)).peak)
    assert Held(start, np.array([1]), np.array([-np.inf], np.float32)).peak == np.inf


def test_the_gate_takes_a_held_array_as_it_takes_a_dense_one() -> None:
    like = {"w": np.zeros((2, 2), np.float32)}
    start = Base(np.ones((2, 2), np.float32))
    good = Held(start, np.array([3]), np.array([-4], np.float32))
    assert check_arrays("arrays", {"w": good}, like) == {"w": 4.0}
    assert (good.shape, good.dtype, good.size, good.nbytes) == ((2, 2), np.float32, 4, 12)
    assert good.dense().tolist() == [[1, 1], [1, -4]]
    assert start.array.tolist() == [[1, 1], [1, 1]]
    bad = Held(start, np.array([0, 3]), np.array([np.nan, np.inf], np.float32))
    with pytest.raises(FieldError, match="2 of 4"):
        check_arrays("arrays", {"w": bad}, like)
    with pytest.raises(FieldError, match=r"float32\[2, 2\]"):
        check_arrays("arrays", {"w": Held(Base(np.ones(4, np.float32)), good.index, good.values)}, like)


def test_a_collect_keeps_the_dense_array() -> None:
    start = Base(np.ones(3, np.float32))
    rows = Collect({"w": start.array})
    rows.add({"w": Held(start, np.array([1]), np.array([5], np.float32))}, 1, "a")
    assert rows.result()["w"].tolist() == [[1, 5, 1]]

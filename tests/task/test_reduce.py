"""Reductions: values by hand, exactness, and that nothing depends on order or spread."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from task.errors import FieldError, WireError
from task.numerics.arrays import BLOCK
from task.numerics.collect import Collect
from task.numerics.reduce import REDUCTIONS, Mean, Reduction, Sum


def arrays(*values: float, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"w": np.array(values, dtype)}


def merge(whole: Reduction, part: Reduction) -> None:
    """Fold a part in as the server does: checked, then merged."""
    records = part.partial()
    whole.merge(records, part.weight, part.count, whole.check_merge(records, part.count))


def test_mean_is_weighted_by_examples_of_those_who_answered() -> None:
    # (1*2 + 3*6) / (1 + 3) = 5;  (1*10 + 3*(-2)) / 4 = 1
    mean = Mean(arrays(0, 0))
    mean.add(arrays(2, 10), 1, "a")
    mean.add(arrays(6, -2), 3, "b")
    assert mean.result()["w"].tolist() == [5.0, 1.0]
    assert mean.result()["w"].dtype == np.float32
    assert (mean.weight, mean.count) == (4, 2)


def test_sum_is_weighted() -> None:
    total = Sum(arrays(0))
    total.add(arrays(2), 1, "a")
    total.add(arrays(6), 3, "b")
    assert total.result()["w"].tolist() == [20.0]


def test_integer_buffers_are_averaged_as_integers() -> None:
    like = {"count": np.array(0, np.int64)}
    mean = Mean(like)
    big = 2**53 + 1  # a float64 cannot hold it
    mean.add({"count": np.array(big, np.int64)}, 1, "a")
    mean.add({"count": np.array(big + 2, np.int64)}, 1, "b")
    result = mean.result()["count"]
    assert result.dtype == np.int64
    assert result.shape == ()
    assert int(result) == big + 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_leave_as_they_came(dtype: type) -> None:
    mean = Mean(arrays(0, dtype=dtype))
    mean.add(arrays(1.5, dtype=dtype), 2, "a")
    assert mean.result()["w"].dtype == dtype
    assert mean.result()["w"].tolist() == [1.5]


def test_mean_equals_exact_rational_arithmetic() -> None:
    rng = np.random.default_rng(1)
    scale = 10.0 ** rng.integers(-6, 4, size=(9, 200))
    xs = (rng.normal(size=(9, 200)) * scale).astype(np.float32)
    weights = rng.integers(1, 2000, size=9).tolist()
    mean = Mean({"w": xs[0]})
    for i in range(9):
        mean.add({"w": xs[i]}, weights[i], str(i))
    exact = [sum(Fraction(float(xs[i, j])) * weights[i] for i in range(9)) / sum(weights) for j in range(200)]
    got = mean.result()["w"]
    want = np.array([float(e) for e in exact]).astype(np.float32)
    # The fixed grid is absolute (2^-52 a value): relative to tiny values it may cost the last bit.
    assert np.array_equal(got[np.abs(want) > 1e-4], want[np.abs(want) > 1e-4])
    assert np.max(np.abs(got - want)) <= 1e-14


@pytest.mark.parametrize(
    ("scale", "most"),
    [
        (2.0**-55, 1),  # below the grid
        (2.0**-51, 3),  # some lie halfway between its points
        (0.5, 600),  # up to 1, `low` alone, handed over to `high` every few terms
        (0.5, 60_000),  # too much for `low`
        (100.0, 600),
        (2.0**20, 1),
    ],
)
def test_a_sum_is_that_of_integers_on_the_grid(scale: float, most: int) -> None:
    """sum_k w_k round(x_k 2^51), in Python's integers; rounded once at the end."""
    rng = np.random.default_rng(4)
    xs = np.round(rng.uniform(-1, 2, (60, 50)) * 64) / 64 * scale * 2.0 ** -rng.integers(0, 2, (60, 50))
    weights = rng.integers(1, most, 60, endpoint=True).tolist()
    total = Sum(arrays(*xs[0], dtype=np.float64))
    for x, weight in zip(xs, weights, strict=True):
        total.add(arrays(*x, dtype=np.float64), weight, "a")
    # Python rounds a Fraction half to even, as IEEE does.
    units = [sum(round(Fraction(x) * 2**51) * w for x, w in zip(col, weights, strict=True)) for col in xs.T]
    assert total.result()["w"].tolist() == [float(Fraction(u, 2**51)) for u in units]


def test_a_value_halfway_on_both_grids_is_rounded_on_the_fine_one() -> None:
    x = 1.0 + 2.0**-21 + 2.0**-52  # above 1, so that `high` takes part
    total = Sum(arrays(0, dtype=np.float64))
    total.add(arrays(x, dtype=np.float64), 2**11, "a")
    assert total.result()["w"][0] == round(Fraction(x) * 2**51) * 2**11 / 2**51


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_neither_order_nor_spread_changes_a_bit(name: str) -> None:
    rng = np.random.default_rng(2)
    size = BLOCK + 77  # more than one block
    # Values whose float64 sum does depend on the order.
    xs = [(rng.normal(size=size) * 10.0 ** rng.integers(-7, 3, size)).astype(np.float32) for _ in range(6)]
    weights = [1, 7, 600, 3, 59_999, 12]
    like = {"w": xs[0]}
    names = [f"client-{i}" for i in range(6)]

    def reduce(order: tuple[int, ...], nodes: int) -> np.ndarray:
        parts = [REDUCTIONS[name](like) for _ in range(nodes)]
        for place, i in enumerate(order):
            parts[place % nodes].add({"w": xs[i]}, weights[i], names[i])
        whole = REDUCTIONS[name](like)
        for part in parts:
            merge(whole, part)
        return whole.result()["w"]

    want = reduce((0, 1, 2, 3, 4, 5), 1)
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 97):
        for nodes in (1, 2, 3, 6):
            assert np.array_equal(reduce(order, nodes), want)


def test_a_plain_float64_sum_would_depend_on_the_order() -> None:
    # The reason why the reduction is not a float64 sum: the same three terms in two orders.
    terms = [1e16, 1.0, -1e16]
    assert sum(terms) != sum([terms[0], terms[2], terms[1]])
    small = [2.0**20, 2.0**-33, -(2.0**20), 2.0**-33]
    results = set()
    for order in itertools.permutations(small):
        total = Sum(arrays(0, dtype=np.float64))
        for i, x in enumerate(order):
            total.add(arrays(x, dtype=np.float64), 1, str(i))
        results.add(total.result()["w"][0])
    assert results == {2.0**-32}


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**31, 1e30])
def test_a_term_out_of_range_is_refused_and_nothing_is_folded(value: float) -> None:
    mean = Mean(arrays(0))
    mean.add(arrays(1.0), 1, "a")
    with pytest.raises(FieldError, match="diverged"):
        mean.add(arrays(value), 1, "b")
    assert (mean.result()["w"].tolist(), mean.count) == ([1.0], 1)


def test_a_sum_out_of_range_is_refused() -> None:
    mean = Mean(arrays(0))
    for i in range(4095):
        mean.add(arrays(2.0**30), 1, str(i))
    with pytest.raises(FieldError, match="cohort below"):
        mean.add(arrays(2.0**30), 1, "one more")


LARGEST_FLOAT = np.nextafter(np.float32(2.0**31), np.float32(0))


def test_clients_that_a_node_forwards_are_folded_all_or_none() -> None:
    """Each term fits, but not so many; those that do come to what they come to one by one."""
    total, most = Sum(arrays(0.0)), np.float32(2**31 - 128)
    with pytest.raises(FieldError, match="sum over the cohort"):
        total.adding({str(i): (arrays(most), 1) for i in range(2050)})
    assert total.count == 0
    rows = {"a": (arrays(0.5), 3), "b": (arrays(2.25), 2)}
    fold = total.adding(rows)
    assert total.count == 0
    fold()
    one_by_one = Sum(arrays(0.0))
    for client, (row, weight) in rows.items():
        one_by_one.add(row, weight, client)
    assert total.result()["w"].tolist() == one_by_one.result()["w"].tolist() == [6.0]
    assert (total.count, total.weight) == (2, 5)


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, LARGEST_FLOAT), (np.int64, 2**55 - 8)])
@pytest.mark.parametrize("merged", [False, True])
def test_nobody_is_refused_for_the_size_of_what_others_sent(dtype: Any, value: Any, merged: bool) -> None:
    like = arrays(0, dtype=dtype)
    mean = Mean(like)
    for i in range(3):
        if merged:
            node = Mean(like)
            node.add(arrays(value, dtype=dtype), 1, str(i))
            merge(mean, node)
        else:
            mean.add(arrays(value, dtype=dtype), 1, str(i))
    mean.add(arrays(1, dtype=dtype), 1, "honest")
    assert mean.count == 4


def test_a_merged_sum_is_held_to_the_number_of_its_clients() -> None:
    node = Mean(arrays(0))
    node.add(arrays(2.0**30), 1, "a")
    node.add(arrays(2.0**30), 1, "b")
    node.add(arrays(2.0**30), 1, "c")
    with pytest.raises(FieldError, match="of 1 clients a sum below"):
        Mean(arrays(0)).check_merge(node.partial(), 1)


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, 1e37), (np.int64, 2**62)])
def test_a_stack_has_the_bound_of_a_mean(dtype: Any, value: Any) -> None:
    stack = Collect(arrays(0, dtype=dtype))
    bad = arrays(value, dtype=dtype)
    with pytest.raises(FieldError, match="diverged"):
        stack.check(bad, 1, "a")
    with pytest.raises(FieldError, match="diverged"):
        stack.check_merge({"a": {**bad, "": np.array(1)}}, 1)


def test_a_mean_of_nobody_is_refused() -> None:
    with pytest.raises(WireError, match="at least one client"):
        Mean(arrays(0)).result()


def test_stack_sorts_by_client_name() -> None:
    stack = Collect(arrays(0))
    stack.add(arrays(2), 5, "b")
    stack.add(arrays(1), 4, "a")
    assert stack.result()["w"].tolist() == [[1.0], [2.0]]
    assert (stack.clients, stack.weights.tolist()) == (["a", "b"], [4, 5])
    with pytest.raises(FieldError, match="two"):
        stack.add(arrays(3), 1, "a")


def test_memory_of_a_mean_does_not_grow_with_the_cohort() -> None:
    import tracemalloc

    like = {"w": np.zeros(1_663_370, np.float32)}
    update = {"w": np.random.default_rng(0).normal(size=1_663_370).astype(np.float32)}
    peaks = []
    for replies in (10, 200):
        tracemalloc.start()
        mean = Mean(like)
        for i in range(replies):
            mean.add(update, 600, str(i))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] * 1.01
    assert peaks[0] <= 2.2 * 8 * 1_663_370  # two int64 a parameter, as values exceed 1, and a block


@pytest.mark.parametrize(("peak", "numbers"), [(0.05, 1), (3.0, 2)])
def test_a_tensor_has_a_second_int64_only_where_its_values_need_one(peak: float, numbers: int) -> None:
    import tracemalloc

    size = 1 << 20
    update = {"w": np.full(size, peak, np.float32)}
    tracemalloc.start()
    mean = Mean(update)
    for i in range(10):
        mean.add(update, 20, str(i))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    blocks = 3 * 8 * BLOCK + (1 << 18)  # to compute in
    assert 8 * numbers * size <= held <= 8 * numbers * size + blocks


def test_a_sum_that_outgrows_one_int64_is_that_of_its_integers() -> None:
    """0.9 * 600 * 20 passes 2^12 at the eighth client; parts of it are merged before and after."""
    xs, whole = [0.9, -0.7, 0.9 + 2.0**-24, 0.8], Sum(arrays(0))
    for turn in range(20):
        part = Sum(arrays(0))
        part.add(arrays(xs[turn % 4]), 600, "a")
        merge(whole, part)
        whole.add(arrays(xs[turn % 3]), 600, "b")
    units = sum(
        round(Fraction(float(np.float32(xs[turn % k]))) * 2**51) * 600 for k in (3, 4) for turn in range(20)
    )
    records = whole.partial()
    assert (int(records["high"]["w"][0]) << 31) + int(records["low"]["w"][0]) == units
    assert whole.result()["w"][0] == np.float32(units / 2**51)


@pytest.mark.parametrize(("value", "dtype"), [(1e-9, np.int32), (0.3, np.int32), (3.0, np.int64)])
def test_a_partial_is_two_int32_a_parameter_where_the_sum_allows_and_loses_nothing(
    value: float, dtype: type
) -> None:
    """3000 * 0.3 = 900 < 2^11 counts in an int32; 3000 * 3 does not."""
    part, direct, merged = (Mean(arrays(0)) for _ in range(3))
    for i, x in enumerate((value, -value / 3, value / 7)):
        part.add(arrays(x), 3000, str(i))
        direct.add(arrays(x), 3000, str(i))
    records = part.partial()
    assert (records["high"]["w"].dtype, records["low"]["w"].dtype) == (dtype, np.int32)
    merge(merged, part)
    for more in (merged, direct):
        more.add(arrays(value / 11), 17, "later")
    assert merged.result()["w"].tobytes() == direct.result()["w"].tobytes()

"""Rows of clients that train together: summed where they lie, with the bits of a sum of the rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from task.numerics import reduce, stack
from task.numerics.held import dense, peak
from task.numerics.reduce import Mean, Sum
from task.numerics.stack import RowStack, StackRow, rows_of
from tests.task.test_held import SCALES, WEIGHTS, refusal, state
from tests.task.test_reduce import merge

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


def test_units_are_the_weighted_sums_counted_by_hand() -> None:
    """3 * 0.5 - 2 * 0.25 = 1; 5 * 2^-52 rounds to 2 * 2^-51, thrice; 2^20 + 2^-20 is 2^40 + 1 of 2^-20."""
    small = RowStack(torch.tensor([[0.5, 5 * 2.0**-52], [-0.25, 0.0]], dtype=torch.float64))
    high, low = small.units([3, 2], wide=False)
    assert high is None
    assert low.tolist() == [2**51, 6]
    large = RowStack(torch.tensor([[2.0**20 + 2.0**-20], [-7.0], [3 * 2.0**-51]], dtype=torch.float64))
    high, low = large.units([1, 0, 5], wide=True)
    assert high is not None
    assert (high.tolist(), low.tolist()) == ([2**40 + 1], [15])


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("seed", range(40))
def test_a_sum_of_rows_is_that_of_their_arrays(seed: int, device: str, monkeypatch: Any) -> None:
    """Stacks that end early, rows that are refused, other clients in between, merges, blocks of any size."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(reduce, "MOST_PENDING", int(rng.choice([2**20, 2**21, 2**30])))
    monkeypatch.setattr(stack, "AT_ONCE", int(rng.choice([1, 50, 2**22])))
    dtype = rng.choice(np.array([np.float32, np.float32, np.float64, np.float16]))
    shapes: dict[str, tuple[int, ...]] = {"w": (13, 9), "b": (5,), "scalar": (), "none": (0, 2)}
    like = {n: np.zeros(shape, dtype) for n, shape in shapes.items()} | {"count": np.zeros(2, np.int64)}
    together, alone = ([Mean(like) for _ in range(2)] for _ in range(2))
    for _ in range(int(rng.integers(1, 6))):
        clients, node, scale = int(rng.integers(1, 12)), int(rng.integers(2)), rng.choice(SCALES)
        drawn = {n: rng.standard_normal((clients, *shape)) * scale for n, shape in shapes.items()}
        with np.errstate(over="ignore"):
            whole = {n: a.astype(dtype) for n, a in drawn.items()}
        if rng.random() < 0.2:
            whole["b"][0, 0] = rng.choice([np.nan, np.inf, -np.inf])
        rows = rows_of({n: torch.tensor(a, device=device) for n, a in whole.items()})
        for k in rng.permutation(clients)[: rng.integers(clients + 1)]:
            weight, count = int(rng.choice(WEIGHTS)), {"count": rng.integers(0, 9, 2)}
            full: dict[str, Any] = {n: a[k] for n, a in whole.items()} | count
            mine: dict[str, Any] = rows[k] | count
            assert all(np.array_equal(dense(a), full[n], equal_nan=True) for n, a in mine.items())
            assert np.array_equal([peak(a) for a in mine.values()], [peak(full[n]) for n in mine], True)
            assert refusal(together[node], mine, weight) == refusal(alone[node], full, weight)
            if rng.random() < 0.2:  # another client's in between
                assert refusal(together[node], full, weight) == refusal(alone[node], full, weight)
            if rng.random() < 0.1:
                assert state(together[node]) == state(alone[node])
    merge(together[1], together[0])
    merge(alone[1], alone[0])
    if together[1].count:
        assert state(together[1]) == state(alone[1])


def test_a_stack_is_summed_at_once_and_not_copied() -> None:
    total, stacks = Sum({"w": np.zeros(3, np.float32)}), [RowStack(torch.ones(4, 3)) for _ in range(2)]
    asked: list[list[int]] = []
    for one in stacks:
        units = one.units

        def noted(weights: list[int], *, wide: bool, units: Any = units) -> Any:
            asked.append(weights)
            return units(weights, wide=wide)

        one.units = noted  # type: ignore[method-assign, assignment]
    for k in range(3):
        total.add({"w": StackRow(stacks[0], k)}, 10 + k, str(k))
    assert asked == []
    for k in range(4):  # of the next stack, which is whole
        total.add({"w": StackRow(stacks[1], k)}, 1, str(k))
    assert asked == [[10, 11, 12, 0], [1, 1, 1, 1]]
    assert total.result()["w"].tolist() == [37.0] * 3
    assert not any("host" in vars(one) for one in stacks)


def test_a_device_without_memory_leaves_the_sum_to_the_host(monkeypatch: Any) -> None:
    one, calls = RowStack(torch.tensor([[0.5], [0.25]])), []
    units = RowStack._units

    def scarce(tensor: torch.Tensor, weights: Any, *, wide: bool) -> Any:
        calls.append(tensor.device.type)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return units(tensor, weights, wide=wide)

    monkeypatch.setattr(RowStack, "_units", staticmethod(scarce))
    assert one.units([1, 2], wide=False)[1].tolist() == [2**51]
    assert len(calls) == 2

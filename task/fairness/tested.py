"""Counts by groups of people, of what a model predicts of examples."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from task.datasets.base import Dataset
from task.fairness.counts import Ints, nested, rows_of
from task.fairness.groups import Comparison, comparisons_of, named, places_of
from task.fairness.rates import report_of
from task.numerics.limbs import LIMBS
from task.numerics.metrics import TENTHS
from task.tasks.base import Task
from task.tasks.evaluate import Test
from task.tasks.metrics import Measures


def counts_of(
    comparisons: Sequence[Comparison],
    data: Dataset,
    rows: npt.NDArray[np.int64],
    test: Test,
    task: Task,
    device: torch.device,
    least: int = 0,
) -> Ints:
    """Return the counts of all groups, [G, width], see `task.fairness.counts`.

    Args:
        comparisons: Whose groups they are.
        data: The data set.
        rows: The examples that are tested.
        test: Tests a model on examples.
        task: What the model was trained for.
        device: Where it computes.
        least: m, fewest persons behind a count; 0 or 1 = any number.

    Raises:
        ConfigError: The data have no such column.
        DataError: A value is none of those that the run names.
    """
    sizes, classes = [len(comparison.names) for comparison in comparisons], data.num_classes
    places = [places_of(comparison, data, rows) for comparison in comparisons]
    member = np.concatenate(
        [place == np.arange(size)[:, None] for place, size in zip(places, sizes, strict=True)]
    )
    counting = copy(task)
    counting.measures = Measures(task.name, ("confusion", "ece"), classes)
    confusion = np.zeros((len(member), classes, classes), np.int64)
    tenths = np.zeros((len(member), TENTHS, 2 + LIMBS), np.int64)
    together, which = np.unique(member, axis=1, return_inverse=True)  # each combination is tested once
    for i, groups in enumerate(together.T):
        mine = rows[which.ravel() == i]
        x, y = data.inputs(mine), task.targets(data, mine)
        _, sums = test(x.to(device), y.to(device), counting)
        confusion[groups] += sums["confusion"]
        tenths[groups] += sums["calibration"]
    number = np.repeat(np.arange(len(sizes)), sizes)
    closed = nested(member, number.tolist(), least) if least > 1 else np.zeros(len(member), bool)
    pairs = [len(comparison.divisions) > 1 for comparison in comparisons]
    return rows_of(confusion, tenths, list(zip(sizes, pairs, strict=True)), least, closed)


def rates_on(
    key: str, data: Dataset, rows: npt.NDArray[np.int64], test: Test, task: Task, device: torch.device
) -> list[dict[str, Any]]:
    """Return the rates of the groups that a run-config key names, see `task.fairness.rates`.

    The arguments, and the errors raised, are as of `counts_of`.
    """
    comparisons = named(comparisons_of(key))
    return report_of(comparisons, counts_of(comparisons, data, rows, test, task, device), data.num_classes)

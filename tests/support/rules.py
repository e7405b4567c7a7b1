"""A round's replies without a wire: for tests of the pure server rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from strategies.engine.rule import RoundContext, Rule
from strategies.engine.state import AggregatedReplies
from task.catalogue.algorithms import ALGORITHMS
from task.numerics.arrays import Arrays
from task.numerics.reduce import REDUCTIONS


def reduced(
    algorithm: str,
    replies: Mapping[str, tuple[Arrays, int]],
    *,
    lr: float = 0.0,
    scalars: Mapping[str, list[float]] | None = None,
    trainable: tuple[str, ...] = (),
) -> AggregatedReplies:
    """Reduce replies ``client -> (arrays of the one upward field, number of examples)``."""
    entry = ALGORITHMS[algorithm]
    (field,) = entry.up
    names = sorted(replies)
    reduction = REDUCTIONS[field.reduce](replies[names[0]][0])
    for name in names:
        arrays, n = replies[name]
        reduction.add(arrays, n if entry.weight == "examples" else 1, name)
    counts = np.array([replies[name][1] for name in names], np.int64)
    return AggregatedReplies(
        {field.name: reduction.result()}, tuple(names), counts, dict(scalars or {}), 1, lr, trainable,
        reduce=ways(algorithm),
    )  # fmt: skip


def ways(algorithm: str) -> dict[str, str]:
    """Return how the algorithm's upward scalars are reduced."""
    return {s.name: s.reduce for s in ALGORITHMS[algorithm].up_scalars}


def context(rule: Rule, names: Sequence[str] = (), trainable: tuple[str, ...] = ("w",)) -> RoundContext:
    """Return round 1 of a rule among clients with one example each."""
    entry = ALGORITHMS[rule.algorithm]
    return RoundContext(
        rule, entry, 1, 0.1, tuple(names), names, trainable, lambda cohort: dict.fromkeys(cohort, 1)
    )


def w(*values: float, dtype: type = np.float32) -> Arrays:
    """Return a model of one array."""
    return {"w": np.array(values, dtype)}

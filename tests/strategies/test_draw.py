"""The draw of a cohort: how many, how evenly, at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from strategies.membership.client_registry import ClientRegistry
from task.numerics.seeds import rng_for


class Names(Sequence[str]):
    """A population of names that counts how many are looked at."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: Any) -> Any:
        self.seen += 1
        return f"client-{i:09d}"


@pytest.mark.parametrize(
    ("fraction", "population", "size"),
    [
        (0.29, 100, 29),  # 0.29 * 100 = 28.999999999999996
        (0.57, 100, 57),  # 56.99999999999999
        (0.07, 100, 7),  # 7.000000000000001
        (0.1, 30, 3),
        (0.7, 10, 7),
        (0.35, 20, 7),
        (0.3, 5, 1),  # 1.5 -> 1
        (0.99, 10, 9),
        (1.0, 10, 10),
        (0.0, 10, 1),
        (0.05, 10, 1),  # 0.5 -> 0 -> 1
        (1.0, 1, 1),
        (0.5, 0, 0),
    ],
)
def test_the_cohort_is_the_floor_of_c_k_and_at_least_one(fraction: float, population: int, size: int) -> None:
    registry = ClientRegistry(1.0, 1)
    registry.names = [f"client-{i:03d}" for i in range(population)]
    drawn = registry.draw(fraction, rng_for(1, "selection", 1))
    assert len(drawn) == len(set(drawn)) == size
    assert drawn == sorted(drawn)
    assert set(drawn) <= set(registry.names)


@pytest.mark.parametrize("population", [100, 10_000, 1_000_000])
def test_a_draw_looks_at_the_cohort_not_at_the_population(population: int) -> None:
    registry = ClientRegistry(1.0, 1)
    names = Names(population)
    registry.names = names  # type: ignore[assignment]
    drawn = registry.draw(20 / population, rng_for(1, "selection", 1))
    assert len(set(drawn)) == 20
    assert names.seen == 20


def test_everybody_is_drawn_equally_often() -> None:
    registry = ClientRegistry(1.0, 1)
    registry.names = [f"client-{i}" for i in range(10)]
    drawn: Counter[str] = Counter()
    for t in range(1000):
        drawn.update(registry.draw(0.3, rng_for(1, "selection", t)))
    # 300 each, standard deviation sqrt(1000 * 0.3 * 0.7) = 14.5
    assert all(abs(drawn[name] - 300) < 5 * math.sqrt(210) for name in registry.names)

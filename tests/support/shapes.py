"""One algorithm of each shape for what the code decides by shape; the others' cases run in ``make test-all``.

What an option does to an algorithm follows from the algorithm's contract: what goes up, down and is kept,
how it is reduced, what stays private. Algorithms of the same contract differ in arithmetic, which their own
tests hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm


def shape(entry: Algorithm) -> tuple[Any, ...]:
    """Return what options meet of an entry: its contract without names, and that of its phases."""
    records = tuple(
        frozenset((r.layout, r.to, r.reduce) for r in side) for side in (entry.down, entry.up, entry.keeps)
    )
    decided = (entry.work, entry.private, entry.personal, entry.pooled, entry.vertical, entry.stages)
    needed = (bool(entry.withstands), entry.batched, bool(entry.sgd_only), bool(entry.unclipped))
    return records, decided, needed, tuple(shape(phase) for phase in entry.phases.values())


def by_shape(cells: Iterable[tuple[str, *tuple[Any, ...]]], share: int = 1) -> Sequence[Any]:
    """Return the cells (name, ...) as cases, of which one a shape and option runs for every commit.

    Which one, differs from option to option, so that each algorithm has its turn. With a `share` of 2 every
    second shape and option has such a case, and so on.
    """
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for cell in cells:
        groups.setdefault((shape(ALGORITHMS[cell[0]]), cell[1:]), []).append(cell)
    cases = []
    for turn, group in enumerate(groups.values()):
        chosen = turn // share % len(group) if turn % share == 0 else None
        cases += [
            pytest.param(*cell, marks=() if i == chosen else pytest.mark.full) for i, cell in enumerate(group)
        ]
    return cases

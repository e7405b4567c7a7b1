"""Histograms of rows: sums of g and h and numbers of rows, by node, column and bin.

The cells of a column are its bins in order, and then the rows without a value. A category's bins are its
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.trees.cuts import MISSING, Cuts
from task.trees.ensemble import TreeEnsemble, Values

Ints = npt.NDArray[np.int64]
_BLOCK = 2**20  # rows at once: float64 sums of so many integers up to 2^30 are exact


@dataclass(frozen=True)
class CellLayout:
    """The cells of the columns that a tree may split."""

    cuts: tuple[Cuts, ...]  # of each such column; of categories none
    levels: tuple[int, ...]  # how many categories each has; 0 = it is a number

    @cached_property
    def bins(self) -> Ints:
        """How many bins each column has, without that of missing values."""
        return np.array([many or len(cuts) + 1 for cuts, many in zip(self.cuts, self.levels, strict=True)])

    @cached_property
    def starts(self) -> Ints:
        """The first cell of each column, and how many there are."""
        return np.concatenate([[0], np.cumsum(self.bins + 1)])

    @property
    def cells(self) -> int:
        """How many cells a node has."""
        return int(self.starts[-1])

    def chosen(self, columns: Sequence[int]) -> CellLayout:
        """Return the layout of some of the columns."""
        return CellLayout(tuple(self.cuts[j] for j in columns), tuple(self.levels[j] for j in columns))


def slots(place: Ints, nodes: Sequence[int]) -> Ints:
    """Return which of some nodes each row is in, by its place among them; -1 = in none.

    >>> slots(np.array([4, 0, 3, 4]), [3, 4]).tolist()
    [1, -1, 0, 1]
    """
    found = np.full(max(*nodes, place.max(initial=0), 0) + 1, -1, np.int64)
    found[list(nodes)] = np.arange(len(nodes))
    return found[place]


def asked_slots(
    growing: TreeEnsemble, asked: Sequence[tuple[int, int]], x: Values
) -> Iterator[tuple[int, int, Ints]]:
    """Yield each tree of which nodes are asked for, how many, and the `slots` of rows x [rows, columns]."""
    for tree in range(growing.trees):
        if nodes := [node for of, node in asked if of == tree]:
            yield tree, len(nodes), slots(growing.leaves(x, tree), nodes)


def summed(
    bins: Sequence[npt.NDArray[np.int32]],
    slots: Ints,
    nodes: int,
    weights: Sequence[Ints],
    layout: CellLayout,
) -> Ints:
    """Return the histograms of nodes, int64 [nodes, cells, weights + 1]: sums of weights, and counts of rows.

    `bins` has each column's, [rows]; `slots` says which node a row is in, -1 = none of them.
    """
    found = np.zeros((nodes, layout.cells, len(weights) + 1), np.int64)
    inside = np.flatnonzero(slots >= 0)
    for start in range(0, len(inside), _BLOCK):
        rows = inside[start : start + _BLOCK]
        of, terms = slots[rows], [weight[rows].astype(np.float64) for weight in weights]
        for j, column in enumerate(bins):
            width, first = int(layout.bins[j]) + 1, int(layout.starts[j])
            place = column[rows]
            cell = of * width + np.where(place == MISSING, width - 1, place)
            part = found[:, first : first + width]
            for k, term in enumerate(terms):
                sums = np.bincount(cell, term, nodes * width)
                part[:, :, k] += sums.astype(np.int64).reshape(nodes, width)
            part[:, :, -1] += np.bincount(cell, minlength=nodes * width).reshape(nodes, width)
    return found

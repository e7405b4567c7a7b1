"""A party's columns as trees read them: float32 values, their cuts, and which rows fall into which cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from client_app.vertical.party import AlignedParty
from task.trees.cuts import MISSING, Cuts, bins_of, merged
from task.trees.histograms import CellLayout, summed

Ints = npt.NDArray[np.int64]


def quantiles(values: npt.NDArray[np.float32], bins: int, least: int = 1) -> Cuts:
    """Return the cuts of a column [N] into at most `bins` bins: its exact quantiles (`task.trees.cuts`).

    Bins of fewer than `least` values are merged.

    >>> quantiles(np.array([5, 1, 2, np.nan, 2], np.float32), 2).tolist()
    [2.0]
    >>> quantiles(np.ones(3, np.float32), 4).tolist()
    []
    """
    present = np.sort(values[~np.isnan(values)]) + np.float32(0.0)  # -0 is 0
    ranks = -(-np.arange(1, bins) * len(present) // bins)
    found = np.unique(present[ranks - 1]) if len(present) else present
    found = found[found > present[:1]]
    return merged(found, np.searchsorted(present, found), len(present), least) if least > 1 else found


@dataclass(frozen=True)
class Columns:
    """The columns of a party, of the common rows: those of the test first."""

    x: npt.NDArray[np.float32]  # [M, p]; NaN = there is no value
    tests: int
    layout: CellLayout  # with the cuts

    @classmethod
    def of(cls, data: AlignedParty, bins: int, least: int, held: npt.NDArray[np.bool_]) -> Columns:
        """Return a party's columns, each cut into at most `bins` bins of `least` rows or more.

        `held` says which training rows are held out, and do not count.
        """
        x = data.x(data.rows).flatten(1).float().cpu().numpy()
        cuts = tuple(quantiles(column, bins, least) for column in x[len(data.tests) :][~held].T)
        return cls(x, len(data.tests), CellLayout(cuts, (0,) * len(cuts)))

    @property
    def train(self) -> int:
        """How many rows trees are grown from."""
        return len(self.x) - self.tests

    @cached_property
    def bins(self) -> list[npt.NDArray[np.int32]]:
        """The bin of each training row, by column."""
        columns = zip(self.x[self.tests :].T, self.layout.cuts, strict=True)
        return [bins_of(column, cuts) for column, cuts in columns]

    def histograms(self, slots: Ints, nodes: int, g: Ints, h: Ints) -> Ints:
        """Return the sums of g, h and rows of nodes, int64 [nodes, cells, 3], as `histograms.summed`."""
        return summed(self.bins, slots, nodes, [g, h], self.layout)

    def groups(self, slots: Ints, nodes: int) -> list[list[int]]:
        """Return the training rows of each cell of each node, in the order of `histograms`."""
        found = []
        for node in range(nodes):
            rows = np.flatnonzero(slots == node)
            for column, bins in zip(self.bins, self.layout.bins.tolist(), strict=True):
                cell = np.where(column[rows] == MISSING, bins, column[rows])
                ordered = rows[np.argsort(cell, kind="stable")]
                ends = np.cumsum(np.bincount(cell, minlength=bins + 1))
                found += [part.tolist() for part in np.split(ordered, ends[:-1])]
        return found

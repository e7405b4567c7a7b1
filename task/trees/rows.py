"""A client's rows as trees grow over them: what they send for each question, and what follows from the trees.

The margins, and the derivatives at these, are functions of the rows and the trees before. They are known by
the digest of these trees (`task.trees.orders`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.classical.columns import NamedColumns
from task.errors import DataError
from task.numerics import seeds
from task.numerics.row_sums import blocks, row_sums
from task.trees.boosting import Boosting
from task.trees.cuts import MISSING, Cuts, bins_of
from task.trees.histograms import CellLayout, asked_slots, summed
from task.trees.noised import node_totals, row_terms
from task.trees.objectives import SQUARED
from task.trees.orders import TreeOrder, chained, start_digest
from task.trees.sampling import Keys, drawn, keys_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class BoostedRows:
    """The rows of one client."""

    boosting: Boosting
    x: npt.NDArray[np.float32]
    y: Floats
    keys: Keys
    held: npt.NDArray[np.bool_]  # which rows no tree is grown from
    layout: CellLayout | None = None  # with the cuts; None = they are not known yet
    bins: Sequence[npt.NDArray[np.int32]] = ()
    margins: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    derivatives: tuple[Ints, Ints] | None = None
    digest: bytes = b""  # of the trees whose margins these are

    @classmethod
    def of(cls, boosting: Boosting, client: str, table: NamedColumns) -> BoostedRows:
        """Return the rows of a table; raises what `NamedColumns.of` does."""
        key = table.of(boosting.row_key) if boosting.row_key else None
        keys = keys_of(client, np.arange(table.rows), key)
        held = drawn(keys, boosting.held_out, boosting.seed, seeds.UNGROWN)
        x = boosting.x(table, clipped=boosting.noised)
        return cls(boosting, x, boosting.y(table, clipped=boosting.noised), keys, held)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the values of the columns, which do not change."""
        return hashlib.sha256(np.ascontiguousarray(self.x).data).digest()

    @property
    def size(self) -> int:
        """About how many numbers of 4 bytes it takes."""
        return 2 * self.x.size + 8 * self.boosting.objective.classes * len(self.y)

    @staticmethod
    def base_size(boosting: Boosting) -> int:
        """Return how many numbers `base` has."""
        return 2 + boosting.objective.classes + len(boosting.numbers)

    def base(self) -> list[int]:
        """Return rows, sums for the base margins, values of each number, and rows held out."""
        found = [0] * self.base_size(self.boosting)
        scale = self.boosting.target.scale
        for part in blocks(len(self.y), len(found)):
            used = ~self.held[part]
            terms = self.boosting.objective.base_terms(self.y[part], scale)
            there = ~np.isnan(self.x[part][:, list(self.boosting.numbers)])
            columns = [np.ones((len(used), 1)), terms, there.astype(np.float64)]
            sums = row_sums(np.concatenate(columns, axis=1) * used[:, None], "targets")
            held = row_sums((~used).astype(np.float64)[:, None], "rows")
            found = [total + t for total, t in zip(found, [*sums, *held], strict=True)]
        return found

    def counts(self, pivots: Floats) -> Ints:
        """Return how many values are at most each pivot [pivots, 2]: column and value; int64 [pivots, 1]."""
        found = np.zeros((len(pivots), 1), np.int64)
        for j in np.unique(pivots[:, 0]).astype(np.int64).tolist():
            here = pivots[:, 0] == j
            values = np.sort(self.x[~self.held, self.boosting.numbers[j]])  # NaN come last
            found[here, 0] = np.searchsorted(values, pivots[here, 1].astype(np.float32), "right")
        return found

    def catch_up(self, order: TreeOrder) -> bool:
        """Bring the margins to the trees of a question; return whether what is known suffices for that.

        Raises:
            DataError: The digest is not that of the cuts and base margins that came with it.
        """
        after = chained(order.before, order.closed)
        if self.digest == after and self.layout is not None:
            return True
        if order.whole:
            if start_digest(order.closed.base, order.cuts) != order.before:
                raise DataError("the trees that came with a question are not those of its digest")
            self.begin(order.cuts, np.repeat(order.closed.base[None], len(self.y), axis=0))
        elif self.digest != order.before or self.layout is None:
            return False
        self.margins = order.closed.added(self.margins, self.x)
        self.derivatives, self.digest = None, after
        return True

    def begin(self, cuts: Sequence[Cuts], margins: Floats) -> None:
        """Take cuts of the columns that are numbers, and margins [rows, classes]."""
        self.layout = self.boosting.layout(list(cuts))
        self.bins = [self._bins(j, self.layout) for j in range(self.x.shape[1])]
        self.margins, self.derivatives = margins, None

    def _bins(self, column: int, layout: CellLayout) -> npt.NDArray[np.int32]:
        x = self.x[:, column]
        if layout.levels[column]:
            return np.where(np.isnan(x), MISSING, x).astype(np.int32)
        return bins_of(x, layout.cuts[column])

    def histograms(self, order: TreeOrder, size: int) -> Ints:
        """Return 0 and the cells of each node, or 1 and zeros if the trees before are not known; [size, 1].

        Raises:
            DataError: The cells are not of this number.
        """
        if not self.catch_up(order):
            return np.array([1, *[0] * (size - 1)], np.int64)[:, None]
        assert self.layout is not None
        if self.derivatives is None:
            self.derivatives = self.boosting.objective.derivatives(self.margins, self.y)
        layout, found = self.layout.chosen(order.columns), [np.zeros(1, np.int64)]
        bins = [self.bins[j] for j in order.columns]
        share, seed = self.boosting.subsample, self.boosting.seed
        used = ~self.held & drawn(self.keys, share, seed, seeds.TREE_ROWS, order.round)
        for tree, nodes, slots in asked_slots(order.growing, order.asked, self.x):
            k = int(order.growing.tree_classes[tree])
            g, h = (part[:, k] for part in self.derivatives)
            weights = [g] if self.boosting.objective.name == SQUARED else [g, h]
            found.append(summed(bins, np.where(used, slots, -1), nodes, weights, layout).ravel())
        cells = np.concatenate(found)
        _check_size(len(cells), size)
        return cells[:, None]

    def noised(self, order: TreeOrder, size: int) -> list[int] | None:
        """Return the numbers of nodes before the noise (`task.trees.noised`); None as `histograms` says 1.

        Raises:
            DataError: The numbers are not so many, or the trees are not one of each class.
        """
        if not self.catch_up(order):
            return None
        assert self.layout is not None
        if self.derivatives is None:
            self.derivatives = row_terms(self.boosting.objective, self.margins, self.y)
        found = node_totals(
            order.growing,
            order.asked,
            self.derivatives,
            self.x,
            [self.bins[j] for j in order.columns],
            self.layout.chosen(order.columns),
        )
        _check_size(len(found), size)
        numbers: list[int] = found.tolist()
        return numbers

    @staticmethod
    def losses_size() -> int:
        """Return how many numbers `losses` has."""
        return 7

    def losses(self, order: TreeOrder) -> list[int]:
        """Return 0, and rows, losses and wrong classes, of the rows that are used and of those held out.

        If the trees before are not known, 1 and zeros.
        """
        found = [0] * (self.losses_size() - 1)
        if not self.catch_up(order):
            return [1, *found]
        for part in blocks(len(self.y), len(found)):
            loss, wrong = self.boosting.objective.losses(self.margins[part], self.y[part])
            terms = np.stack([np.ones(len(loss)), loss, wrong], axis=1)
            held = self.held[part][:, None]
            sums = row_sums(np.concatenate([terms * ~held, terms * held], axis=1), "losses")
            found = [total + t for total, t in zip(found, sums, strict=True)]
        return [0, *found]


def _check_size(numbers: int, size: int) -> None:
    if numbers != size:
        raise DataError(f"expected a question for {numbers} numbers, as nodes and cuts say; got {size}")

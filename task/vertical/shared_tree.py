"""The split search of a tree over parties' columns, by the party with the labels.

It searches as over one table whose columns are those of the parties in the order of their names; of others'
columns it knows how many cuts they have, and no cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from task.errors import FieldError
from task.trees.cuts import Cuts
from task.trees.grow import GrowingTree, Shape
from task.trees.histograms import CellLayout
from task.trees.sampling import columns_drawn
from task.trees.splits import Penalties, Split, consistent
from task.vertical.open_tree import FOREIGN, Ints, number_of, numbered


@dataclass
class SharedTree:
    """A tree that grows from the histograms of all parties."""

    label: str  # the party with the labels
    cuts: Mapping[str, tuple[Cuts, ...]]  # by party and column; those of others are their numbers
    penalties: Penalties
    shape: Shape
    draw: tuple[float, int, int] = (1.0, 0, 0)  # which columns the tree may split: share, seed and round
    steps: list[list[int]] = field(default_factory=list)  # the nodes that each step has split

    @classmethod
    def of(
        cls,
        label: str,
        cuts: Sequence[Cuts],
        counts: Mapping[str, Ints],
        growth: tuple[Penalties, Shape],
        draw: tuple[float, int, int] = (1.0, 0, 0),
    ) -> SharedTree:
        """Return a new tree; `counts` has by other party how many cuts each column has."""
        others = {party: tuple(map(numbered, n.tolist())) for party, n in counts.items()}
        return cls(label, dict(sorted({**others, label: tuple(cuts)}.items())), *growth, draw)

    @cached_property
    def whose(self) -> tuple[str, ...]:
        """Whose each column is."""
        return tuple(party for party, cuts in self.cuts.items() for _ in cuts)

    @cached_property
    def layout(self) -> CellLayout:
        """The cells of all columns."""
        return _layout([cut for cuts in self.cuts.values() for cut in cuts])

    @cached_property
    def columns(self) -> list[int]:
        """The columns that the tree may split."""
        return columns_drawn(len(self.whose), *self.draw)

    @cached_property
    def tree(self) -> GrowingTree:
        """The tree as it grows."""
        return GrowingTree(self.layout.chosen(self.columns), self.columns, self.penalties, self.shape)

    def cells(self, party: str) -> int:
        """Return how many cells a party's columns have."""
        return _layout(self.cuts[party]).cells

    def joint(self, parts: Mapping[str, Ints], sums: Sequence[Ints]) -> Ints:
        """Return the parties' histograms [nodes, cells, 3] as those of one table, of the columns drawn.

        Args:
            parts: By party, its histograms of the nodes that the tree asks for.
            sums: The sums [3] of each of these nodes.

        Raises:
            FieldError: A party's cells of a column do not add up to them.
        """
        for party, part in parts.items():
            layout = _layout(self.cuts[party])
            if not all(consistent(a, s, layout) for a, s in zip(part, sums, strict=True)):
                raise FieldError(
                    "histograms", f"those of party {party} to add up to the sums of the nodes' rows", "others"
                )
        drawn = np.repeat(np.isin(np.arange(len(self.whose)), self.columns), self.layout.bins + 1)
        return np.concatenate([parts[party] for party in self.cuts], axis=1)[:, drawn]

    def take(self, histograms: Ints, counts: Sequence[int]) -> None:
        """Grow by further steps, given the histograms of so many nodes at each."""
        for part in np.split(histograms, np.cumsum(counts)[:-1]) if len(counts) else ():
            size = len(self.tree.nodes)
            self.tree.take(dict(zip(self.tree.asked, part, strict=True)))
            split = [i for i, node in enumerate(self.tree.nodes) if node.children[0] >= size]
            self.steps.append(sorted(split, key=lambda i: self.tree.nodes[i].children[0]))

    def split(self, node: int) -> Split:
        """Return the split of a node."""
        found = self.tree.nodes[node].split
        assert found is not None
        return found

    def owner(self, node: int) -> str:
        """Return whose column splits a node."""
        return self.whose[self._place(node)]

    def column(self, node: int) -> int:
        """Return which of its owner's columns splits a node."""
        return self._place(node) - self.whose.index(self.owner(node))

    def _place(self, node: int) -> int:
        """Return which of all columns splits a node."""
        return self.columns[self.split(node).column]

    def told(self, party: str, size: int) -> np.ndarray:
        """Return the message to a party about the last step's splits, int32 [size, 4].

        A row has the node, and if the split is the party's, its column, cut and default direction by number.
        """
        found = np.full((size, 4), FOREIGN, np.int32)
        for i, node in enumerate(self.steps[-1]):
            found[i, 0] = node
            if self.owner(node) == party:
                split = self.split(node)
                number = number_of(split.cut, len(self.layout.cuts[self._place(node)]))
                found[i, 1:] = self.column(node), number, split.default_left
        return found


def _layout(cuts: Sequence[Cuts]) -> CellLayout:
    return CellLayout(tuple(cuts), (0,) * len(cuts))

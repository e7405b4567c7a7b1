"""One tree as it grows: which nodes' histograms are needed, and what follows from them.

depth-wise    each level's nodes are split at once: a question a level
leaf-wise     the leaf of the largest gain is split, of several the first: a question a split

Of two children that can be split the one with fewer rows is asked for; the other's histogram is the parent's
less that one, exactly. With noise both are asked for, as a difference would have the noise of two histograms.
A child that can have no two legal children of its own is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from task.trees.ensemble import DTYPES, LEAF, TreeEnsemble
from task.trees.histograms import CellLayout
from task.trees.splits import G, H, N, Penalties, Split, best_split, consistent

Ints = npt.NDArray[np.int64]
DEPTH_WISE, LEAF_WISE = "depth-wise", "leaf-wise"


@dataclass(frozen=True)
class Shape:
    """How far a tree grows."""

    growth: str = DEPTH_WISE
    max_depth: int = 6  # 0 = any
    max_leaves: int = 31  # of leaf-wise growth


@dataclass
class GrowingNode:
    """A node of a tree that grows."""

    sums: Ints  # G, H, n
    depth: int
    histogram: Ints | None = None
    split: Split | None = None  # that is made, or could be
    children: tuple[int, int] = (LEAF, LEAF)


@dataclass
class GrowingTree:
    """A tree that grows; its columns are those of the layout, by their number among all."""

    layout: CellLayout
    columns: Sequence[int]
    penalties: Penalties
    shape: Shape
    noised: bool = False  # whether sums have noise: no histogram follows from others then
    nodes: list[GrowingNode] = field(default_factory=lambda: [GrowingNode(np.zeros(3, np.int64), 0)])
    asked: list[int] = field(default_factory=lambda: [0])  # nodes whose histograms are needed
    # By node that is asked for, its parent, and its sibling, whose histogram is derived.
    _pairs: dict[int, tuple[int, int]] = field(default_factory=dict)
    _open: list[int] = field(default_factory=list)  # leaves that have a split

    def take(self, histograms: Mapping[int, Ints]) -> None:
        """Go on with the histograms [cells, 3] of the nodes that were asked for.

        Raises:
            ValueError: One does not add up to its node's sums, or a count is below 0.
        """
        for number in self.asked:
            if number == 0 or self.noised:
                self.sum_up(number, histograms[number][: self.layout.starts[1]].sum(axis=0))
            self._search(number, histograms[number])
            parent, sibling = self._pairs.pop(number, (LEAF, LEAF))
            if sibling != LEAF:
                of_parent = self.nodes[parent].histogram
                assert of_parent is not None
                self._search(sibling, of_parent - histograms[number])
            if parent != LEAF:
                self.nodes[parent].histogram = None
        self.asked = []
        self._split()

    def sum_up(self, number: int, sums: Ints) -> None:
        """Set the sums [3] of a node; noise may have made its H less than any node's."""
        self.nodes[number].sums = np.array([sums[G], *np.maximum(sums[H:], 0)], np.int64)

    def _search(self, number: int, histogram: Ints) -> None:
        node = self.nodes[number]
        if not self.noised and not consistent(histogram, node.sums, self.layout):
            raise ValueError(number)
        node.split = best_split(histogram, node.sums, self.layout, self.penalties)
        if node.split is not None:
            node.histogram = histogram
            self._open.append(number)

    def _split(self) -> None:
        """Split open leaves until histograms are needed, or none is left."""
        while self._open and not self.asked:
            if self.shape.growth == DEPTH_WISE:
                chosen, self._open = sorted(self._open), []
            else:
                chosen = [max(self._open, key=lambda i: (self._gain(i), -i))]
                self._open.remove(chosen[0])
            for number in chosen:
                self._part(number)
            if self.shape.growth == LEAF_WISE and self.leaves >= self.shape.max_leaves:
                self._open, self.asked, self._pairs = [], [], {}

    def _gain(self, number: int) -> float:
        split = self.nodes[number].split
        assert split is not None
        return float(split.gain)

    @property
    def leaves(self) -> int:
        """How many leaves the tree has."""
        return sum(node.children[0] == LEAF for node in self.nodes)

    def _part(self, number: int) -> None:
        node = self.nodes[number]
        assert node.split is not None
        left, right = len(self.nodes), len(self.nodes) + 1
        node.children = left, right
        self.nodes += [GrowingNode(sums, node.depth + 1) for sums in (node.split.left, node.split.right)]
        can = [child for child in node.children if self._can_split(self.nodes[child])]
        if self.noised:
            node.histogram = None
            self.asked += can
            return
        if len(can) == 2:
            can.sort(key=lambda child: int(self.nodes[child].sums[N]))
            self._pairs[can[0]] = number, can[1]
        else:
            node.histogram = None
        self.asked += can[:1]

    def _can_split(self, node: GrowingNode) -> bool:
        deeper = not self.shape.max_depth or node.depth < self.shape.max_depth
        return deeper and self.penalties.splittable(node.sums)

    def tree(self, of_class: int = 0) -> TreeEnsemble:
        """Return the tree as it is, as an ensemble of one: leaves are those that are not split yet."""
        order = self.order()
        numbers = {number: i for i, number in enumerate(order)}
        found: dict[str, list[object]] = {name: [] for name in DTYPES}
        for number in order:
            node = self.nodes[number]
            split = node.split if node.children[0] != LEAF else None
            found["feature"].append(self.columns[split.column] if split else LEAF)
            found["cut"].append(split.cut if split else 0.0)
            found["default-left"].append(split.default_left if split else 0)
            for name, child in zip(("left", "right"), node.children, strict=True):
                found[name].append(numbers.get(child, LEAF))
            found["value"].append(self.penalties.output(node.sums))
            found["gain"].append(split.gain if split else 0.0)
            found["hessian"].append(float(node.sums[H]) * self.penalties.unit)
            found["rows"].append(int(node.sums[N]))
            found["category-starts"].append(len(found["categories"]))
            found["categories"] += split.categories if split else ()
        found["category-starts"].append(len(found["categories"]))
        found |= {"tree-starts": [0, len(order)], "tree-classes": [of_class], "base": [0.0]}
        arrays = {name: np.array(found[name], dtype) for name, dtype in DTYPES.items()}
        return TreeEnsemble(**{name.replace("-", "_"): a for name, a in arrays.items()})

    def order(self) -> list[int]:
        """Return the nodes breadth-first, as in `tree`."""
        found = [0]
        for number in found:  # grows
            found += [child for child in self.nodes[number].children if child != LEAF]
        return found

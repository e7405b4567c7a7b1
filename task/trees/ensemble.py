"""Decision trees as named arrays: the form of an ensemble in memory and in files, and the checks of it.

The nodes of all trees stand one after the other, breadth-first within a tree. How they travel:
`task.trees.packed`.

===================  =================  ================================================================
array                dtype, shape       meaning
===================  =================  ================================================================
``tree-starts``      int64 [trees + 1]  first node of each tree, and the number of nodes
``tree-classes``     int32 [trees]      the margin that a tree adds to, 0 if there is one
``feature``          int32 [nodes]      column that a node asks for; -1 = it is a leaf
``cut``              float32 [nodes]    a value below it goes left; 0 of leaves and of categories
``default-left``     uint8 [nodes]      where a row without a value goes: 1 = left, 0 = right
``left``, ``right``  int32 [nodes]      children, by their number within the tree; -1 of a leaf
``value``            float32 [nodes]    output, times the learning rate; of an inner node, as if a leaf
``gain``             float32 [nodes]    by how much the split lowers the loss, twice; 0 of a leaf
``hessian``          float64 [nodes]    sum of the second derivatives of the node's rows: its cover
``rows``             int64 [nodes]      training rows in the node
``category-starts``  int64 [nodes + 1]  first of a node's categories; without any its split is by `cut`
``categories``       int32              places of the categories that go right, ascending within a node
``base``             float64 [margins]  margins before the first tree
===================  =================  ================================================================

A category that a node does not list goes left, as in XGBoost. One beyond all declared ones has no place: as a
missing value it goes where these do. The lowest float32 as a cut sends every value right, the highest one
every value left, so that only rows without a value go the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.errors import DataError
from task.numerics.arrays import Arrays, NamedArrays

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]  # of columns, [rows, columns]; NaN = there is none, a category is its place
LEAF = -1
LOWEST, HIGHEST = np.finfo(np.float32).min, np.finfo(np.float32).max  # as cuts: see above
_BY_NODE: Mapping[str, type[np.generic]] = {
    "feature": np.int32,
    "cut": np.float32,
    "default-left": np.uint8,
    "left": np.int32,
    "right": np.int32,
    "value": np.float32,
    "gain": np.float32,
    "hessian": np.float64,
    "rows": np.int64,
}
DTYPES: Mapping[str, type[np.generic]] = {
    "tree-starts": np.int64,
    "tree-classes": np.int32,
    **_BY_NODE,
    "category-starts": np.int64,
    "categories": np.int32,
    "base": np.float64,
}


@dataclass(frozen=True)
class TreeEnsemble:
    """Trees whose outputs are added to margins; the fields are the arrays above."""

    tree_starts: Ints
    tree_classes: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    cut: npt.NDArray[np.float32]
    default_left: npt.NDArray[np.uint8]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    gain: npt.NDArray[np.float32]
    hessian: Floats
    rows: Ints
    category_starts: Ints
    categories: npt.NDArray[np.int32]
    base: Floats

    @classmethod
    def empty(cls, base: Floats) -> TreeEnsemble:
        """Return an ensemble without a tree, for base margins [K]."""
        found = {name: np.zeros(0, dtype) for name, dtype in DTYPES.items()}
        starts = {name: np.zeros(1, np.int64) for name in ("tree-starts", "category-starts")}
        return cls._of({**found, **starts, "base": np.asarray(base, np.float64)})

    @classmethod
    def from_arrays(cls, arrays: NamedArrays, columns: int) -> TreeEnsemble:
        """Return the trees of named arrays, of which there may be others; they split `columns` columns.

        Raises:
            DataError: An array is missing or has another form, or the nodes are not trees.
        """
        for name, dtype in DTYPES.items():
            if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1:
                got = f"{arrays[name].dtype} {arrays[name].shape}" if name in arrays else "none"
                raise DataError(f"trees: expected array {name!r}, {np.dtype(dtype)} of one axis; got {got}")
        found = cls._of(arrays)
        found._check(columns)
        return found

    @classmethod
    def _of(cls, arrays: NamedArrays) -> TreeEnsemble:
        return cls(**{name.replace("-", "_"): arrays[name] for name in DTYPES})

    def to_arrays(self) -> Arrays:
        """Return the named arrays."""
        return {name: getattr(self, name.replace("-", "_")) for name in DTYPES}

    @property
    def trees(self) -> int:
        """How many trees there are, each class's counted."""
        return len(self.tree_classes)

    @property
    def margins_per_row(self) -> int:
        """How many margins a row has: 1, or as many as classes."""
        return len(self.base)

    def span(self, tree: int) -> slice:
        """Return which nodes are those of a tree."""
        return slice(int(self.tree_starts[tree]), int(self.tree_starts[tree + 1]))

    def categories_of(self, node: int) -> npt.NDArray[np.int32]:
        """Return the categories that go right at a node, by its number among all; none if it has a cut."""
        return self.categories[self.category_starts[node] : self.category_starts[node + 1]]

    def prefix(self, trees: int) -> TreeEnsemble:
        """Return the ensemble of the first trees."""
        nodes = int(self.tree_starts[trees])
        arrays = {name: a[:nodes] if name in _BY_NODE else a for name, a in self.to_arrays().items()}
        arrays |= {
            "tree-starts": self.tree_starts[: trees + 1],
            "tree-classes": self.tree_classes[:trees],
            "category-starts": self.category_starts[: nodes + 1],
            "categories": self.categories[: self.category_starts[nodes]],
        }
        return self._of(arrays)

    def suffix(self, trees: int) -> TreeEnsemble:
        """Return the ensemble without the first trees."""
        nodes = int(self.tree_starts[trees])
        first = int(self.category_starts[nodes])
        arrays = {name: a[nodes:] if name in _BY_NODE else a for name, a in self.to_arrays().items()}
        arrays |= {
            "tree-starts": self.tree_starts[trees:] - nodes,
            "tree-classes": self.tree_classes[trees:],
            "category-starts": self.category_starts[nodes:] - first,
            "categories": self.categories[first:],
        }
        return self._of(arrays)

    def joined(self, other: TreeEnsemble) -> TreeEnsemble:
        """Return these trees with another ensemble's behind them; the base margins are these ones."""
        one, two = self.to_arrays(), other.to_arrays()
        found = {name: np.concatenate([one[name], two[name]]) for name in DTYPES if name != "base"}
        for name in ("tree-starts", "category-starts"):
            found[name] = np.concatenate([one[name], one[name][-1] + two[name][1:]])
        return self._of({**found, "base": self.base})

    def leaves(self, x: Values, tree: int) -> Ints:
        """Return the leaf of each row in a tree, by its number within it, int64 [rows]."""
        start, at = int(self.tree_starts[tree]), np.zeros(len(x), np.int64)
        rows = np.flatnonzero(self.feature[start + at] != LEAF)
        while len(rows):
            node = start + at[rows]
            x_of = x[rows, self.feature[node]]
            goes_left = np.where(np.isnan(x_of), self.default_left[node] == 1, x_of < self.cut[node])
            for n in np.unique(node[self._by_category[node]]).tolist():
                here = (node == n) & ~np.isnan(x_of)
                goes_left[here] = ~np.isin(x_of[here], self.categories_of(n))
            at[rows] = np.where(goes_left, self.left[node], self.right[node])
            rows = rows[self.feature[start + at[rows]] != LEAF]
        return at

    @cached_property
    def _by_category(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.diff(self.category_starts) > 0
        return found

    def margins(self, x: Values) -> Floats:
        """Return the margins of rows, float64 [rows, K]: the base and each tree's leaf, added in order.

        The bits are the same everywhere, and those with which the trees were grown.
        """
        return self.added(np.repeat(self.base[None], len(x), axis=0), x)

    def added(self, margins: Floats, x: Values) -> Floats:
        """Return margins [rows, K] with the trees' leaves added to them, in order."""
        found = margins.copy()
        for tree in range(self.trees):
            leaf = self.leaves(x, tree)
            found[:, self.tree_classes[tree]] += self.value[self.span(tree)][leaf].astype(np.float64)
        return found

    def importance(self, columns: int) -> dict[str, Floats]:
        """Return what each column did for the splits, float64 [columns] by XGBoost's names.

        ``weight`` counts splits; ``total_gain`` and ``total_cover`` add up gains and sums of second
        derivatives, and ``gain`` and ``cover`` are their means by split.
        """
        split = self.feature != LEAF
        of = self.feature[split]
        weight = np.bincount(of, minlength=columns).astype(np.float64)
        gain: Floats = np.bincount(of, self.gain[split].astype(np.float64), columns).astype(np.float64)
        cover: Floats = np.bincount(of, self.hessian[split], columns).astype(np.float64)
        each = np.maximum(weight, 1.0)
        return {
            "weight": weight,
            "gain": gain / each,
            "total_gain": gain,
            "cover": cover / each,
            "total_cover": cover,
        }

    def _check(self, columns: int) -> None:
        nodes, trees = len(self.feature), self.trees
        for name, a in self.to_arrays().items():
            if name in _BY_NODE and len(a) != nodes:
                raise DataError(
                    f"trees: array {name!r}: expected {nodes} nodes, as feature has; got {len(a)}"
                )
            if a.dtype.kind == "f" and not np.isfinite(a).all():
                raise DataError(f"trees: array {name!r}: expected finite numbers; got others")
        self._check_starts("tree-starts", self.tree_starts, trees, nodes)
        self._check_starts("category-starts", self.category_starts, nodes, len(self.categories))
        first = self.tree_starts[:-1]
        size = np.repeat(np.diff(self.tree_starts), np.diff(self.tree_starts))
        number = np.arange(nodes) - np.repeat(first, np.diff(self.tree_starts))
        leaf = self.feature == LEAF
        sound = {
            "tree-starts": bool((np.diff(self.tree_starts) > 0).all()),
            "base": len(self.base) > 0,
            "tree-classes": bool(((self.tree_classes >= 0) & (self.tree_classes < len(self.base))).all()),
            "feature": bool(((self.feature >= LEAF) & (self.feature < columns)).all()),
            "default-left": bool((self.default_left <= 1).all()),
            "rows": bool((self.rows >= 0).all()),
            "hessian": bool((self.hessian >= 0).all()),
            "category-starts": bool((leaf <= (np.diff(self.category_starts) == 0)).all()),
            "left": bool((self.left[leaf] == LEAF).all() and (self.right[leaf] == LEAF).all()),
        }
        for name in ("left", "right"):
            child = getattr(self, name)[~leaf]
            sound[name] = sound.get(name, True) and bool(
                ((child > number[~leaf]) & (child < size[~leaf])).all()
            )
        steps = np.diff(self.categories, prepend=np.int32(-1))
        steps[self.category_starts[:-1][self._by_category]] = 1
        sound["categories"] = bool((steps > 0).all() and (self.categories >= 0).all())
        for name, good in sound.items():
            if not good:
                raise DataError(
                    f"trees: array {name!r}: expected the nodes of trees that split {columns} columns, each "
                    "child after its parent; got others"
                )
        children = np.concatenate(
            [(getattr(self, n) + np.arange(nodes) - number)[~leaf] for n in ("left", "right")]
        )
        reached = np.bincount(children, minlength=nodes)
        reached[first] += 1
        if not (reached == 1).all():
            raise DataError("trees: expected each node to be a root or the child of one other; got others")

    @staticmethod
    def _check_starts(name: str, starts: Ints, parts: int, last: int) -> None:
        if len(starts) != parts + 1 or starts[0] != 0 or starts[-1] != last or (np.diff(starts) < 0).any():
            raise DataError(
                f"trees: array {name!r}: expected {parts + 1} numbers that rise from 0 to {last}; got others"
            )

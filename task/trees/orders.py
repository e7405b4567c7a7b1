"""What the server sends with a question about trees, as rows of float64, and how a client reads it.

A client derives its rows' margins from the trees that the server sends; it keeps them to the next question
and knows them by a digest of all trees before. The server sends the trees since a digest; a client that has
other ones says so, and the server asks again with all that there is, cuts and base margins too (`whole`).

=========================  ===========  ==============================================================
record                     columns      a row for
=========================  ===========  ==============================================================
``known``                  10           whole, the round's number, the digest before the trees, 8 words
``cuts``                   2            each cut: column, value; each base margin: -1 - k, value
``tree-sizes``             3            each tree: class, nodes, whether it is still growing
``tree-nodes``             6            each node: feature, cut, default left, left, right, value
``tree-categories``        2            each category that goes right: node among all of these, place
``asked-nodes``            2            each node to send a histogram of: growing tree, node
``drawn-columns``          1            each column that the round's trees may split
=========================  ===========  ==============================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from task.catalogue.trees import ASKED, CATEGORIES, COLUMNS, CUTS, KNOWN, NODES, SIZES
from task.errors import DataError
from task.trees.boosting import Boosting
from task.trees.cuts import Cuts
from task.trees.ensemble import DTYPES, TreeEnsemble

Floats = npt.NDArray[np.float64]
_WORDS = 8  # of 32 bits in a digest
_SENT = ("feature", "cut", "default-left", "left", "right", "value")  # of a node
WIDTHS = {KNOWN: 2 + _WORDS, CUTS: 2, SIZES: 3, NODES: len(_SENT), CATEGORIES: 2, ASKED: 2, COLUMNS: 1}


@dataclass(frozen=True)
class TreeOrder:
    """What goes with a question."""

    round: int
    before: bytes  # digest of what a client must have
    closed: TreeEnsemble  # trees since then; its base margins count if whole
    growing: TreeEnsemble  # the round's trees, one a class, as they are
    asked: Sequence[tuple[int, int]] = ()  # growing tree and node
    columns: Sequence[int] = ()
    cuts: Sequence[Cuts] = field(default_factory=tuple)  # of each column that is a number
    whole: bool = False  # whether it has all trees, the cuts and the base margins

    def rows(self) -> dict[str, Floats]:
        """Return the rows of each record, float64 [rows, width]."""
        words = np.frombuffer(self.before, "<u4").astype(np.float64)
        trees = self.closed.joined(self.growing)
        open_ = np.arange(trees.trees) >= self.closed.trees
        arrays = trees.to_arrays()
        counts = np.diff(trees.category_starts)
        found = {
            KNOWN: [[float(self.whole), float(self.round), *words]],
            CUTS: self._setup() if self.whole else [],
            SIZES: np.stack([trees.tree_classes, np.diff(trees.tree_starts), open_], axis=1),
            NODES: np.stack([arrays[name] for name in _SENT], axis=1),
            CATEGORIES: np.stack([np.repeat(np.arange(len(counts)), counts), trees.categories], axis=1),
            ASKED: self.asked,
            COLUMNS: [[j] for j in self.columns],
        }
        return {name: np.array(rows, np.float64).reshape(-1, WIDTHS[name]) for name, rows in found.items()}

    def _setup(self) -> list[list[float]]:
        cuts = [[float(j), float(cut)] for j, of in enumerate(self.cuts) for cut in of]
        return [*cuts, *([-1.0 - k, float(b)] for k, b in enumerate(self.closed.base))]


def read_order(boosting: Boosting, rows_of: Callable[[str], Floats]) -> TreeOrder:
    """Return what came with a question; `rows_of` returns a record's rows, finite float64 [rows, width].

    Raises:
        DataError: The numbers are not those of trees over the run's columns and cuts.
    """
    rows = {name: rows_of(name) for name in WIDTHS}
    if any(not (np.abs(a) < 2.0**53).all() for name, a in rows.items() if name not in (CUTS, NODES)):
        raise DataError("expected whole numbers; got others")
    (known,) = rows[KNOWN] if len(rows[KNOWN]) == 1 else [np.zeros(2 + _WORDS)]
    words, whole = known[2:], known[0] == 1.0
    if not ((words >= 0) & (words < 2.0**32)).all():
        raise DataError("expected a digest; got other numbers")
    base, cuts = _read_setup(boosting, rows[CUTS]) if whole else (np.zeros(boosting.objective.classes), [])
    trees = _read_trees(rows, base, len(boosting.variables))
    open_ = rows[SIZES][:, 2] == 1.0
    closed = int((~open_).sum())
    if open_[:closed].any():
        raise DataError("expected the trees that grow last; got them among others")
    asked = [(int(tree), int(node)) for tree, node in rows[ASKED]]
    growing = trees.suffix(closed)
    sizes = np.diff(growing.tree_starts).tolist()
    for tree, node in asked:
        if not 0 <= tree < len(sizes) or not 0 <= node < sizes[tree]:
            raise DataError("expected nodes of the trees that grow; got others")
        if growing.feature[growing.span(tree)][node] >= 0:
            raise DataError("expected nodes that are not split yet; got others")
    columns = [int(j) for j in rows[COLUMNS][:, 0]]
    if columns != sorted(set(columns) & set(range(len(boosting.variables)))):
        raise DataError("expected columns of the run in ascending order; got others")
    before = words.astype("<u4").tobytes()
    return TreeOrder(int(known[1]), before, trees.prefix(closed), growing, asked, columns, cuts, whole)


def _read_setup(boosting: Boosting, rows: Floats) -> tuple[Floats, list[Cuts]]:
    """Return base margins and cuts."""
    of, value = rows[:, 0], rows[:, 1]
    numbers, classes = len(boosting.numbers), boosting.objective.classes
    if not np.isin(of, np.arange(-classes, numbers)).all():
        raise DataError("expected cuts of the run's columns; got others")
    base = value[of < 0]
    if of[of < 0].tolist() != [-1.0 - k for k in range(classes)]:
        raise DataError(f"expected {classes} base margins; got others")
    cuts = [value[of == j].astype(np.float32) for j in range(numbers)]
    check_cuts(boosting, cuts)
    return base, cuts


def check_cuts(boosting: Boosting, cuts: Sequence[Cuts]) -> None:
    """Refuse what are no cuts of the run's columns that are numbers.

    Raises:
        DataError: They are not.
    """
    for candidates, own in zip(boosting.candidates, cuts, strict=True):
        if not (np.diff(own) > 0).all() or len(own) >= boosting.bins or not candidates.has(own).all():
            raise DataError("expected ascending cuts within the declared ranges; got others")


def _read_trees(rows: dict[str, Floats], base: Floats, columns: int) -> TreeEnsemble:
    nodes, sizes, categories = rows[NODES], rows[SIZES], rows[CATEGORIES]
    if (np.abs(nodes) > np.finfo(np.float32).max).any() or (sizes < 0).any():
        raise DataError("expected numbers of float32; got others")
    many = len(nodes)
    if not ((categories >= 0) & (categories[:, :1] < max(many, 1)) & (categories < 2**31)).all():
        raise DataError("expected categories of nodes; got others")
    counts = np.bincount(categories[:, 0].astype(np.int64), minlength=many)
    arrays = {name: np.zeros(many, dtype) for name, dtype in DTYPES.items()}
    arrays |= {name: nodes[:, k].astype(DTYPES[name]) for k, name in enumerate(_SENT)}
    arrays |= {
        "tree-starts": np.concatenate([[0], np.cumsum(sizes[:, 1])]).astype(np.int64),
        "tree-classes": sizes[:, 0].astype(np.int32),
        "category-starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "categories": categories[:, 1].astype(np.int32),
        "base": base,
    }
    return TreeEnsemble.from_arrays(arrays, columns)


def start_digest(base: Floats, cuts: Sequence[Cuts]) -> bytes:
    """Return the digest of an ensemble without trees."""
    digest = hashlib.sha256(base.tobytes())
    for own in cuts:
        digest.update(np.int64(len(own)).tobytes() + own.tobytes())
    return digest.digest()


def chained(before: bytes, trees: TreeEnsemble) -> bytes:
    """Return the digest after trees, each taken in by itself."""
    arrays = trees.to_arrays()
    for tree in range(trees.trees):
        span = trees.span(tree)
        digest = hashlib.sha256(before + np.int64(trees.tree_classes[tree]).tobytes())
        for name in _SENT:
            digest.update(arrays[name][span].tobytes())
        first, last = trees.category_starts[span.start], trees.category_starts[span.stop]
        digest.update((trees.category_starts[span.start : span.stop + 1] - first).tobytes())
        digest.update(trees.categories[first:last].tobytes())
        before = digest.digest()
    return before

"""What the server sends with a question about trees, and how a client reads it.

A client derives its rows' margins from the trees that the server sends; it keeps them to the next question
and knows them by a digest of all trees before. The server sends the trees since a digest; a client that has
other ones says so, and the server asks again with all that there is, cuts too (`whole`).

=========================  ===========  ==============================================================
record                     columns      a row for
=========================  ===========  ==============================================================
``known``                  11           whole, round, trees that no longer grow, the digest in 8 words
``cuts``                   2            each cut: column, value; only if whole
``trees``                  by levels    each node of these trees and of those that grow (`task.trees.packed`)
``base``                   classes      the margins before the first tree
``asked-nodes``            2            each node to send a histogram of: growing tree, node
``drawn-columns``          1            each column that the round's trees may split
=========================  ===========  ==============================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from task.catalogue.trees import ASKED, COLUMNS, CUTS, KNOWN
from task.catalogue.xgb import BASE, TREES
from task.errors import DataError
from task.numerics.arrays import Arrays
from task.trees.boosting import Boosting
from task.trees.cuts import Cuts
from task.trees.ensemble import TreeEnsemble
from task.trees.packed import model_down, unpacked

Floats = npt.NDArray[np.float64]
_WORDS = 8  # of 32 bits in a digest
_HASHED = ("feature", "cut", "default-left", "left", "right", "value")  # of a node: what margins follow from
_WIDTHS = {KNOWN: 3 + _WORDS, CUTS: 2, ASKED: 2, COLUMNS: 1}  # of the records of float64


@dataclass(frozen=True)
class TreeOrder:
    """What goes with a question."""

    round: int
    before: bytes  # digest of what a client must have
    closed: TreeEnsemble  # trees since then
    growing: TreeEnsemble  # the round's trees, one a class, as they are
    asked: Sequence[tuple[int, int]] = ()  # growing tree and node
    columns: Sequence[int] = ()
    cuts: Sequence[Cuts] = field(default_factory=tuple)  # of each column that is a number
    whole: bool = False  # whether it has all trees and the cuts

    def rows(self, width: int) -> Arrays:
        """Return the rows of each record, [rows, width]; `width` is that of a table of nodes."""
        words = np.frombuffer(self.before, "<u4").astype(np.float64)
        cuts = [[float(j), float(cut)] for j, of in enumerate(self.cuts) for cut in of] if self.whole else []
        found = {
            KNOWN: [[float(self.whole), float(self.round), float(self.closed.trees), *words]],
            CUTS: cuts,
            ASKED: self.asked,
            COLUMNS: [[j] for j in self.columns],
        }
        rows = {name: np.array(rows, np.float64).reshape(-1, _WIDTHS[name]) for name, rows in found.items()}
        return rows | model_down(self.closed.joined(self.growing), width)


def widths(boosting: Boosting) -> dict[str, int]:
    """Return the width of each record that goes with a question."""
    return {**_WIDTHS, TREES: boosting.width, BASE: boosting.objective.classes}


def read_order(boosting: Boosting, rows_of: Callable[[str], npt.NDArray[Any]]) -> TreeOrder:
    """Return what came with a question; `rows_of` returns a record's rows, finite numbers [rows, width].

    Raises:
        DataError: The numbers are not those of trees over the run's columns and cuts.
    """
    rows = {name: rows_of(name) for name in widths(boosting)}
    if any(not (np.abs(rows[name]) < 2.0**53).all() for name in _WIDTHS if name != CUTS):
        raise DataError("expected whole numbers; got others")
    if (len(rows[KNOWN]), len(rows[BASE])) != (1, 1):
        raise DataError("expected one digest, and the margins of one base; got others")
    trees = unpacked(rows[TREES], rows[BASE][0], len(boosting.variables))
    whole, number, closed, *words = rows[KNOWN][0].tolist()
    if not all(0 <= word < 2**32 for word in words):
        raise DataError("expected a digest; got other numbers")
    if closed not in range(trees.trees + 1):
        raise DataError(f"expected how many of {trees.trees} trees no longer grow; got another number")
    growing = trees.suffix(int(closed))
    asked = [(int(tree), int(node)) for tree, node in rows[ASKED]]
    sizes = np.diff(growing.tree_starts).tolist()
    for tree, node in asked:
        if not 0 <= tree < len(sizes) or not 0 <= node < sizes[tree]:
            raise DataError("expected nodes of the trees that grow; got others")
        if growing.feature[growing.span(tree)][node] >= 0:
            raise DataError("expected nodes that are not split yet; got others")
    columns = [int(j) for j in rows[COLUMNS][:, 0]]
    if columns != sorted(set(columns) & set(range(len(boosting.variables)))):
        raise DataError("expected columns of the run in ascending order; got others")
    cuts = _read_cuts(boosting, rows[CUTS]) if whole == 1.0 else []
    before = np.array(words, "<u4").tobytes()
    return TreeOrder(
        int(number), before, trees.prefix(int(closed)), growing, asked, columns, cuts, whole == 1.0
    )


def _read_cuts(boosting: Boosting, rows: Floats) -> list[Cuts]:
    """Return the cuts of the columns that are numbers."""
    of, value = rows[:, 0], rows[:, 1]
    if not np.isin(of, np.arange(len(boosting.numbers))).all():
        raise DataError("expected cuts of the run's columns; got others")
    cuts = [value[of == j].astype(np.float32) for j in range(len(boosting.numbers))]
    check_cuts(boosting, cuts)
    return cuts


def check_cuts(boosting: Boosting, cuts: Sequence[Cuts]) -> None:
    """Refuse what are no cuts of the run's columns that are numbers.

    Raises:
        DataError: They are not.
    """
    for candidates, own in zip(boosting.candidates, cuts, strict=True):
        if not (np.diff(own) > 0).all() or len(own) >= boosting.bins or not candidates.has(own).all():
            raise DataError("expected ascending cuts within the declared ranges; got others")


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
        for name in _HASHED:
            digest.update(arrays[name][span].tobytes())
        first, last = trees.category_starts[span.start], trees.category_starts[span.stop]
        digest.update((trees.category_starts[span.start : span.stop + 1] - first).tobytes())
        digest.update(trees.categories[first:last].tobytes())
        before = digest.digest()
    return before

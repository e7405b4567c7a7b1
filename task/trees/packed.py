"""Trees as one table of int32, a row for each node: the only form in which nodes travel.

======  ====================================  =======================================================
column  meaning                               of the array (`task.trees.ensemble`)
======  ====================================  =======================================================
0, 1    number and class of the node's tree   ``tree-starts``, ``tree-classes``; -1, 0 of a row to spare
2       column that is split                  ``feature``
3       bits of a float32                     ``cut``
4       1 = without a value to the left       ``default-left``
5, 6    children                              ``left``, ``right``
7 - 9   bits of float32                       ``value``, ``gain``, ``hessian``
from 10  32 categories each, a bit for one    ``categories``
======  ====================================  =======================================================

Counts of rows do not travel, and gains and hessians only up, from clients that grow trees: what goes down
has zeros there, since margins need neither and a node's hessian tells of the rows in it. Rows to spare stand
at the end: an upload has a fixed number of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from task.catalogue.xgb import BASE, TREES
from task.errors import DataError
from task.numerics.arrays import Arrays
from task.trees.ensemble import DTYPES, TreeEnsemble

Table = npt.NDArray[np.int32]
SPARE = -1  # tree of a row to spare
_WORD = 32
_PLAIN = {"feature": 2, "default-left": 4, "left": 5, "right": 6}
_FLOATS = {"cut": 3, "value": 7, "gain": 8, "hessian": 9}
_CATEGORIES = 10


def width_of(levels: int) -> int:
    """Return the columns of a table where no column of the data has more than so many levels.

    >>> width_of(0), width_of(32), width_of(33)
    (10, 11, 12)
    """
    return _CATEGORIES - -levels // _WORD


def model_down(trees: TreeEnsemble, width: int) -> Arrays:
    """Return the rows of the records with which a model goes down (`task.catalogue.xgb.MODEL`)."""
    bare = replace(trees, gain=np.zeros_like(trees.gain), hessian=np.zeros_like(trees.hessian))
    return {TREES: packed(bare, width), BASE: trees.base[None]}


def packed(trees: TreeEnsemble, width: int, rows: int = 0) -> Table:
    """Return the nodes of trees as a table int32 [rows, width], or with as many rows as nodes.

    Raises:
        DataError: There are more nodes than rows.
    """
    nodes, arrays = len(trees.feature), trees.to_arrays()
    if rows and nodes > rows:
        raise DataError(f"trees: expected at most {rows} nodes; got {nodes}")
    table = np.zeros((rows or nodes, width), np.int32)
    table[nodes:, 0] = SPARE
    sizes = np.diff(trees.tree_starts)
    table[:nodes, 0] = np.repeat(np.arange(trees.trees), sizes)
    table[:nodes, 1] = np.repeat(trees.tree_classes, sizes)
    for name, at in _PLAIN.items():
        table[:nodes, at] = arrays[name]
    for name, at in _FLOATS.items():
        table[:nodes, at] = arrays[name].astype(np.float32).view(np.int32)
    bits = np.zeros((nodes, (width - _CATEGORIES) * _WORD), np.uint8)
    bits[np.repeat(np.arange(nodes), np.diff(trees.category_starts)), trees.categories] = 1
    table[:nodes, _CATEGORIES:] = np.packbits(bits, axis=1, bitorder="little").view("<i4")
    return table


def unpacked(table: Table, base: npt.NDArray[np.float64], columns: int) -> TreeEnsemble:
    """Return the trees of a table, whose margins begin with `base` and which split `columns` columns.

    Raises:
        DataError: Its rows are not the nodes of trees.
    """
    tree = table[:, 0]
    nodes = int((tree != SPARE).sum())
    table, tree = table[:nodes], tree[:nodes].astype(np.int64)
    steps = np.diff(tree, prepend=-1)
    if ((steps != 0) & (steps != 1)).any() or (nodes and tree[0] != 0):
        raise DataError("trees: expected the nodes of tree 0, then those of tree 1 and so on; got others")
    first = np.flatnonzero(steps)
    classes = table[first, 1]
    if (table[:, 1] != classes[tree]).any():
        raise DataError("trees: expected one class of all nodes of a tree; got several")
    if len(first) % len(base) or (classes != np.arange(len(first)) % len(base)).any():
        raise DataError(f"trees: expected the {len(base)} classes to take turns; got others")
    words = np.ascontiguousarray(table[:, _CATEGORIES:], "<i4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    arrays: Arrays = {name: table[:, at] for name, at in _PLAIN.items()}
    arrays |= {name: np.ascontiguousarray(table[:, at]).view(np.float32) for name, at in _FLOATS.items()}
    arrays |= {
        "tree-starts": np.append(first, nodes),
        "tree-classes": classes,
        "rows": np.zeros(nodes),
        "category-starts": np.concatenate([[0], np.cumsum(bits.sum(axis=1, dtype=np.int64))]),
        "categories": np.nonzero(bits)[1],
        "base": base,
    }
    if ((arrays["default-left"] != 0) & (arrays["default-left"] != 1)).any():
        raise DataError("trees: array 'default-left': expected 0 or 1; got others")
    return TreeEnsemble.from_arrays({n: arrays[n].astype(dtype) for n, dtype in DTYPES.items()}, columns)

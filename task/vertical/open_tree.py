"""A tree that parties grow together: where the rows are in it, and what its splits are to whom.

Nodes are numbered as they are made (`task.trees.grow`): the children of a step's split nodes follow one
another, each left one before its right one. Each party sends one number for each common row: 0 = none of its
columns splits the row's node, 1 = the row goes left, 2 = right. All parties work out alike where rows are.

>>> moved(np.zeros(3, np.int64), [0], 1, np.array([[1, 2, 1], [0, 0, 0]], np.uint8)).tolist()
[1, 2, 1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from task.errors import DataError, FieldError
from task.numerics.arrays import Arrays, NamedArrays
from task.trees.cuts import Cuts
from task.trees.ensemble import HIGHEST, LOWEST, TreeEnsemble

Ints = npt.NDArray[np.int64]
Sides = npt.NDArray[np.uint8]
NONE, LEFT, RIGHT = 0, 1, 2
FOREIGN = -1  # in place of the column of a split that is another party's


def owners(place: Ints, nodes: Sequence[int], sides: Sides) -> list[int]:
    """Return whose column splits each node, by its place in `sides`.

    Args:
        place: The node of each row [M].
        nodes: The nodes that are split.
        sides: What each party sent, [parties, M].

    Raises:
        FieldError: Not all rows of a node have a direction from one party, or others have one.
    """
    said = sides != NONE
    found, good = [], bool((sides <= RIGHT).all()) and not said[:, ~np.isin(place, nodes)].any()
    for node in nodes:
        here = said[:, place == node]
        owner = int(here.any(axis=1).argmax()) if here.size else 0
        good = good and here[owner].all() and int(here.any(axis=1).sum()) == 1
        found.append(owner)
    if not good:
        raise FieldError(
            "sides",
            "directions of all rows of each split node from one party, and of no other rows",
            "others",
        )
    return found


def moved(place: Ints, nodes: Sequence[int], size: int, sides: Sides) -> Ints:
    """Return the node of each row after a step.

    Args:
        place: The node of each row before [M].
        nodes: The nodes that were split, in the order of their children.
        size: How many nodes there were before.
        sides: What each party sent, [parties, M].

    Raises:
        FieldError: As `owners`.
    """
    owners(place, nodes, sides)
    found, way = place.copy(), sides.max(axis=0, initial=NONE)
    for i, node in enumerate(nodes):
        here = place == node
        found[here] = size + 2 * i + (way[here] == RIGHT)
    return found


def sides_of(x: npt.NDArray[np.float32], cut: np.float32, default_left: bool) -> Sides:
    """Return the directions of rows by their values of the column that is split; NaN = there is none."""
    left = np.where(np.isnan(x), default_left, x < cut)
    return np.where(left, LEFT, RIGHT).astype(np.uint8)


# Cuts by number -------------------------------------------------------------------------------------


def numbered(count: int) -> Cuts:
    """Return cuts that stand for a party's own ones: each is its number."""
    return np.arange(count, dtype=np.float32)


def number_of(cut: np.float32, count: int) -> int:
    """Return the number of one of `numbered` cuts; -1 and `count` are those below and above all values."""
    return -1 if cut == np.float32(LOWEST) else count if cut == np.float32(HIGHEST) else int(cut)


def cut_of(number: int, cuts: Cuts) -> np.float32:
    """Return the cut of a number.

    Raises:
        FieldError: There is no such cut.
    """
    if not -1 <= number <= len(cuts):
        raise FieldError("splits", f"one of {len(cuts)} cuts of the column", str(number))
    ends = {-1: np.float32(LOWEST), len(cuts): np.float32(HIGHEST)}
    return ends[number] if number in ends else cuts[number]


# The tree -------------------------------------------------------------------------------------------


def joined(
    arrays: NamedArrays, columns: Sequence[str], tables: Mapping[str, NamedArrays], party: str
) -> TreeEnsemble:
    """Return the trees of all parts of a model, with each split's cut; with a patience, up to the best one.

    Args:
        arrays: The part of the party with the labels: trees, and in ``numbers`` each node's in its table.
        columns: By column of the trees, whose it is.
        tables: By other party, its table: ``tree`` and ``node`` of its splits, ``column``, ``cut`` and
            ``default-left``.
        party: The one with the labels.

    Raises:
        DataError: A party's table lacks a split, or has another column for it.
    """
    trees = TreeEnsemble.from_arrays(arrays, len(columns))
    cut = trees.cut.copy()
    rows = {
        name: {(int(t), int(n)): i for i, (t, n) in enumerate(zip(a["tree"], a["node"], strict=True))}
        for name, a in tables.items()
    }
    first = {name: columns.index(name) for name in set(columns)}
    for t in range(trees.trees):
        for node in range(trees.span(t).start, trees.span(t).stop):
            feature = int(trees.feature[node])
            if feature < 0 or (owner := columns[feature]) == party:
                continue
            at = rows.get(owner, {}).get((t, int(arrays["numbers"][node])))
            if at is None or int(tables[owner]["column"][at]) != feature - first[owner]:
                raise DataError(
                    f"party {owner}: expected split {int(arrays['numbers'][node])} of tree {t} in its table, "
                    "of the column that the party with the labels has for it; got another model's table"
                )
            cut[node] = tables[owner]["cut"][at]
    trees = replace(trees, cut=cut)
    return trees.prefix(int(arrays["best"])) if "best" in arrays else trees


def with_splits(table: NamedArrays, tree: int, splits: Arrays) -> Arrays:
    """Return a party's table with its splits of one more tree."""
    added: Arrays = {"tree": np.full(len(splits["node"]), tree, np.int64), **splits}
    return {name: np.concatenate([table[name], a]) if table else a for name, a in added.items()}

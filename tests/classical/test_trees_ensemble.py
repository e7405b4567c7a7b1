"""The format of trees: what is refused, and what it says of rows."""

from __future__ import annotations

import numpy as np
import pytest

from task.errors import DataError
from task.trees.ensemble import DTYPES, HIGHEST, TreeEnsemble

NAN = np.float32("nan")


def two_trees() -> dict[str, np.ndarray]:
    """Return a tree of columns 0 and 1, of which 1 has categories, and one that is a leaf."""
    values = {
        "tree-starts": [0, 5, 6],
        "tree-classes": [0, 0],
        "feature": [0, 1, -1, -1, -1, -1],
        "cut": [2.5, 0, 0, 0, 0, 0],
        "default-left": [1, 0, 0, 0, 0, 0],
        "left": [1, 3, -1, -1, -1, -1],
        "right": [2, 4, -1, -1, -1, -1],
        "value": [0, 0, 3, 1, 2, 10],
        "gain": [8, 4, 0, 0, 0, 0],
        "hessian": [6, 4, 2, 1, 3, 6],
        "rows": [6, 4, 2, 1, 3, 6],
        "category-starts": [0, 0, 2, 2, 2, 2, 2],
        "categories": [0, 2],
        "base": [0.5],
    }
    return {name: np.array(values[name], dtype) for name, dtype in DTYPES.items()}


def test_rows_go_by_cut_category_and_default() -> None:
    trees = TreeEnsemble.from_arrays(two_trees(), 2)
    x = np.array([[2.5, 0], [2.4, 0], [2.4, 1], [2.4, 2], [NAN, NAN], [0, NAN], [0, 7]], np.float32)
    assert trees.leaves(x, 0).tolist() == [2, 4, 3, 4, 4, 4, 3]
    assert trees.margins(x)[:, 0].tolist() == [13.5, 12.5, 11.5, 12.5, 12.5, 12.5, 11.5]


def test_parts_of_an_ensemble_are_joined_again() -> None:
    trees = TreeEnsemble.from_arrays(two_trees(), 2)
    again = trees.prefix(1).joined(trees).prefix(3)
    assert again.trees == 3
    assert again.categories_of(6).tolist() == [0, 2]
    x = np.array([[HIGHEST, 0]], np.float32)
    assert TreeEnsemble.from_arrays(again.to_arrays(), 2).margins(x).tolist() == [[0.5 + 3 + 3 + 10]]
    empty = TreeEnsemble.empty(trees.base)
    assert TreeEnsemble.from_arrays(empty.to_arrays(), 2).margins(x).tolist() == [[0.5]]
    assert {n: a.tobytes() for n, a in empty.joined(trees).to_arrays().items()} == {
        n: a.tobytes() for n, a in two_trees().items()
    }


def test_importance_is_of_the_splits() -> None:
    found = TreeEnsemble.from_arrays(two_trees(), 3).importance(3)
    assert {name: a.tolist() for name, a in found.items()} == {
        "weight": [1, 1, 0], "gain": [8, 4, 0], "total_gain": [8, 4, 0],
        "cover": [6, 4, 0], "total_cover": [6, 4, 0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("left", 0, 0),  # a node that is its own child
        ("left", 0, 5),  # beyond the tree
        ("left", 1, 4),  # twice the same child
        ("right", 0, 1),
        ("right", 2, 3),  # a leaf's
        ("feature", 0, 2),
        ("feature", 0, -2),
        ("feature", 0, -1),  # nodes that nothing leads to
        ("value", 3, np.inf),
        ("cut", 0, NAN),
        ("hessian", 0, -1),
        ("rows", 0, -1),
        ("default-left", 0, 2),
        ("tree-classes", 0, 1),
        ("tree-starts", 1, 0),
        ("tree-starts", 2, 5),
        ("category-starts", 6, 3),
        ("category-starts", 3, 1),
        ("categories", 1, 0),
        ("categories", 0, -1),
        ("base", 0, NAN),
    ],
)
def test_what_is_no_tree_is_refused(name: str, at: int, value: float) -> None:
    arrays = two_trees()
    arrays[name][at] = value
    with pytest.raises(DataError, match="trees: "):
        TreeEnsemble.from_arrays(arrays, 2)


def test_arrays_of_other_forms_are_refused() -> None:
    for name in DTYPES:
        arrays = two_trees()
        del arrays[name]
        with pytest.raises(DataError, match=f"expected array '{name}'"):
            TreeEnsemble.from_arrays(arrays, 2)
        for other in (two_trees()[name].astype(np.float16), two_trees()[name][None]):
            with pytest.raises(DataError, match=f"expected array '{name}'"):
                TreeEnsemble.from_arrays(arrays | {name: other}, 2)
    for name in ("feature", "value", "base"):
        with pytest.raises(DataError):
            TreeEnsemble.from_arrays(two_trees() | {name: two_trees()[name][:0]}, 2)

"""Trees as an XGBoost model of JSON, version 3.1 of the format and later, written and read.

Numbers in objects called ``*_param`` are strings. A leaf has children -1, and its value as its
``split_conditions``. ``base_score`` is what the objective gives for the base margins: the mean, the
probability, or of several classes the margins themselves. Categories that are listed go right, as in
`task.trees.ensemble`. What XGBoost's ``sum_hessian`` is, SHAP takes for the cover of a node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local
from task.numerics.arrays import Arrays
from task.trees.ensemble import DTYPES, LEAF, TreeEnsemble

OBJECTIVES = {  # XGBoost's names of ours
    "squared-error": "reg:squarederror",
    "logistic": "binary:logistic",
    "softmax": "multi:softprob",
}
_VERSION = [3, 1, 0]
_NO_PARENT = 2**31 - 1
_CATEGORY_CUT = 1e-45  # XGBoost's own; it has no meaning
_NUMBERS = {  # by array of ours, XGBoost's
    "feature": "split_indices",
    "default-left": "default_left",
    "left": "left_children",
    "right": "right_children",
    "gain": "loss_changes",
    "hessian": "sum_hessian",
}


def to_xgboost(
    trees: TreeEnsemble,
    objective: str,
    names: Sequence[str],
    categorical: Sequence[bool] = (),
    attributes: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return trees as a model file of XGBoost, for ``Booster.load_model``.

    Args:
        trees: An ensemble; of several classes its trees take turns, one for each class.
        objective: A key of `OBJECTIVES`.
        names: Those of the columns.
        categorical: By column whether its numbers are places of categories; () = none is.
        attributes: What else the model says of itself.
    """
    classes, d = trees.margins_per_row, str(len(names))
    several = classes if objective == "softmax" else 0
    loss: dict[str, Any] = {"reg_loss_param": {"scale_pos_weight": "1"}}
    if several:
        loss = {"softmax_multiclass_param": {"num_class": str(several)}}
    model = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(trees.trees)},
        "iteration_indptr": list(range(0, trees.trees + 1, classes)),
        "tree_info": trees.tree_classes.tolist(),
        "trees": [_written(trees, t, d) for t in range(trees.trees)],
    }
    scores = [_score(objective, float(b)) for b in trees.base]
    learner = {
        "attributes": dict(attributes),
        "feature_names": list(names),
        "feature_types": ["c" if c else "float" for c in categorical or [False] * len(names)],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"[{','.join(f'{s:.9E}' for s in scores)}]",
            "boost_from_average": "1",
            "num_class": str(several),
            "num_feature": d,
            "num_target": "1",
        },
        "objective": {"name": OBJECTIVES[objective], **loss},
    }
    return json.dumps({"learner": learner, "version": _VERSION}, allow_nan=False).encode()


def _score(objective: str, margin: float) -> float:
    return 1.0 / (1.0 + math.exp(-margin)) if objective == "logistic" else margin


def _written(trees: TreeEnsemble, tree: int, columns: str) -> dict[str, Any]:
    """Return one tree as XGBoost has it."""
    at, nodes = trees.span(tree), trees.to_arrays()
    leaf, value = trees.feature[at] == LEAF, trees.value[at].astype(np.float64)
    starts = trees.category_starts[at.start : at.stop + 1]
    sizes = np.diff(starts)
    of = np.flatnonzero(sizes)
    parents = np.full(len(leaf), _NO_PARENT, np.int64)
    for child in (trees.left[at], trees.right[at]):
        parents[child[~leaf]] = np.flatnonzero(~leaf)
    cut = np.where(sizes > 0, _CATEGORY_CUT, trees.cut[at].astype(np.float64))
    own: dict[str, npt.NDArray[Any]] = {name: nodes[ours][at] for ours, name in _NUMBERS.items()}
    own |= {
        "split_indices": np.maximum(trees.feature[at], 0),
        "base_weights": value,
        "split_conditions": np.where(leaf, value, cut),
        "split_type": (sizes > 0).astype(int),
        "parents": parents,
        "categories": trees.categories[starts[0] : starts[-1]],
        "categories_nodes": of,
        "categories_segments": starts[:-1][of] - starts[0],
        "categories_sizes": sizes[of],
    }
    return {
        **{name: a.tolist() for name, a in own.items()},
        "id": tree,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": columns,
            "num_nodes": str(len(leaf)),
            "size_leaf_vector": "1",
        },
    }


def from_xgboost(text: bytes, objective: str, columns: int, classes: int = 1, first: int = 0) -> TreeEnsemble:
    """Return the trees of an XGBoost model of JSON; ``rows`` are 0, as such a model does not have them.

    Args:
        text: What `to_xgboost` or ``Booster.save_raw("json")`` gives.
        objective: The one that it must have, a key of `OBJECTIVES`.
        columns: How many columns it must have.
        classes: How many margins a row must have.
        first: The first tree to return.

    Raises:
        DataError: It is no such model, or its nodes are not trees.
    """
    several = classes if objective == "softmax" else 0
    want = f"{OBJECTIVES[objective]}, {columns} columns, {several} classes, {classes} base scores"
    try:
        learner = json.loads(text)["learner"]
        sizes, booster = learner["learner_model_param"], learner["gradient_booster"]["model"]
        scores = [float(s) for s in sizes["base_score"].strip("[]").split(",")]
        got = (
            f"{learner['objective']['name']}, {sizes['num_feature']} columns, {sizes['num_class']} classes, "
            f"{len(scores)} base scores"
        )
        base = np.array([_margin(objective, s) for s in scores], np.float64)
        parts = [_read(tree) for tree in booster["trees"][first:]]
        arrays = _joined(parts, np.array(booster["tree_info"][first:], np.int32), base)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as err:
        raise DataError(
            "XGBoost model: expected JSON of XGBoost 3.1 or later with trees (gbtree); got "
            f"{local(repr(err)[:200])}"
        ) from None
    if got != want:
        raise DataError(f"XGBoost model: expected {want}; got {got[:400]}")
    return TreeEnsemble.from_arrays(arrays, columns)


def _margin(objective: str, score: float) -> float:
    return math.log(score / (1.0 - score)) if objective == "logistic" else score


def _read(tree: Mapping[str, Any]) -> Arrays:
    """Return the arrays of one tree by node, breadth-first, without nodes that nothing leads to.

    ``sizes`` are the numbers of the nodes' categories.
    """
    left = _integers(tree["left_children"])
    right, feature = (_integers(tree[name], len(left)) for name in ("right_children", "split_indices"))
    order, n = [0], len(left)
    for node in order:  # it grows while it is read
        children = [int(side[node]) for side in (left, right)]
        if children != [LEAF, LEAF]:
            order += children
        if len(order) > n or not 0 <= min(order[-2:]) <= max(order[-2:]) < n:
            raise DataError(f"XGBoost model: expected {n} nodes of a tree, each the child of one; got others")
    place = np.full(n + 1, LEAF, np.int64)
    place[order] = np.arange(len(order))
    leaf = left[order] == LEAF
    numbers = {name: np.array(tree[of], np.float64)[order] for name, of in _NUMBERS.items()}
    cut = np.array(tree["split_conditions"], np.float64)[order]
    weights = np.array(tree["base_weights"], np.float64)[order]
    listed = _integers(tree["categories"])
    starts, sizes = _integers(tree["categories_segments"]), _integers(tree["categories_sizes"])
    if (np.cumsum(sizes) - sizes != starts).any() or sizes.sum() != len(listed):
        raise ValueError("the categories of nodes do not follow one another")
    of = {
        int(node): np.sort(listed[start : start + size])
        for node, start, size in zip(_integers(tree["categories_nodes"]), starts, sizes, strict=True)
    }
    found = [of.get(node, listed[:0]) for node in order]
    by_category = np.array([len(categories) > 0 for categories in found])
    return {
        **numbers,
        "feature": np.where(leaf, LEAF, feature[order]),
        "cut": np.where(leaf | by_category, 0.0, cut),
        "default-left": np.where(leaf, 0, numbers["default-left"]),
        "left": np.where(leaf, LEAF, place[left[order]]),
        "right": np.where(leaf, LEAF, place[right[order]]),
        "value": np.where(leaf, cut, weights),
        "gain": np.where(leaf, 0, numbers["gain"]),
        "rows": np.zeros(len(order)),
        "sizes": np.array([len(categories) for categories in found]),
        "categories": np.concatenate(found),
    }


def _integers(values: Sequence[Any], size: int | None = None) -> npt.NDArray[np.int64]:
    """Return a list of JSON as integers; raises ValueError where it is none, or of another size."""
    if not all(type(v) is int for v in values) or size not in (None, len(values)):
        raise ValueError("a list of integers, one for each node, is missing")
    return np.array(values, np.int64)


def _joined(parts: Sequence[Arrays], classes: npt.NDArray[np.int32], base: npt.NDArray[np.float64]) -> Arrays:
    """Return the arrays of an ensemble of trees."""

    def starts(sizes: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)

    if not parts:
        return TreeEnsemble.empty(base).to_arrays()
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    whole["tree-starts"] = starts([len(part["feature"]) for part in parts])
    whole["category-starts"] = starts(whole["sizes"])
    whole |= {"tree-classes": classes, "base": base}
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused
        return {name: whole[name].astype(dtype) for name, dtype in DTYPES.items()}

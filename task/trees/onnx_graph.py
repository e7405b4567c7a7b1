"""Trees as an ONNX graph: a ``TreeEnsembleRegressor`` of ai.onnx.ml 3, and what follows from its margins.

Input ``x`` float32 [N, columns], a category as its place and NaN where there is no value; output
``probabilities`` float32: of a logistic objective or of classes [N, classes], else the numbers [N, 1].

The operator only compares numbers. So each set of categories that a node asks for is a further column: 1 for
a category that goes right, 0 for another, NaN for none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from task.trees.ensemble import LEAF, TreeEnsemble

OPSETS = {"": 17, "ai.onnx.ml": 3}
_LEAF, _BELOW = "LEAF", "BRANCH_LT"  # a value equal to the cut goes right
_HALF = 0.5  # cut of a column of 0 and 1


def to_onnx(onnx: Any, trees: TreeEnsemble, objective: str, columns: int) -> Any:
    """Return trees as an ONNX model; `onnx` is the package, `objective` as in `task.trees.xgboost_json`."""
    helper, kinds = onnx.helper, onnx.TensorProto
    sets, of_node = _sets(trees)
    nodes, constants, x = list[Any](), list[Any](), "x"
    if sets:
        nodes, constants = _indicators(onnx, sets)
        x = "columns"
    outputs = "margins" if objective != "squared-error" else "probabilities"
    made = _ensemble(trees, columns, of_node)
    nodes.append(
        helper.make_node(
            "TreeEnsembleRegressor", [x], [outputs], domain="ai.onnx.ml", aggregate_function="SUM", **made
        )
    )
    if objective == "softmax":
        nodes.append(helper.make_node("Softmax", ["margins"], ["probabilities"], axis=1))
    elif objective == "logistic":
        constants.append(onnx.numpy_helper.from_array(np.array([1], np.float32), "one"))
        nodes += [
            helper.make_node("Sigmoid", ["margins"], ["second"]),
            helper.make_node("Sub", ["one", "second"], ["first"]),
            helper.make_node("Concat", ["first", "second"], ["probabilities"], axis=1),
        ]
    width = 2 if objective == "logistic" else trees.margins_per_row
    graph = helper.make_graph(
        nodes,
        "trees",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["examples", columns])],
        [helper.make_tensor_value_info("probabilities", kinds.FLOAT, ["examples", width])],
        constants,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _sets(trees: TreeEnsemble) -> tuple[list[tuple[int, tuple[int, ...]]], dict[int, int]]:
    """Return the sets of categories, each with its column, and the set's number by node."""
    numbers, of_node = dict[tuple[int, tuple[int, ...]], int](), dict[int, int]()
    for node in np.flatnonzero(np.diff(trees.category_starts)).tolist():
        key = int(trees.feature[node]), tuple(trees.categories_of(node).tolist())
        of_node[node] = numbers.setdefault(key, len(numbers))
    return list(numbers), of_node


def _indicators(onnx: Any, sets: list[tuple[int, tuple[int, ...]]]) -> tuple[list[Any], list[Any]]:
    """Return the nodes and constants that append a column for each set to ``x``, as ``columns``."""
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    most = max(len(categories) for _, categories in sets)
    listed = np.full((1, len(sets), most), -1, np.float32)  # no category is -1
    for i, (_, categories) in enumerate(sets):
        listed[0, i, : len(categories)] = categories
    constants = [
        tensor(np.array([column for column, _ in sets], np.int64), "of"),
        tensor(listed, "listed"),
        tensor(np.array([2], np.int64), "last"),
    ]
    nodes = [
        make("Gather", ["x", "of"], ["asked"], axis=1),
        make("Unsqueeze", ["asked", "last"], ["each"]),
        make("Equal", ["each", "listed"], ["equal"]),
        make("Cast", ["equal"], ["ones"], to=onnx.TensorProto.FLOAT),
        make("ReduceMax", ["ones"], ["in"], axes=[2], keepdims=0),
        make("IsNaN", ["asked"], ["none"]),
        make("Where", ["none", "asked", "in"], ["sets"]),
        make("Concat", ["x", "sets"], ["columns"], axis=1),
    ]
    return nodes, constants


def _ensemble(trees: TreeEnsemble, columns: int, of_node: dict[int, int]) -> dict[str, Any]:
    """Return the attributes of the operator."""
    sizes = np.diff(trees.tree_starts)
    tree = np.repeat(np.arange(trees.trees), sizes)
    number = np.arange(len(trees.feature)) - np.repeat(trees.tree_starts[:-1], sizes)
    leaf, column = trees.feature == LEAF, np.maximum(trees.feature, 0).astype(np.int64)
    cut = trees.cut.copy()
    for node, i in of_node.items():
        column[node], cut[node] = columns + i, _HALF

    def children(of: npt.NDArray[np.int32]) -> list[int]:
        found: list[int] = np.where(leaf, 0, of).tolist()
        return found

    return {
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": number.tolist(),
        "nodes_featureids": column.tolist(),
        "nodes_values": cut.tolist(),
        "nodes_modes": [_LEAF if is_leaf else _BELOW for is_leaf in leaf.tolist()],
        "nodes_truenodeids": children(trees.left),
        "nodes_falsenodeids": children(trees.right),
        "nodes_missing_value_tracks_true": trees.default_left.astype(int).tolist(),
        "target_treeids": tree[leaf].tolist(),
        "target_nodeids": number[leaf].tolist(),
        "target_ids": trees.tree_classes[tree[leaf]].tolist(),
        "target_weights": trees.value[leaf].tolist(),
        "n_targets": trees.margins_per_row,
        "base_values": trees.base.astype(np.float32).tolist(),
    }

"""Trees as XGBoost's and ONNX models: both give ours margins, and what is no model is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from task.errors import DataError
from task.trees.ensemble import HIGHEST, LOWEST, TreeEnsemble
from task.trees.onnx_graph import to_onnx
from task.trees.xgboost_json import OBJECTIVES, from_xgboost, to_xgboost

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
xgboost: Any = pytest.importorskip("xgboost")

NAMES, CATEGORICAL, D = ("age", "dose", "ward", "job"), (False, False, True, True), 4
CLASSES = {"squared-error": 1, "logistic": 1, "softmax": 3}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 [300, 4] with gaps, two of them places of categories, and a score of each row."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, D)).astype(np.float32)
    x[:, 2], x[:, 3] = rng.integers(0, 8, 300), rng.integers(0, 3, 300)
    score = x[:, 0] + x[:, 2] % 3 + (x[:, 3] == 1)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x, score


X, SCORE = rows()


def matrix(y: np.ndarray | None = None) -> Any:
    types = ["c" if c else "float" for c in CATEGORICAL]
    return xgboost.DMatrix(
        X, y, feature_names=[*NAMES], feature_types=types, enable_categorical=True, nthread=1
    )


def targets(objective: str) -> np.ndarray:
    classes = {"logistic": SCORE > 1, "softmax": np.digitize(SCORE, [0.5, 1.5])}
    found: np.ndarray = classes.get(objective, SCORE).astype(np.float32)
    return found


def trained(objective: str, growth: str = "depthwise") -> Any:
    keys = {"objective": OBJECTIVES[objective], "max_depth": 4, "nthread": 1, "grow_policy": growth}
    keys |= {"num_class": 3} if objective == "softmax" else {}
    return xgboost.train(keys, matrix(targets(objective)), 10)


def loaded(text: bytes) -> Any:
    booster = xgboost.Booster()
    booster.load_model(bytearray(text))
    return booster


@pytest.mark.parametrize("growth", ["depthwise", "lossguide"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_xgboost_reads_what_it_wrote_by_way_of_our_arrays(objective: str, growth: str) -> None:
    booster, classes = trained(objective, growth), CLASSES[objective]
    trees = from_xgboost(bytes(booster.save_raw("json")), objective, D, classes)
    again = loaded(to_xgboost(trees, objective, NAMES, CATEGORICAL))
    margins = again.predict(matrix(), output_margin=True)
    assert (margins == booster.predict(matrix(), output_margin=True)).all()
    np.testing.assert_allclose(trees.margins(X).squeeze(), margins, rtol=0, atol=3e-6)
    shap = again.predict(matrix(), pred_contribs=True)
    np.testing.assert_allclose(shap.sum(axis=-1), margins, rtol=0, atol=3e-6)
    assert (shap == booster.predict(matrix(), pred_contribs=True)).all()
    rewritten = from_xgboost(bytes(again.save_raw("json")), objective, D, classes)
    assert all((a == rewritten.to_arrays()[name]).all() for name, a in trees.to_arrays().items())
    assert again.get_score(importance_type="total_gain") == pytest.approx(
        dict(zip(NAMES, trees.importance(D)["total_gain"], strict=True)), rel=1e-6
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_onnx_gives_the_same_outputs(objective: str) -> None:
    booster = trained(objective)
    trees = from_xgboost(bytes(booster.save_raw("json")), objective, D, CLASSES[objective])
    model = to_onnx(onnx, trees, objective, D)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"x": X})
    want = booster.predict(matrix()).reshape(len(X), -1)
    np.testing.assert_allclose(found[:, -want.shape[1] :], want, rtol=0, atol=3e-6)
    if objective != "squared-error":
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=1e-6)


def test_cuts_beyond_all_numbers_and_lone_leaves_mean_the_same_everywhere() -> None:
    """All present values go one way, and those that are missing the other."""
    nodes = {
        "tree-starts": [0, 3, 6, 7], "tree-classes": [0, 0, 0],
        "feature": [0, -1, -1, 0, -1, -1, -1], "cut": [LOWEST, 0, 0, HIGHEST, 0, 0, 0],
        "default-left": [1, 0, 0, 0, 0, 0, 0], "left": [1, -1, -1, 1, -1, -1, -1],
        "right": [2, -1, -1, 2, -1, -1, -1], "value": [0, 1, 2, 0, 4, 8, 16], "gain": [1, 0, 0, 1, 0, 0, 0],
        "hessian": [1] * 7, "rows": [1] * 7, "category-starts": [0] * 8, "categories": [], "base": [0.5],
    }  # fmt: skip
    like = TreeEnsemble.empty(np.zeros(1)).to_arrays()
    trees = TreeEnsemble.from_arrays({n: np.array(nodes[n], a.dtype) for n, a in like.items()}, D)
    x = np.array([[0, 0, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    want = [2 + 4 + 16.5, 1 + 8 + 16.5]
    assert trees.margins(x)[:, 0].tolist() == want
    booster = loaded(to_xgboost(trees, "squared-error", NAMES))
    assert booster.predict(xgboost.DMatrix(x, feature_names=[*NAMES])).tolist() == want
    model = to_onnx(onnx, trees, "squared-error", D)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0][:, 0].tolist() == want


def _tree(model: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = model["learner"]["gradient_booster"]["model"]["trees"][0]
    return tree


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m.pop("learner"),
        lambda m: m["learner"]["objective"].update(name="reg:tweedie"),
        lambda m: m["learner"]["learner_model_param"].update(num_feature="5"),
        lambda m: m["learner"]["learner_model_param"].update(base_score="[0.5,0.5]"),
        lambda m: m["learner"]["learner_model_param"].update(base_score="[1E400]"),
        lambda m: m["learner"]["gradient_booster"]["model"]["tree_info"].append(0),
        lambda m: m["learner"]["gradient_booster"]["model"]["tree_info"].__setitem__(0, 1),
        lambda m: _tree(m)["left_children"].__setitem__(0, 0),  # its own child
        lambda m: _tree(m)["left_children"].__setitem__(1, 0),  # a circle
        lambda m: _tree(m)["left_children"].__setitem__(0, 10**6),
        lambda m: _tree(m)["right_children"].__setitem__(0, -1),
        lambda m: _tree(m)["right_children"].__setitem__(0, 0.5),
        lambda m: _tree(m)["split_indices"].__setitem__(0, D),
        lambda m: _tree(m)["split_indices"].pop(),
        lambda m: _tree(m)["split_conditions"].__setitem__(0, 1e39),
        lambda m: _tree(m)["sum_hessian"].__setitem__(0, -1.0),
        lambda m: _tree(m)["loss_changes"].__setitem__(0, "a"),
        lambda m: _tree(m)["categories_sizes"].__setitem__(0, 10**9),
        lambda m: _tree(m)["categories_nodes"].pop(),
        lambda m: _tree(m).update(left_children=[]),
    ],
)
def test_what_is_no_model_of_the_run_is_refused(spoil: Callable[[Any], object]) -> None:
    model = json.loads(bytes(trained("logistic").save_raw("json")))
    spoil(model)
    with pytest.raises(DataError, match=r"XGBoost model|trees: "):
        from_xgboost(json.dumps(model).encode(), "logistic", D)

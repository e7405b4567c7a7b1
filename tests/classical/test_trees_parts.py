"""Parts of boosted trees: cuts, categories, samples, keys of a run, what travels, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.classical.trees import check_owner, check_pivots, order_of
from task.catalogue.trees import ASKED, COLUMNS, CUTS, HISTOGRAMS, KNOWN
from task.catalogue.xgb import BASE, TREES
from task.classical.columns import NamedColumns, Variable
from task.errors import ConfigError, DataError, RefusedError, WireError
from task.trees.boosting import boosting_of
from task.trees.cuts import Candidates, CutSearch, bins_of
from task.trees.ensemble import LEAF, TreeEnsemble
from task.trees.histograms import CellLayout
from task.trees.orders import TreeOrder, chained, read_order, start_digest
from task.trees.rows import BoostedRows
from task.trees.sampling import columns_drawn, drawn, keys_of
from task.trees.splits import Penalties, best_split
from tests.classical.support import ROWS
from tests.classical.test_trees_boosting import FRAME, RNG, parts, played
from tests.classical.trees import PlayedTrees, config_of

# --------------------------------------------------------------------------------------------- cuts


def searched(x: np.ndarray, variable: Variable, bins: int, steps: int = 0) -> tuple[np.ndarray, int]:
    """Return the cuts of one column, and how many questions they took."""
    values = x[~np.isnan(x)]
    search, asked = CutSearch.begin([Candidates(variable, steps)], [len(values)], bins), 0
    while not search.ended:
        pivots = search.asked()[:, 1].astype(np.float32)
        search = search.after(np.array([(values <= p).sum() for p in pivots], np.int64))
        asked += 1
    return search.found()[0], asked


def quantiles(x: np.ndarray, bins: int) -> np.ndarray:
    """Return the cuts by their definition: order statistics, sorted, without the least one."""
    ordered = np.sort(x[~np.isnan(x)])
    if not len(ordered):
        return ordered
    ranks = [-(-k * len(ordered) // bins) for k in range(1, bins)]
    found = np.unique(ordered[np.maximum(ranks, 1) - 1])
    return found[found > ordered[0]]


COLUMNS_OF_NUMBERS = {
    "normal": RNG.normal(0, 40, 500), "few values": RNG.integers(-3, 3, 400).astype(float),
    "one": np.full(9, 2.5), "none": np.full(3, np.nan),
    "tiny": RNG.normal(0, 1e-30, 50), "zeros": np.array([0.0, -0.0, -1.0, 1.0]),
    "gaps": np.where(RNG.random(200) < 0.3, np.nan, RNG.normal(0, 9, 200)), "two": np.array([-99.5, 99.5]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(COLUMNS_OF_NUMBERS))
@pytest.mark.parametrize("bins", [2, 7, 64])
def test_cuts_found_by_bisection_are_order_statistics(name: str, bins: int) -> None:
    x = COLUMNS_OF_NUMBERS[name].astype(np.float32).clip(-100, 100)
    found, asked = searched(x, Variable("x", "gbdt.columns", -100, 100), bins)
    np.testing.assert_array_equal(found, quantiles(x, bins))
    assert found.dtype == np.float32
    assert asked <= 32


def test_cuts_on_a_grid_are_order_statistics_rounded_up() -> None:
    x = COLUMNS_OF_NUMBERS["normal"].astype(np.float32).clip(-100, 100)
    found, asked = searched(x, Variable("x", "gbdt.columns", -100, 100), 8, steps=200)
    ends = np.arange(-100, 101).astype(np.float32)
    want = np.unique(ends[np.searchsorted(ends, quantiles(x, 8))])
    np.testing.assert_array_equal(found, want)
    assert asked == 8


def test_candidates_are_told_from_other_values() -> None:
    grid = Candidates(Variable("x", "gbdt.columns", -5, 10), 1024)
    ends = grid.at(np.arange(1025))
    assert grid.has(ends).all()
    assert not grid.has(np.nextafter(ends, np.float32(np.inf))).any()
    every = Candidates(Variable("x", "gbdt.columns", -5, 10), 0)
    np.testing.assert_array_equal(every.at(np.array([0, every.last])), np.array([-5, 10], np.float32))
    assert every.has(np.array([-5, -1e-40, 0, 9.99, 10], np.float32)).all()
    assert not every.has(np.array([-5.001, 10.001, np.inf], np.float32)).any()


# --------------------------------------------------------------------------------------- categories


def best_by_hand(place: np.ndarray, g: np.ndarray, h: np.ndarray, sets: Sequence[set[int]]) -> float:
    """Return the largest gain of sets of categories that go right, rows without a value on either side."""

    def score(rows: np.ndarray) -> float:
        return float(g[rows].sum() ** 2 / (h[rows].sum() + 1.0))

    best = 0.0
    for right in sets:
        for gone in (True, False):
            rows = np.isin(place, list(right)) | ((place < 0) & gone)
            if rows.any() and not rows.all():
                best = max(best, score(rows) + score(~rows) - score(np.ones(len(g), bool)))
    return best


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_categories_are_split_as_by_hand(levels: int, gaps: float) -> None:
    rng = np.random.default_rng(levels)
    place = np.where(rng.random(90) < gaps, -1, rng.integers(0, levels, 90))
    g = rng.integers(-50, 50, 90) + 30 * (place % 3)
    h, unit = rng.integers(1, 20, 90), 2.0**-6
    layout = CellLayout((np.zeros(0, np.float32),), (levels,))
    cells = np.zeros((levels + 1, 3), np.int64)
    np.add.at(cells, np.where(place < 0, levels, place), np.stack([g, h, np.ones(90, np.int64)], axis=1))
    split = best_split(cells, cells.sum(axis=0), layout, Penalties(unit=unit, min_child_weight=0.0))
    assert split is not None
    names = range(levels)
    if levels <= 4:
        sets = [{k} for k in names]
    else:  # the best of all divisions of sorted categories is the best of all divisions, but for the penalty
        ratio = [cells[k, 0] * unit / (cells[k, 1] * unit + 1.0) for k in names]
        order = sorted(names, key=lambda k: (ratio[k], k))
        sets = [set(order[k:]) for k in range(1, levels)]
        every = [set(of) for many in range(1, levels) for of in combinations(names, many)]
        assert split.gain <= best_by_hand(place, g * unit, h * unit, every) + 1e-4
    assert split.gain == pytest.approx(best_by_hand(place, g * unit, h * unit, sets), rel=1e-6)
    goes_right = np.isin(place, split.categories) | ((place < 0) & (not split.default_left))
    assert (
        split.right.tolist()
        == np.stack([g, h, np.ones(90, np.int64)], axis=1)[goes_right].sum(axis=0).tolist()
    )


def test_trees_of_categories_say_of_rows_what_they_were_grown_with() -> None:
    rng = np.random.default_rng(8)
    job, ward = rng.integers(0, 6, 200).astype(float), rng.integers(0, 3, 200).astype(float)
    job[rng.random(200) < 0.1] = np.nan
    frame = pd.DataFrame({"job": job, "ward": ward, "age": rng.normal(50, 9, 200)})
    frame["y"] = (job % 2 == 0) * 4.0 + (ward == 1) * 2.0 + frame.age / 50
    columns = "job(a|b|c|d|e|f), ward(n|s|w), age(0..120)"
    found = played(frame, columns, "y(0..10)", rounds=15, objective="squared-error")
    assert len(found.trees.categories)
    x = frame[["job", "ward", "age"]].to_numpy(np.float32)
    errors = found.trees.margins(x)[:, 0] - frame.y
    assert np.sqrt((errors**2).mean()) == pytest.approx(found.arrays["losses"][-1, 0], rel=1e-12)
    assert found.arrays["losses"][-1, 0] < 0.2
    assert PlayedTrees(found.config, [frame]).bits == found.bits


# ------------------------------------------------------------------------------------------ samples


def test_a_draw_is_of_the_share_and_by_tree_and_role() -> None:
    keys = keys_of("Cleveland", np.arange(20000))
    assert len(set(keys.tolist())) == 20000
    one, two = (drawn(keys, 0.3, 1, "tree-rows", tree) for tree in (1, 2))
    assert one.mean() == pytest.approx(0.3, abs=0.02)
    assert (one & two).mean() == pytest.approx(0.09, abs=0.02)
    assert drawn(keys, 1.0, 1, "tree-rows").all()
    assert not drawn(keys, 0.0, 1, "tree-rows").any()
    other = keys_of("Hungary", np.arange(20000))
    assert not set(keys.tolist()) & set(other.tolist())
    numbers = keys_of("Hungary", np.arange(3), np.array([0.0, -0.0, 1.0]))
    assert numbers[0] == numbers[1] != numbers[2]


def test_columns_are_drawn_by_tree() -> None:
    assert columns_drawn(10, 1.0, 1, 1) == list(range(10))
    found = [columns_drawn(10, 0.35, 1, tree) for tree in range(1, 30)]
    assert all(len(set(of)) == 3 and of == sorted(of) for of in found)
    assert {j for of in found for j in of} == set(range(10))
    assert len(columns_drawn(10, 0.01, 1, 1)) == 1


# --------------------------------------------------------------------------------------- run config


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"columns": "a(0..1), a(0..2)"}, "each column once"),
        ({"columns": "y(0..1)"}, "and not as the target"),
        ({"target": "y(0..9)", "objective": "logistic"}, 'two levels, or "name'),
        ({"target": "y(a|b|c)", "objective": "logistic"}, "two levels"),
        ({"target": "y(a|b)", "objective": "squared-error"}, "a number with its range"),
        ({"target": "y(0..1)", "objective": "softmax"}, "two levels or more"),
        ({"reg_lambda": 0.0, "min_child_weight": 0.0}, "divided by 0"),
        ({"max_depth": 0}, "depth-wise"),
        ({"patience": 3, "held_out": 0.0}, "gbdt.held-out"),
        ({"row_key": "id(a|b)", "subsample": 0.5}, "column of numbers"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], error: str) -> None:
    keys = {"columns": "a(0..1)", "target": "y(0..1)", **keys}
    with pytest.raises(ConfigError, match=error):
        boosting_of(config_of(**keys))


def test_the_objective_goes_by_the_target() -> None:
    found = [
        boosting_of(config_of("a(0..1)", target)).objective for target in ("y(0..5)", "y(f|m)", "y(a|b|c)")
    ]
    assert [(o.name, o.classes) for o in found] == [("squared-error", 1), ("logistic", 1), ("softmax", 3)]
    assert [o.unit_bits for o in found] == [26, 30, 30]


# ---------------------------------------------------------------------------------- what is refused

BOOSTING = boosting_of(config_of("a(0..20), job(x|y|z)", "y(0..1)", objective="logistic"))


def an_order() -> TreeOrder:
    """Return a question with a tree before, and one that grows, both with a category."""
    tree = played(FRAME.assign(job=FRAME.y + FRAME.c % 2), "a(0..20), job(x|y|z)", rounds=1).trees
    base, cuts = np.array([0.25]), [np.array([5, 10], np.float32)]
    closed = replace(tree, base=base)
    leaf = int(np.flatnonzero(tree.feature == LEAF)[0])
    return TreeOrder(2, start_digest(base, cuts), closed, tree, [(0, leaf)], [0, 1], cuts, whole=True)


def test_an_order_is_read_as_it_was_written() -> None:
    order = an_order()
    rows = order.rows(BOOSTING.width)
    again = read_order(BOOSTING, rows.__getitem__)
    written = again.rows(BOOSTING.width)
    assert {n: a.tolist() for n, a in written.items()} == {n: a.tolist() for n, a in rows.items()}
    assert chained(again.before, again.closed) == chained(order.before, order.closed)
    assert len(again.closed.categories)
    assert order.closed.gain.any()
    assert not again.closed.gain.any()  # of gains and hessians clients are not told
    assert not again.growing.hessian.any()


@pytest.mark.parametrize(
    ("record", "at", "value"),
    [
        (KNOWN, (0, 3), -1.0), (KNOWN, (0, 3), 2.0**32), (KNOWN, (0, 2), -1.0), (KNOWN, (0, 2), 0.5),
        (KNOWN, (0, 2), 3.0), (CUTS, (0, 0), 7.0), (CUTS, (0, 0), -1.0), (CUTS, (0, 1), 5.001),
        (CUTS, (1, 1), 2.0), (TREES, (0, 0), 1), (TREES, (0, 1), 1), (TREES, (0, 2), 2), (TREES, (0, 4), 2),
        (TREES, (0, 5), 0), (TREES, (0, 7), 0x7F800000), (BASE, (0, 0), np.inf), (ASKED, (0, 0), 1.0),
        (ASKED, (0, 1), 0.0), (ASKED, (0, 1), 999.0), (COLUMNS, (0, 0), 1.0), (COLUMNS, (1, 0), 2.0),
        (COLUMNS, (0, 0), 1e17),
    ],
)  # fmt: skip
def test_an_order_that_is_none_of_the_runs_is_refused(record: str, at: tuple[int, int], value: float) -> None:
    rows = an_order().rows(BOOSTING.width)
    rows[record][at] = value
    refused(rows)


@pytest.mark.parametrize("record", [KNOWN, BASE])
def test_an_order_has_one_digest_and_one_base(record: str) -> None:
    rows = an_order().rows(BOOSTING.width)
    for times in (0, 2):
        refused({**rows, record: np.repeat(rows[record], times, axis=0)})


def refused(rows: dict[str, np.ndarray]) -> None:
    """Assert that a client refuses what came with a question."""
    sent: Any = SimpleNamespace(
        arrays={name: {ROWS: a} for name, a in rows.items()}, rows={name: a.shape for name, a in rows.items()}
    )
    with pytest.raises(WireError, match="training message: "):
        order_of(BOOSTING, sent)


def test_trees_of_another_digest_are_refused() -> None:
    boosting = BOOSTING
    site = BoostedRows.of(boosting, "a", _table())
    order = an_order()
    assert site.histograms(replace(order, whole=False), 7)[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match="not those of its digest"):
        site.histograms(replace(order, before=b"x" * 32), 7)
    with pytest.raises(DataError, match="expected a question for"):
        site.histograms(order, 7)
    assert site.histograms(order, 1 + 3 * (4 + 4)).shape == (25, 1)


def _table() -> NamedColumns:
    numbers = {n: FRAME[n].to_numpy(np.float64) for n in "ay"}
    return NamedColumns(numbers, {"job": ((FRAME.c % 3).to_numpy(np.int64), ("x", "y", "z"))})


def test_counts_up_to_other_values_than_candidates_are_refused() -> None:
    ends = BOOSTING.candidates[0].at(np.arange(1025))
    check_pivots(BOOSTING, np.stack([np.zeros(1025), ends], axis=1))
    for column, value in ((0, 5.001), (1, 5.0), (-1, 5.0), (0, 1e9)):
        with pytest.raises(WireError, match="candidates"):
            check_pivots(BOOSTING, np.array([[column, value]], np.float64))


@pytest.mark.parametrize(
    ("secagg", "keys", "rows", "why"),
    [
        (False, {"min_child_count": 5}, 100, "secagg = true"),
        (True, {}, 100, "gbdt.min-child-count = 5"),
        (True, {"min_child_count": 5, "cuts": "quantiles"}, 100, 'gbdt.cuts = "grid"'),
        (True, {"min_child_count": 5}, 4, "fewer rows"),
    ],
)
def test_an_owners_bound(secagg: bool, keys: dict[str, Any], rows: int, why: str) -> None:
    boosting = boosting_of(config_of("a(0..1)", "y(0..1)", **keys))
    config = SimpleNamespace(server=SimpleNamespace(secagg=secagg))
    node: Any = SimpleNamespace(bounds=SimpleNamespace(min_examples=5), config=config)
    with pytest.raises(RefusedError, match=f"policy: min-examples = 5; .*{why}"):
        check_owner(node, boosting, rows, "ward")
    free: Any = SimpleNamespace(bounds=SimpleNamespace(min_examples=0), config=config)
    check_owner(free, boosting, rows, "ward")


def test_an_owners_bound_that_is_kept() -> None:
    boosting = boosting_of(config_of("a(0..1)", "y(0..1)", min_child_count=5))
    config = SimpleNamespace(server=SimpleNamespace(secagg=True))
    node: Any = SimpleNamespace(bounds=SimpleNamespace(min_examples=5), config=config)
    check_owner(node, boosting, 5, "ward")


def test_answers_that_do_not_add_up_end_the_run() -> None:
    config = config_of("a(0..20), b(0..20)", "y(0..1)", objective="logistic")

    class Tampered(PlayedTrees):
        def _sums(self, name: str, phase: Any) -> list[Any]:
            sent = super()._sums(name, phase)
            if name == HISTOGRAMS:
                sent[0] = sent[0].copy()
                sent[0][-1] += 1
            return sent

    with pytest.raises(DataError, match="each column's sums to add up"):
        Tampered(config, parts(FRAME, 2))


def test_bins_and_margins_agree_on_values_at_a_cut() -> None:
    x = np.array([[4.99], [5.0], [5.01], [np.nan]], np.float32)
    assert bins_of(x[:, 0], np.array([5.0], np.float32)).tolist() == [0, 1, 1, -1]
    trees = played(
        pd.DataFrame({"a": [4.0] * 9 + [5.0] * 9, "y": [0.0] * 9 + [1.0] * 9}), "a(0..20)", rounds=1
    ).trees
    assert trees.cut[0] == 5.0
    low, *high = TreeEnsemble.from_arrays(trees.to_arrays(), 1).margins(x)[:, 0]
    assert low < high[0] == high[1] == high[2]

"""Trees with noise for each row: how far a row moves sums, how wide the noise is, and what a tree costs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from task.classical.columns import NamedColumns
from task.errors import BouquetError, ConfigError
from task.privacy.accounting import epsilon, gaussian_epsilon
from task.privacy.noise_ledger import NoiseLedger
from task.privacy.row_noise import RowNoise
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.trees.boosting import boosting_of
from task.trees.ensemble import DTYPES, TreeEnsemble
from task.trees.histograms import CellLayout
from task.trees.noised import GRID, agreeing, deviation, first_margins, row_terms, sensitivity
from task.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, Objective
from task.trees.orders import TreeOrder, start_digest
from task.trees.rows import BoostedRows
from tests.classical.lost import lost_and_resumed
from tests.classical.support import at_sites
from tests.classical.test_trees_runs import FRAME, HEADER, KEYS, written
from tests.classical.trees import PlayedTrees
from tests.support.federation import in_one_process
from tests.support.grid import LocalGrid

DEPTH, Z, DELTA = 2, 0.6, 1e-4
NOISE = {"dp.noise": Z, "dp.unit": "example", "dp.delta": DELTA, "gbdt.cuts": "ranges"}
NOISED = KEYS | NOISE
PLACES = FRAME.assign(
    job=FRAME.job.map({"clerk": 0, "cook": 1, "nurse": 2}), ill=(FRAME.ill == "yes").astype(int)
)
OBJECTIVES = [Objective(SQUARED, width=3.0), Objective(LOGISTIC), Objective(SOFTMAX, 3)]
TARGETS = {SQUARED: "z(0..3)", LOGISTIC: "z(a|b)", SOFTMAX: "z(a|b|c)"}
GOLDEN = "80320df90af4590c4a180a6ea6e86ff5b111dc8dad6fc07672347c88c3ca134d"
Floats = npt.NDArray[np.float64]


def squares(terms: tuple[np.ndarray, np.ndarray]) -> Floats:
    """Return what each row's numbers add up to, squared."""
    found: Floats = sum((of / 2.0**GRID) ** 2 for of in terms).sum(axis=1)  # type: ignore[union-attr]
    return found


# ------------------------------------------------------------------------------------- sensitivity


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.name)
def test_no_row_adds_more_than_is_said_and_one_adds_it(objective: Objective) -> None:
    rng, k = np.random.default_rng(1), objective.classes
    spread = rng.choice([0.1, 1.0, 3.0, 40.0, 1e6], (20_000, 1))
    margins = np.concatenate([rng.normal(0, 1, (20_000, k)) * spread, [[1000.0, *[-1000.0] * (k - 1)]]])
    y = rng.integers(0, 4 if objective.name == SQUARED else max(k, 2), len(margins)).astype(float)
    y[-1] = 0.0 if objective.name != SOFTMAX else 1.0
    found = squares(row_terms(objective, margins, y))
    assert found.max() <= sensitivity(objective, 1)
    assert found[-1] == sensitivity(objective, 1)


def test_a_row_without_a_target_and_absurd_trees_add_nothing() -> None:
    for objective in OBJECTIVES:
        margins = np.zeros((1, objective.classes))
        assert squares(row_terms(objective, margins, np.array([np.nan]))) == 0
        if objective.name != SQUARED:
            assert squares(row_terms(objective, margins * np.nan, np.array([1.0]))) == 0


def split_once(column: int, cut: float, of_class: int = 0, classes: int = 1) -> TreeEnsemble:
    """Return a tree of a root and two leaves."""
    arrays = {name: np.zeros(3, dtype) for name, dtype in DTYPES.items()}
    arrays |= {
        "tree-starts": np.array([0, 3]), "tree-classes": np.array([of_class], np.int32),
        "category-starts": np.zeros(4, np.int64), "categories": np.zeros(0, np.int32),
        "base": np.zeros(classes),
        "feature": np.array([column, -1, -1], np.int32), "cut": np.array([cut, 0, 0], np.float32),
        "left": np.array([1, -1, -1], np.int32), "right": np.array([2, -1, -1], np.int32),
    }  # fmt: skip
    return TreeEnsemble.from_arrays(arrays, 3)


def table_of(rows: int, rng: np.random.Generator, levels: Sequence[str], blank: int = -1) -> NamedColumns:
    """Return rows with gaps and values beyond the ranges; the row `blank` has no value at all."""
    gone = np.arange(rows) == blank
    numbers = {name: rng.choice([0.0, 1, 2, 3.5, 9, -4, np.nan], rows) for name in ("v", "w")}
    job, target = rng.integers(-1, 3, rows), rng.integers(-1, len(levels) or 4, rows)
    numbers["z"] = target.astype(float)
    numbers = {name: np.where(gone, np.nan, x) for name, x in numbers.items()}
    places = {"job": (np.where(gone, -1, job), ("p", "q", "r"))}
    if levels:
        places["z"] = (np.where(gone, -1, target), tuple(levels))
    return NamedColumns(numbers, places)


@pytest.mark.parametrize("columns", [(0, 1, 2), (1,), ()], ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.name)
def test_neighbouring_tables_differ_by_the_sensitivity_at_most(
    objective: Objective, columns: Sequence[int]
) -> None:
    """By brute force over tables that differ by one row; in the worst case, at a pure leaf, by all of it."""
    levels = ("a", "b", "c")[: max(objective.classes, 2)] if objective.name != SQUARED else ()
    config = read_config(
        NOISED | {"gbdt.columns": "v(0..4), w(0..4), job(p|q)", "gbdt.target": TARGETS[objective.name]}
    )
    boosting = boosting_of(config)
    cuts = boosting.declared_cuts()
    classes, worst = objective.classes, 0.0
    trees = [split_once(0, 2.0, k, classes) for k in range(classes)]
    growing = trees[0]
    for tree in trees[1:]:
        growing = growing.joined(tree)
    asked = [(k, node) for k in range(classes) for node in (1, 2)]
    layout = boosting.layout(cuts).chosen(columns)
    size = len(asked) * 2 * (layout.cells if columns else 1)
    for base in (np.zeros(classes), np.array([60.0, -60, -60][:classes])):
        empty = TreeEnsemble.empty(base)
        order = TreeOrder(1, start_digest(base, cuts), empty, growing, asked, columns, cuts, whole=True)
        for seed in range(30):
            both = []
            for blank in (-1, 2):
                table = table_of(5, np.random.default_rng(seed), levels, blank)
                both.append(BoostedRows.of(boosting, "site", table).noised(order, size))
            worst = max(worst, sum((a - b) ** 2 for a, b in zip(*both, strict=True)) / 4**GRID)
    most = sensitivity(boosting.objective, len(columns))
    assert most == max(len(columns), 1) * {SQUARED: 1.25, LOGISTIC: 1, SOFTMAX: 2}[objective.name]
    assert 0.99 * most < worst <= most


def test_a_server_cannot_make_a_row_count_twice() -> None:
    boosting = boosting_of(read_config(NOISED))
    cuts = boosting.declared_cuts()
    base = np.zeros(1)
    twice = split_once(0, 2.0).joined(split_once(0, 3.0))
    table = NamedColumns(
        {"age": np.array([30.0]), "pulse": np.array([70.0])},
        {"job": (np.array([0]), ("clerk", "cook", "nurse")), "ill": (np.array([1]), ("no", "yes"))},
    )
    rows = BoostedRows.of(boosting, "site", table)
    for growing, asked in ((twice, [(0, 1), (1, 1)]), (split_once(0, 2.0), [(0, 1), (0, 1)])):
        empty = TreeEnsemble.empty(base)
        order = TreeOrder(1, start_digest(base, cuts), empty, growing, asked, (), cuts, whole=True)
        with pytest.raises(BouquetError, match=r"one growing tree of each class|each node once"):
            rows.noised(order, 4)


# ------------------------------------------------------------------------------------------- noise


def test_noise_has_the_variance_that_is_said() -> None:
    objective, sent = Objective(SQUARED, width=7.0), []
    for site in range(3):
        noise = RowNoise(2.0, 2, lambda client, totals: client.encode().ljust(32, b"-"))
        sent.append(noise.added(f"site-{site}", [5 << GRID] * 40_000, sensitivity(objective, 6), GRID))
    *found, variance = np.sum(sent, axis=0).tolist()
    wide = deviation(2.0, objective, 6, variance)
    assert wide == pytest.approx(2.0 * math.sqrt(7.5 * 3 / 2), rel=1e-6)
    errors = np.array(found) / 2.0**GRID - 15
    assert errors.var() == pytest.approx(wide**2, rel=4 * math.sqrt(2 / 40_000))
    assert abs(errors.mean()) < 4 * wide / 200


def test_columns_that_disagree_are_brought_to_the_nearest_that_agree() -> None:
    """Against least squares with the sums of all columns equal."""
    cuts = (np.array([1, 2], np.float32), np.array([3], np.float32))
    layout = CellLayout((*cuts, np.zeros(0, np.float32)), (0, 0, 3))
    noised = np.random.default_rng(2).integers(-(2**30), 2**30, (layout.cells, 3))
    found = agreeing(noised, layout)
    sums = np.add.reduceat(found, layout.starts[:-1], axis=0)
    assert (sums == sums[0]).all()
    parts = np.eye(3)[np.repeat(np.arange(3), layout.bins + 1)].T  # [columns, cells]
    bound = parts[1:] - parts[0]
    best = noised - bound.T @ np.linalg.solve(bound @ bound.T, bound @ noised)
    assert np.abs(found - best).max() < 2


def test_first_margins_tell_nothing() -> None:
    target = boosting_of(read_config(NOISED | {"gbdt.target": "ill(2..8)"})).target
    assert first_margins(Objective(SQUARED, width=6.0), target).tolist() == [5.0]
    assert first_margins(Objective(SOFTMAX, 3), target).tolist() == [0.0] * 3


# -------------------------------------------------------------------------------------------- runs


def wards(count: int = 3) -> list[pd.DataFrame]:
    parts = np.array_split(np.arange(len(FRAME)), count)
    found = [FRAME.iloc[rows] for rows in parts]
    return [frame.set_axis(HEADER, axis=1) for frame in found]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of rounds with a tree."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][1:]


def ledger_of(folder: Path, site: int = 0) -> NoiseLedger:
    return NoiseLedger(folder / f"state-{site}" / "noise.ledger.jsonl")


def test_a_tree_costs_what_an_accountant_says_and_the_node_pays_it(tmp_path: Path) -> None:
    """A tree of depth 2 has three questions: two of histograms, one of leaves."""
    folder = at_sites(tmp_path, wards(), NOISED, **{"max-epsilon": 99.0, "delta": DELTA})
    rows = rounds_of(folder)
    costs = [gaussian_epsilon(math.sqrt((DEPTH + 1) * t) / Z, DELTA) for t in range(1, len(rows) + 2)]
    assert [row["epsilon"] for row in rows] == costs[:-1]
    assert [row["epsilon_next"] for row in rows] == costs[1:]
    assert costs[0] == pytest.approx(epsilon([(1.0, Z)] * (DEPTH + 1), DELTA), rel=1e-2)
    spent = ledger_of(tmp_path).spent()
    assert len(spent.orders) == (DEPTH + 1) * len(rows)
    assert spent.epsilon(DELTA) == pytest.approx(costs[-2], rel=1e-2)
    result = json.loads((folder / "result.json").read_text())
    assert result["privacy"]["epsilon"] == costs[-2]
    assert result["table"]["trees"] == len(rows)
    assert not {"rows", "loss", "losses"} & set(result["table"])


class Watched(LocalGrid):
    """Keeps what nodes answer."""

    kinds: set[str]
    cells: list[np.ndarray]

    def push_messages(self, messages: Any) -> Any:
        sent = list(messages)
        type(self).kinds.update(m.metadata.message_type for m in sent)
        return super().push_messages(sent)

    def pull_messages(self, ids: Any) -> Any:
        replies = list(super().pull_messages(ids))
        for reply in replies:
            if reply.has_content() and "histograms" in reply.content:
                type(self).cells.append(reply.content["histograms"]["rows"].numpy())  # type: ignore[index]
        return replies


def test_cells_without_rows_have_noise_and_nothing_else_is_asked(tmp_path: Path) -> None:
    Watched.kinds, Watched.cells = set(), []
    one = wards(1)[0].iloc[:1]
    at_sites(tmp_path, [one], NOISED, least=0, grid_type=Watched)
    assert {kind for kind in Watched.kinds if not kind.startswith("query")} == {"train"}
    noise = np.concatenate([cells[1:-1, 0] for cells in Watched.cells if len(cells) > 10])
    assert (noise != 0).all()
    assert noise.std() / 2.0**GRID == pytest.approx(Z * math.sqrt(3), rel=0.35)  # of three columns


def test_masked_noise_is_shared_by_the_nodes(tmp_path: Path) -> None:
    policy = {"secagg-unverified": True, "max-epsilon": 99.0, "delta": DELTA}
    folder = at_sites(tmp_path, wards(), NOISED | {"secagg": True, "num-server-rounds": 1}, **policy)
    assert rounds_of(folder)[-1]["epsilon"] == gaussian_epsilon(math.sqrt(3) / Z, DELTA)
    assert len(ledger_of(tmp_path, 2).spent().orders) == 3
    lines = (folder / "privacy" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 1, 1]


@pytest.mark.parametrize("masked", [False, True])
def test_a_resumed_run_goes_on_with_its_ledger(tmp_path: Path, masked: bool) -> None:
    """In clear a repeated question has its old answer; masked, it has other noise, which is paid for."""
    keys = written(tmp_path, 3) | NOISE | ({"secagg": True, "num-server-rounds": 2} if masked else {})
    folder = lost_and_resumed(keys, tmp_path, 5, 2)
    rows = rounds_of(folder)
    asked = (DEPTH + 1) * len(rows)
    assert rows[-1]["epsilon"] == gaussian_epsilon(math.sqrt(asked + 2 * masked) / Z, DELTA)


def test_a_run_ends_before_its_budget_does(tmp_path: Path) -> None:
    limit = gaussian_epsilon(math.sqrt(7) / Z, DELTA)  # of two trees and a question
    keys = written(tmp_path, 2) | NOISE | {"dp.max-epsilon": limit, "run-name": "budget"}
    folder = in_one_process(keys, tmp_path, nodes=2)
    rows = rounds_of(folder)
    assert len(rows) == 2
    assert rows[-1]["epsilon"] <= limit < rows[-1]["epsilon_next"]
    assert json.loads((folder / "result.json").read_text())["ended_by"] == "dp.max-epsilon"


def test_with_hardly_any_noise_trees_are_as_good_as_exact_ones(tmp_path: Path) -> None:
    """Noise of 1/256 a cell: accuracy by the margins, on the rows themselves."""
    keys = written(tmp_path, 2) | NOISE | {"dp.noise": 1 / 256, "run-name": "clear", "num-server-rounds": 8}
    folder = in_one_process(keys, tmp_path, nodes=2)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["columns"][0]["total_gain"] == max(row["total_gain"] for row in table["columns"])
    _, arrays = read_model(folder / "model.safetensors")
    x = PLACES[["age", "job", "pulse"]]
    margins = TreeEnsemble.from_arrays(arrays, 3).margins(x.to_numpy(np.float32))[:, 0]
    exact = PlayedTrees(
        read_config(KEYS | {"gbdt.cuts": "ranges", "num-server-rounds": 8}),
        [PLACES],
    )
    ill = (FRAME.ill == "yes").to_numpy()
    right = [((of > 0) == ill).mean() for of in (margins, exact.trees.margins(x.to_numpy(np.float32))[:, 0])]
    assert right[0] > right[1] - 0.05 > 0.75
    assert not arrays["rows"].any()


def test_without_noise_the_trees_are_what_they_were() -> None:
    """Of `KEYS` and `FRAME`, as the version before noise grew them."""
    bits = PlayedTrees(read_config(KEYS), [PLACES]).bits
    assert hashlib.sha256(b"".join(bits[n] for n in sorted(bits))).hexdigest() == GOLDEN


def test_an_owner_with_a_bound_needs_a_budget_instead(tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match=r"min-examples = 5; with noise.*max-epsilon"):
        at_sites(tmp_path, wards(1), NOISED)
    with pytest.raises(BouquetError, match=r"max-epsilon = 5; with this epsilon would be"):
        at_sites(tmp_path, wards(1), NOISED, **{"max-epsilon": 5.0, "delta": DELTA})


REFUSED = [
    ({"gbdt.cuts": "grid"}, 'gbdt.cuts": expected "ranges".*quantiles follow from rows'),
    ({"gbdt.growth": "leaf-wise"}, 'gbdt.growth": expected "depth-wise"'),
    ({"gbdt.min-child-count": 5}, "rows are not counted"),
    ({"gbdt.subsample": 0.5}, "public seed"),
    ({"gbdt.held-out": 0.2}, "losses of rows are not protected"),
    ({"dp.max-epsilon": 1.0}, 'dp.max-epsilon": expected at least .* which the 3 questions'),
    ({"dp.noise": 1e-4}, "below which it protects no one"),
    ({"secagg": True, "dp.colluding": 3}, "dp.colluding"),
    ({"dp.unit": "client"}, "dp.noise"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "why"), REFUSED, ids=str)
def test_what_would_tell_of_rows_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        boosting_of(read_config(NOISED | more))

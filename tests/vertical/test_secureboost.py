"""SecureBoost: the trees of one table, encrypted or not; restarts, repeats; what leaves a party, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.vertical.tree_columns import quantiles
from task.resolve.read import read_config
from task.trees.boosting import growth_of
from task.trees.cuts import bins_of
from task.trees.ensemble import Ensemble
from task.trees.grow import GrowingTree
from task.trees.histograms import Layout, summed
from task.trees.objectives import LOGISTIC, Objective
from task.vertical import open_tree
from task.vertical.rows import in_common_order, num_tests
from tests.support import parties
from tests.support.federation import Played

SLICES = {"ada": slice(2, 4), "bob": slice(0, 2), "cyd": slice(4, 6)}  # bob has the labels
LABEL = "bob"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def config(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algorithm": "secureboost", "dataset": "csv", "num-classes": 2, "device": "cpu",
        "num-server-rounds": 3, "local-test-fraction": 0.25, "seed": 3, "roll-call-timeout": 1.0,
        "vertical.key-bits": 0, "gbdt.max-depth": 3, "gbdt.max-bins": 8,
    }  # fmt: skip
    return base | {k.replace("__", ".").replace("_", "-"): v for k, v in more.items()}


def table(rows: int = 120) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, columns with gaps and ties [rows, 6], and classes."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    x[:, 1] = np.rint(x[:, 1])
    y = (x @ np.array([1, 1, -1, 0.5, 0, 2]) + rng.logistic(size=rows) > 0).astype(int)
    x[:, 5] = x[:, 2]  # the same column at two parties: the former one in their order wins
    x[rng.random(x.shape) < 0.15] = np.nan
    return [f"Zoë {i}" for i in range(rows)], x, y


def write(path: Path, ids: list[str], x: np.ndarray, y: np.ndarray | None) -> Path:
    """Write a party's file, whose cells are empty where values are missing."""
    head = ["who:id", *(f"x{j}:number" for j in range(x.shape[1])), *(["label"] if y is not None else [])]
    lines = [",".join(head)]
    for i, row in enumerate(x):
        cells = ["" if np.isnan(v) else repr(float(v)) for v in row]
        lines.append(",".join([ids[i], *cells, *([str(y[i])] if y is not None else [])]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def owners(folder: Path, names: tuple[str, ...] = tuple(SLICES), rows: int = 120) -> dict[str, Path]:
    ids, x, y = table(rows)
    return {
        name: write(folder / f"{name}.csv", ids, x[:, SLICES[name]], y if name == LABEL else None)
        for name in names
    }


def pooled(keys: Mapping[str, Any], names: tuple[str, ...] = tuple(SLICES), rows: int = 120) -> Ensemble:
    """Return the trees of all columns in one table, in the order of the parties' names."""
    settings, (ids, x, y) = read_config(keys), table(rows)
    train = in_common_order(ids, settings.seeds.data)[num_tests(len(ids), settings) :]
    x = np.concatenate([x[train][:, SLICES[name]] for name in names], axis=1)
    y = y[train].astype(np.float64)
    objective = Objective(LOGISTIC)
    trees = Ensemble.empty(objective.base([int(y.sum()) << 51], len(y), 1.0))
    cuts = tuple(quantiles(column, settings.gbdt.max_bins) for column in x.T)
    layout, bins = Layout(cuts, (0,) * len(cuts)), [bins_of(c, of) for c, of in zip(x.T, cuts, strict=True)]
    penalties, shape = growth_of(settings.gbdt, objective.unit)
    for _ in range(settings.server.num_server_rounds):
        g, h = (a[:, 0] for a in objective.derivatives(trees.margins(x), y))
        tree = GrowingTree(layout, range(len(cuts)), penalties, shape)
        while tree.asked:
            place = tree.tree()
            of = np.array(tree.order())[place.leaves(x, 0)]
            slots = open_tree.slots(of, tree.asked)
            sums = summed(bins, slots, len(tree.asked), [g, h], layout)
            tree.take(dict(zip(tree.asked, sums, strict=True)))
        trees = trees.joined(tree.tree())
    return trees


def found(keys: Mapping[str, Any], played: Played, files: Mapping[str, Path]) -> Ensemble:
    """Return the trees of the parts that the parties keep."""
    parts = {name: parties.part_of(keys, played, name, files[name]) for name in sorted(files)}
    whose = [name for name in sorted(files) for _ in range(2)]
    own = {name: part for name, part in parts.items() if name != LABEL}
    return open_tree.joined(parts[LABEL], whose, own, LABEL)


def same(one: Ensemble, other: Ensemble) -> bool:
    """Return whether two ensembles have the same arrays, to the bit."""
    theirs = other.to_arrays()
    return all(
        a.dtype == theirs[n].dtype and a.tobytes() == theirs[n].tobytes() for n, a in one.to_arrays().items()
    )


# ------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("names", [("ada", "bob", "cyd"), ("bob", "cyd"), ("bob",)], ids=len)
@pytest.mark.parametrize("growth", [{}, {"gbdt__growth": "leaf-wise", "gbdt__max_leaves": 6}], ids=len)
def test_the_trees_are_those_of_one_table_to_the_bit(
    names: tuple[str, ...], growth: dict[str, Any], tmp_path: Path
) -> None:
    keys, files = config(**growth), owners(tmp_path, names)
    played = parties.play_own(files, keys)
    want = pooled(keys, names)
    trees = found(keys, played, files)
    assert same(trees, want)
    assert len(want.feature) > 20
    split_by = {int(f) // 2 for f in want.feature if f >= 0}
    assert split_by == set(range(len(names)))  # each party's columns split nodes

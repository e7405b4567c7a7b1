"""Regressions as runs: one hash for any number of nodes, masked or not, with a lost node; and policy."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.app import make_app
from client_app.classical.questions import sent, table_of
from client_app.classical.regression import check_cells, check_size
from server_app.app import run as run_server
from strategies.rules.regression import hashed, nothing
from task.classical.families import local_terms
from task.classical.fit import model_of, rows_of
from task.config.read import as_run_config
from task.datasets import load_owned
from task.errors import BouquetError, RefusedError, WireError
from task.resolve.read import read_config
from task.wire.messages import TrainOrder
from tests.classical.lost import lost_and_resumed
from tests.classical.support import Played as InMemory
from tests.classical.support import config_of, rows_in
from tests.support.federation import in_one_process, play
from tests.support.grid import LocalGrid

RNG = np.random.default_rng(11)
N = 240
COLUMNS = "age(0..100), job(nurse|clerk|cook)"


def people() -> pd.DataFrame:
    """Return a table whose numbers float32 has not."""
    age, job = RNG.uniform(18, 90, N).round(3), RNG.choice(["clerk", "cook", "nurse"], N)
    chance = 1 / (1 + np.exp(-(age - 54) / 20 - (job == "nurse")))
    return pd.DataFrame({"age": age, "job": job, "ill": (RNG.random(N) < chance).astype(int)})


FRAME = people()
HEADER = ["age:number", "job:category(clerk|cook|nurse)", "ill:target"]
KEYS = {
    "algorithm": "glm", "dataset": "csv", "partition": "natural", "num-clients": 0,
    "num-server-rounds": 12, "regression.columns": COLUMNS, "regression.target": "ill(0..1)",
    "regression.family": "binomial",
}  # fmt: skip


@pytest.fixture(scope="module")
def pooled() -> InMemory:
    """The same regression on the pooled rows, with dummies made here."""
    frame = FRAME.assign(cook=(FRAME.job == "cook") * 1.0, nurse=(FRAME.job == "nurse") * 1.0)
    config = config_of("glm", "age(0..100), cook(0..1), nurse(0..1)", "ill(0..1)", family="binomial")
    return InMemory(config, [frame.drop(columns="job")])


def written(folder: Path, owners: int) -> dict[str, Any]:
    """Write the table with so many owners; return a run's keys."""
    path = folder / f"people-{owners}.csv"
    FRAME.assign(client=[f"site-{i % owners}" for i in range(N)]).to_csv(
        path, index=False, header=[*HEADER, "client"]
    )
    return KEYS | {"data-path": str(path)}


@pytest.mark.parametrize(
    ("owners", "nodes", "more"),
    [(1, 1, {}), (3, 3, {}), (10, 10, {}), (3, 3, {"secagg": True}), (10, 4, {"secagg": True})],
)
def test_a_run_is_the_pooled_regression(
    owners: int, nodes: int, more: dict[str, Any], tmp_path: Path, pooled: InMemory
) -> None:
    played = play(written(tmp_path, owners) | more, nodes=nodes)
    found = played.arrays(len(played.rows) - 1)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in pooled.arrays.items()}
    assert len(played.rows) < 12
    assert played.rows[1]["loss"] is None


def test_a_lost_answer_ends_the_run_which_resumes(tmp_path: Path, pooled: InMemory) -> None:
    """A round that was skipped while a node is away would use up the rounds."""

    folder = lost_and_resumed(written(tmp_path, 3), tmp_path)
    assert json.loads((folder / "result.json").read_text())["table"]["sums_sha256"] == pooled.table.digest


def test_a_folder_has_the_table_and_a_resumed_run_ends_alike(tmp_path: Path, pooled: InMemory) -> None:
    keys = written(tmp_path, 3)
    folder = in_one_process(keys | {"run-name": "whole"}, tmp_path, nodes=3)
    result = json.loads((folder / "result.json").read_text())
    assert result["table"]["sums_sha256"] == pooled.table.digest
    assert (folder / "table.csv").read_text() == pooled.table.csv().replace("cook", "job=cook").replace(
        "nurse", "job=nurse"
    )
    assert "job=cook" in (folder / "table.tex").read_text()
    short = keys | {"run-name": "short", "num-server-rounds": 2}
    cut = in_one_process(short, tmp_path, nodes=3)
    assert json.loads((cut / "result.json").read_text())["table"] == {"converged": False}
    assert not (cut / "table.csv").exists()
    again = in_one_process(short | {"num-server-rounds": 12, "resume": True}, tmp_path, nodes=3)
    assert (again / "table.csv").read_text() == (folder / "table.csv").read_text()
    assert json.loads((again / "result.json").read_text())["table"] == result["table"]


# ------------------------------------------------------------------------------------------ policy


def sites(
    folder: Path, frames: list[pd.DataFrame], least: int, header: list[str] = HEADER
) -> list[dict[str, Any]]:
    """Write a file for each node; return node configs whose owner sets a bound."""
    found = []
    for i, frame in enumerate(frames):
        frame.to_csv(folder / f"ward-{i}.csv", index=False, header=header)
        where = {"data-path": str(folder / f"ward-{i}.csv"), "client-name": f"ward-{i}"}
        where |= {"cache-dir": str(folder / "cache"), "secagg-unverified": True}
        found.append(where | {"min-examples": least})
    return found


def at_sites(
    folder: Path,
    frames: list[pd.DataFrame],
    least: int,
    keys: dict[str, Any] = KEYS,
    header: list[str] = HEADER,
    **more: Any,
) -> Path:
    keys = {k: v for k, v in keys.items() if k != "partition"} | more
    config = read_config(keys | {"runs-dir": str(folder / "runs"), "min-nodes": len(frames)})
    grid = LocalGrid(make_app(), sites(folder, frames, least, header), as_run_config(config))
    return run_server(grid, config)


def test_nodes_with_their_own_files_give_the_same(tmp_path: Path, pooled: InMemory) -> None:
    parts = [FRAME.iloc[rows] for rows in np.array_split(np.arange(N), 3)]
    folder = at_sites(tmp_path, parts, 5)
    assert json.loads((folder / "result.json").read_text())["table"]["sums_sha256"] == pooled.table.digest


def test_a_small_cell_is_refused_by_its_site_and_the_run_says_so(tmp_path: Path) -> None:
    parts = [FRAME.iloc[rows] for rows in np.array_split(np.arange(N), 3)]
    cooks = parts[1].index[parts[1].job == "cook"]
    parts[1] = parts[1].drop(cooks[3:])  # three cooks are left
    with pytest.raises(BouquetError, match="column job=cook would have a cell of fewer persons") as err:
        at_sites(tmp_path, parts, 5)
    assert "owner does not allow" in str(err.value)
    assert " 3 " not in str(err.value).partition("job=cook")[2]


CELLS: list[tuple[str, Callable[[pd.DataFrame], pd.DataFrame], str]] = [
    ("one level", lambda f: f.drop(f.index[f.job == "cook"][2:]), "job=cook would have"),
    ("a pair", lambda f: f.drop(f.index[(f.job == "cook") & (f.ill == 1)][1:]), "job=cook and ill together"),
    ("an empty pair", lambda f: f[(f.job != "cook") | (f.ill == 0)], "job=cook and ill together"),
    ("few rows", lambda f: f.iloc[:35], "a design of 4 columns needs 40 rows"),
]


@pytest.mark.parametrize(("change", "why"), [c[1:] for c in CELLS], ids=[c[0] for c in CELLS])
def test_each_rule_on_cells_refuses(
    change: Callable[[pd.DataFrame], pd.DataFrame], why: str, tmp_path: Path
) -> None:
    change(FRAME).to_csv(tmp_path / "a.csv", index=False, header=HEADER)
    config = read_config(KEYS | {"partition": "iid", "num-clients": 10})
    model, data = model_of(config), config.data
    data = type(data)(**{**vars(data), "cache_dir": str(tmp_path / "cache")})
    dataset = load_owned(data, str(tmp_path / "a.csv"), "ward", 1)
    rows = rows_of(model, table_of(dataset, np.arange(len(dataset.y))))
    with pytest.raises(RefusedError, match=why):
        check_cells(model.design, rows, 5, "ward")


def test_coefficients_that_pick_a_few_rows_are_refused() -> None:
    """With 1000 (age - 50) only rows at 50 keep weight; with zeros all have the same."""
    model = model_of(config_of("glm", "age(0..100)", "ill(0..1)", family="binomial"))
    frame = pd.DataFrame({"age": np.linspace(1, 99, 99), "ill": [0, 1, 0] * 33})
    rows = rows_in(model, frame)

    def checked(*beta: float) -> None:
        check_size(local_terms("binomial", rows, rows.linear(beta)).w, 5, "ward", "these coefficients")

    checked(0.0, 0.0)
    with pytest.raises(RefusedError, match="fewer rows of client ward would have most of the weight"):
        checked(-50_000.0, 1000.0)


@pytest.mark.parametrize("beta", [[0.0], [math.nan] * 4, [math.inf] * 4], ids=str)
def test_a_hostile_order_is_refused(beta: list[float]) -> None:
    order = TrainOrder(1, {"coefficients": {"rows": np.array(beta)[:, None]}}, {}, ("ward",), (0,), "run")
    with pytest.raises(WireError, match="expected 4 x 1 finite numbers of 'coefficients'"):
        sent(order, "coefficients", 4)


def test_the_hash_is_of_the_integers_in_their_order() -> None:
    one = hashed(hashed(nothing(2), [1, -2]), [3])["sums-sha256"].tobytes()
    first = hashlib.sha256(bytes(32) + b"1,-2").digest()
    assert one == hashlib.sha256(first + b"3").digest()

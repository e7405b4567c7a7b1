"""Boosted trees as runs: one hash for any number of nodes, masked or not, with a lost node; and policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.classical import trees as client_trees
from server_app.results.trees import tree_lines, tree_plots
from strategies.rules.gbdt import improved
from task.errors import BouquetError
from task.numerics.arrays import NamedArrays
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.trees.ensemble import TreeEnsemble
from tests.classical.lost import lost_and_resumed
from tests.classical.test_runs import at_sites
from tests.classical.trees import PlayedTrees
from tests.support.federation import in_one_process, play

RNG = np.random.default_rng(21)
N, ROUNDS = 150, 3
AGE, JOB = RNG.uniform(18, 90, N).round(1), RNG.choice(["clerk", "cook", "nurse"], N)
PULSE = np.where(RNG.random(N) < 0.15, np.nan, RNG.normal(70, 9, N).round())
ILL = (AGE + 9 * (JOB == "nurse") + RNG.normal(0, 9, N) > 57).astype(int)
FRAME = pd.DataFrame({"age": AGE, "job": JOB, "pulse": PULSE, "ill": np.where(ILL, "yes", "no")})
HEADER = ["age:number", "job:category(clerk|cook|nurse)", "pulse:number", "ill:target(no|yes)"]
KEYS: dict[str, Any] = {
    "algorithm": "gbdt", "dataset": "csv", "partition": "natural", "num-clients": 0,
    "num-server-rounds": ROUNDS,
    "gbdt.columns": "age(0..100), job(clerk|cook|nurse), pulse(30..200)", "gbdt.target": "ill(no|yes)",
    "gbdt.max-depth": 2, "gbdt.max-bins": 8,
}  # fmt: skip


def written(folder: Path, owners: int) -> dict[str, Any]:
    """Write the table with so many owners; return a run's keys."""
    path = folder / f"people-{owners}.csv"
    FRAME.assign(client=[f"site-{i % owners}" for i in range(N)]).to_csv(
        path, index=False, header=[*HEADER, "client"]
    )
    return KEYS | {"data-path": str(path)}


@pytest.fixture(scope="module")
def pooled() -> PlayedTrees:
    """The same trees of the pooled rows, in memory."""
    frame = FRAME.assign(
        job=FRAME.job.map({"clerk": 0, "cook": 1, "nurse": 2}), ill=(FRAME.ill == "yes").astype(int)
    )
    return PlayedTrees(read_config(KEYS), [frame])


def bits(arrays: NamedArrays) -> dict[str, bytes]:
    return {name: a.tobytes() for name, a in arrays.items()}


@pytest.mark.parametrize(
    ("owners", "nodes", "more"),
    [(1, 1, {}), (10, 10, {}), (3, 3, {"secagg": True}), (10, 4, {"secagg": True})],
)
def test_a_run_is_the_pooled_one(
    owners: int, nodes: int, more: dict[str, Any], tmp_path: Path, pooled: PlayedTrees
) -> None:
    played = play(written(tmp_path, owners) | more, nodes=nodes)
    assert bits(played.arrays(len(played.rows) - 1)) == pooled.bits
    assert played.rows[-1]["metrics"]["pooled-loss"] == pooled.rows[-1]["pooled-loss"]


def test_clients_that_keep_nothing_answer_alike(
    tmp_path: Path, pooled: PlayedTrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a simulation whose messages go to another process each time."""
    real = client_trees._rows

    def forgetful(*args: Any) -> Any:
        client_trees._kept.clear()
        return real(*args)

    monkeypatch.setattr(client_trees, "_rows", forgetful)
    played = play(written(tmp_path, 3), nodes=3)
    assert bits(played.arrays(len(played.rows) - 1)) == pooled.bits


def test_only_the_clients_that_fit_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client_trees._kept.clear()
    monkeypatch.setattr(client_trees, "_MOST", 1)
    play(written(tmp_path, 3) | {"num-server-rounds": 1}, nodes=3)
    assert len(client_trees._kept) == 1
    client_trees._kept.clear()


@pytest.mark.parametrize(("lost", "in_round"), [(2, 1), (4, 2)])
def test_a_lost_answer_ends_the_run_which_resumes(
    lost: int, in_round: int, tmp_path: Path, pooled: PlayedTrees
) -> None:
    """In each of the first rounds between two levels of the tree."""
    folder = lost_and_resumed(written(tmp_path, 3), tmp_path, lost, in_round)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["sums_sha256"] == pooled.arrays["sums-sha256"].tobytes().hex()


def test_a_folder_has_the_table_and_the_losses(tmp_path: Path) -> None:
    keys = written(tmp_path, 3) | {"gbdt.held-out": 0.3, "gbdt.patience": 1, "num-server-rounds": 12}
    folder = in_one_process(keys | {"run-name": "whole"}, tmp_path, nodes=3)
    result = json.loads((folder / "result.json").read_text())
    table = result["table"]
    assert table["rows"] + table["held_out_rows"] == N
    assert table["rounds"] == table["trees"] == improved(table["held_out_losses"]) < len(table["losses"])
    assert table["held_out_loss"] == min(table["held_out_losses"])
    lines = (folder / "table.csv").read_text().splitlines()
    assert lines[0] == "column,weight,gain,cover,total_gain,total_cover"
    assert [line.split(",")[0] for line in lines[1:]] == ["age", "job", "pulse"]
    shown = dict(tree_lines(result))
    assert shown["age"].startswith("age" and str(table["columns"][0]["weight"]))
    assert shown["held out loss"] == f"{table['held_out_loss']:.10g}"
    (plot,) = tree_plots(result)
    assert [series.name for series in plot.series] == ["rows of the trees", "rows held out"]
    assert (folder / "plots" / "trees.svg").exists()
    row = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert set(row["metrics"]) == {"pooled-loss", "held-out-loss", "held-out-error"}


# ------------------------------------------------------------------------------------------ policy


def wards(least: int, folder: Path, **more: Any) -> Path:
    parts = [FRAME.iloc[rows] for rows in np.array_split(np.arange(N), 3)]
    return at_sites(folder, parts, least, KEYS, HEADER, **more)


def test_a_site_with_a_bound_answers_masked_and_bounded_questions_alone(tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match="Use secagg = true"):
        wards(5, tmp_path)
    with pytest.raises(BouquetError, match=r"Set gbdt\.min-child-count = 5"):
        wards(5, tmp_path, secagg=True)
    folder = wards(5, tmp_path, secagg=True, **{"gbdt.min-child-count": 5})
    assert json.loads((folder / "result.json").read_text())["table"]["trees"] == ROUNDS


def test_the_model_file_is_trees_and_names_no_site(tmp_path: Path) -> None:
    folder = in_one_process(written(tmp_path, 3) | {"run-name": "file"}, tmp_path, nodes=3)
    _, arrays = read_model(folder / "model.safetensors")
    assert TreeEnsemble.from_arrays(arrays, 3).trees == ROUNDS
    assert b"site-" not in b"".join(a.tobytes() for a in arrays.values())

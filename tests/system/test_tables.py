"""Tables of five real nodes: gaps of their own, one standardisation, the pooled run's to the last bit."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_regression

from server_app.engines.federation import federation
from tests.support.federation import in_one_process

pytestmark = pytest.mark.system
NAMES = [f"site-{i}" for i in range(1, 6)]
KEYS: dict[str, Any] = {
    "dataset": "csv", "model": "logistic", "task": "regression", "missing": "mean", "standardise": True,
    "missing-indicator": True, "learning-rate": 0.02, "num-server-rounds": 5, "fraction-evaluate": 1.0,
    "run-name": "t", "progress": "none",
}  # fmt: skip


def write_sites(folder: Path) -> None:
    """Write five tables of 40 to 120 houses, columns of very different size; more is missing in each."""
    folder.mkdir()
    x, y = make_regression(400, 6, noise=5.0, random_state=1)
    x = x * [1, 1e4, 1e-3, 20, 1, 1] + [0, 3e5, 0, 40, 5, -2]
    rng, ends = np.random.default_rng(1), np.cumsum([40, 60, 80, 100, 120])
    for i, (name, end) in enumerate(zip(NAMES, ends, strict=True)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*(f"x{j}" for j in range(6)), "near:category(sea|lake)", "price:target", "split"])
            for row in range(end - 40 - 20 * i, end):
                gone = rng.random(7) < i / 20
                cells = [*map(repr, map(float, x[row])), "sea" if x[row, 0] > 0 else "lake"]
                cells = ["NA" if lost else cell for lost, cell in zip(gone, cells, strict=True)]
                out.writerow([*cells, repr(float(y[row] / 100)), "test" if row % 5 == 0 else "train"])


def test_five_nodes_with_gaps_end_as_the_pooled_run(tmp_path: Path) -> None:
    """Moments and model of files that nobody brings together are those of the files together."""
    sites = tmp_path / "sites"
    write_sites(sites)
    pooled = KEYS | {"data-path": str(sites), "partition": "natural", "num-clients": 0}
    pool = in_one_process(pooled | {"cache-dir": str(tmp_path / "cache")}, tmp_path / "pool")
    nodes = {name: ["--data", str(sites / f"{name}.csv")] for name in NAMES}
    with federation(nodes, tmp_path / "runs") as fed:
        fed.run(KEYS)
    found = tmp_path / "runs" / "t"
    got, want = (json.loads((at / "config.json").read_text())["columns"] for at in (found, pool))
    assert {k: got[k] for k in ("count", "mean", "std")} == {k: want[k] for k in ("count", "mean", "std")}
    assert len(set(got["count"][:6])) > 1
    assert got["count"][6:] == [0] * 9  # two of the category, seven indicators
    rows = [
        [json.loads(line) for line in (at / "rounds.jsonl").read_text().splitlines()] for at in (found, pool)
    ]
    assert [r["model_sha256"] for r in rows[0]] == [r["model_sha256"] for r in rows[1]]
    losses = [r["client_loss"] for r in rows[0][1:]]
    assert losses[-1] < 0.6 * losses[0]

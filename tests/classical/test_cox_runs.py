"""Cox's regression as runs: one hash for any number of nodes, masked or not, with a lost node; and policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.app import make_app
from server_app.app import run as run_server
from task.classical.hazards import baseline_table
from task.config.read import as_run_config
from task.errors import BouquetError
from task.resolve.read import read_config
from tests.classical.lost import lost_and_resumed
from tests.classical.test_cox import KEYS, ROSSI, PlayedCox, config_with
from tests.support.federation import play
from tests.support.grid import LocalGrid

COLUMNS = "fin(0..1), age(0..64), prio(0..32)"
FRAME = ROSSI[["week", "arrest", "fin", "age", "prio", "race"]]
HEADER = ["week", "arrest:target", "fin:number", "age:number", "prio:number", "race:number"]
RUN = KEYS | {
    "partition": "natural", "num-clients": 0, "survival.columns": COLUMNS, "survival.strata": "race(0..1)",
}  # fmt: skip


@pytest.fixture(scope="module")
def pooled() -> PlayedCox:
    """The same regression on the pooled rows."""
    return PlayedCox(config_with(COLUMNS, strata="race(0..1)"), [FRAME])


def written(folder: Path, owners: int) -> dict[str, Any]:
    """Write the table with so many owners; return a run's keys."""
    path = folder / f"rossi-{owners}.csv"
    owner = [f"site-{i % owners}" for i in range(len(FRAME))]
    FRAME.assign(client=owner).to_csv(path, index=False, header=[*HEADER, "client"])
    return RUN | {"data-path": str(path)}


@pytest.mark.parametrize(
    ("owners", "nodes", "more"),
    [(1, 1, {}), (3, 3, {}), (10, 10, {}), (3, 3, {"secagg": True})],
)
def test_a_run_is_the_pooled_regression(
    owners: int, nodes: int, more: dict[str, Any], tmp_path: Path, pooled: PlayedCox
) -> None:
    played = play(written(tmp_path, owners) | more, nodes=nodes)
    found = played.arrays(len(played.rows) - 1)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in pooled.arrays.items()}


def test_a_lost_answer_ends_the_run_which_resumes(tmp_path: Path, pooled: PlayedCox) -> None:
    folder = lost_and_resumed(written(tmp_path, 3), tmp_path)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["sums_sha256"] == pooled.table.digest
    assert table == {"converged": True, **pooled.table.as_dict(), "baseline": pooled.baseline}
    assert (folder / "table.csv").read_text() == pooled.table.csv()
    assert (folder / "baseline.csv").read_text() == baseline_table(pooled.cox, pooled.arrays).csv()
    assert (folder / "survival.png").read_bytes().startswith(b"\x89PNG")
    assert "race=1" in (folder / "plots" / "survival.svg").read_text()
    assert "prio & 0.1" in (folder / "table.tex").read_text()


# ------------------------------------------------------------------------------------------- policy

RNG = np.random.default_rng(5)
N = 900


def people() -> pd.DataFrame:
    """Return persons of whom the treated live longer."""
    age, fin = RNG.uniform(30, 70, N).round(1), RNG.integers(0, 2, N)
    rate = np.exp((age - 50) / 30 - 0.7 * fin) / 60
    died, left = RNG.exponential(1 / rate), RNG.uniform(10, 120, N)
    week = np.minimum(np.maximum(np.ceil(np.minimum(died, left)), 1), 100)
    return pd.DataFrame(
        {"week": week, "arrest": ((died <= left) & (died <= 100)) * 1, "fin": fin, "age": age}
    )


PEOPLE = people()


def at_sites(folder: Path, frames: list[pd.DataFrame], least: int, **more: Any) -> Path:
    """Run over nodes with files of their own whose owners set ``min-examples``."""
    sites = []
    for i, frame in enumerate(frames):
        path = folder / f"ward-{i}.csv"
        frame.to_csv(path, index=False, header=["week:number", "arrest:target", "fin:number", "age:number"])
        where = {"data-path": str(path), "client-name": f"ward-{i}", "secagg-unverified": True}
        sites.append(where | {"min-examples": least, "cache-dir": str(folder / "cache")})
    keys = KEYS | {"num-clients": 0, "survival.columns": "fin(0..1), age(0..100)"} | more
    keys |= {"survival.time": "week(0..100)", "runs-dir": str(folder / "runs"), "min-nodes": len(frames)}
    config = read_config(keys)
    return run_server(LocalGrid(make_app(), sites, as_run_config(config)), config)


def test_a_bound_merges_bins_and_the_result_is_that_of_the_coarser_file(tmp_path: Path) -> None:
    parts = [PEOPLE.iloc[i::3] for i in range(3)]
    folder = at_sites(tmp_path, parts, 5)
    table = json.loads((folder / "result.json").read_text())["table"]

    def coarse(time: float, what: str) -> float:
        bins = [m for m in table["merged"] if m["of"] == what and (m["above"] or -1) < time <= m["up_to"]]
        return bins[0]["up_to"] if bins else time

    what = np.where(PEOPLE.arrest == 1, "events", "censored")
    weeks = [coarse(t, w) for t, w in zip(PEOPLE.week, what, strict=True)]
    assert 3 <= len({w for w, event in zip(weeks, PEOPLE.arrest, strict=True) if event}) < 20
    config = config_with("fin(0..1), age(0..100)", time="week(0..100)")
    again = PlayedCox(config, [PEOPLE.assign(week=weeks)])
    assert table["sums_sha256"] == again.table.digest
    for part in parts:
        counts = part.assign(week=np.array(weeks)[part.index]).query("arrest == 1").groupby("week").size()
        assert counts.min() >= 20  # ten for each of two columns
    fin = table["coefficients"][0]
    assert abs(fin["coefficient"] + 0.7) < 3 * fin["se"]


def test_a_site_that_is_too_small_refuses(tmp_path: Path) -> None:
    parts = [PEOPLE.iloc[i::3] for i in range(3)]
    parts[2] = parts[2].drop(parts[2].index[parts[2].arrest == 1][19:])
    with pytest.raises(BouquetError, match="whole table would have fewer than 20 persons of client ward-2"):
        at_sites(tmp_path, parts, 5)

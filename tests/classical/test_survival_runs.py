"""Survival curves as runs: one hash for any number of nodes, masked or not, with a lost node; and policy."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.app import make_app
from server_app.app import run as run_server
from server_app.results.tables import table_lines
from strategies.rules.exact_sums import SHA256
from task.classical.curves import curves_of
from task.classical.survival import survival_of
from task.config.read import as_run_config
from task.errors import BouquetError
from task.numerics.row_sums import UNIT_BITS
from task.resolve.read import read_config
from tests.classical.lost import lost_and_resumed
from tests.classical.test_survival import LUNG, counts_in, table_of
from tests.support.federation import play
from tests.support.grid import LocalGrid

KEYS = {
    "algorithm": "kaplan-meier", "dataset": "csv", "partition": "natural", "num-clients": 0,
    "num-server-rounds": 5, "survival.time": "time(0..1022)", "survival.event": "status(0..1)",
    "survival.groups": "sex(1..2)",
}  # fmt: skip
HEADER = ["time:number", "status:target", "sex:number"]


def written(folder: Path, owners: int) -> dict[str, Any]:
    """Write the table with so many owners; return a run's keys."""
    path = folder / f"lung-{owners}.csv"
    owner = [f"site-{i % owners}" for i in range(len(LUNG))]
    LUNG.assign(client=owner).to_csv(path, index=False, header=[*HEADER, "client"])
    return KEYS | {"data-path": str(path)}


def pooled_counts() -> np.ndarray:
    return counts_in(survival_of(read_config(KEYS)), LUNG)


def digest_of(counts: np.ndarray) -> bytes:
    text = ",".join(str(n << UNIT_BITS) for n in counts.ravel().tolist())
    return hashlib.sha256(bytes(32) + text.encode()).digest()


@pytest.mark.parametrize(
    ("owners", "nodes", "more"),
    [(1, 1, {}), (3, 3, {}), (10, 10, {}), (3, 3, {"secagg": True}), (10, 4, {"secagg": True})],
)
def test_a_run_has_the_counts_of_the_pooled_rows(
    owners: int, nodes: int, more: dict[str, Any], tmp_path: Path
) -> None:
    played = play(written(tmp_path, owners) | more, nodes=nodes)
    found = played.arrays(len(played.rows) - 1)
    counts = pooled_counts()
    assert len(played.rows) == 2  # before round 1, and the one round
    assert (found["counts"] == counts).all()
    assert found[SHA256].tobytes() == digest_of(counts)


def test_a_folder_has_table_picture_and_report_and_a_lost_answer_is_resumed(tmp_path: Path) -> None:
    folder = lost_and_resumed(written(tmp_path, 3), tmp_path, lost=1)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["sums_sha256"] == digest_of(pooled_counts()).hex()
    assert (table["converged"], table["merged"], table["time"]) == (True, [], "time")
    assert [(c["group"], c["persons"], c["median_time"]) for c in table["curves"]] == [
        ("sex=1", 138, 270.0), ("sex=2", 90, 426.0),
    ]  # fmt: skip
    assert table["log_rank"]["chi2"] == pytest.approx(10.3267419549, abs=1e-10)
    lines = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [float(line["survival"]) for line in lines] == [
        p["survival"] for c in table["curves"] for p in c["points"]
    ]
    assert "sex=1 & 138 & 112 & 91.5817 & 270 & 210 & 306" in (folder / "table.tex").read_text()
    assert (folder / "survival.png").read_bytes().startswith(b"\x89PNG")
    assert "sex=2" in (folder / "plots" / "survival.svg").read_text()
    report = (folder / "report.html").read_text()
    assert '"survival"' in report
    assert all(
        label in report and text in report for label, text in table_lines("survival", {"table": table})
    )
    assert "nothing was measured" not in report  # an analysis has no accuracy


# ------------------------------------------------------------------------------------------- policy


def at_sites(folder: Path, frames: list[pd.DataFrame], least: int, **more: Any) -> Path:
    """Run over nodes with files of their own whose owners set ``min-examples``."""
    sites = []
    for i, frame in enumerate(frames):
        frame.to_csv(folder / f"ward-{i}.csv", index=False, header=HEADER)
        where = {"data-path": str(folder / f"ward-{i}.csv"), "client-name": f"ward-{i}"}
        sites.append(
            where | {"min-examples": least, "cache-dir": str(folder / "cache"), "secagg-unverified": True}
        )
    keys = {k: v for k, v in KEYS.items() if k != "partition"} | more
    config = read_config(keys | {"runs-dir": str(folder / "runs"), "min-nodes": len(frames)})
    return run_server(LocalGrid(make_app(), sites, as_run_config(config)), config)


@pytest.mark.parametrize("masked", [False, True], ids=["clear", "masked"])
def test_a_bound_merges_bins_and_the_result_is_that_of_the_coarser_file(masked: bool, tmp_path: Path) -> None:
    parts = [LUNG.iloc[i::3] for i in range(3)]
    keys = {"secagg": masked, "survival.until": 600.0, "survival.groups": ""}
    folder = at_sites(tmp_path, parts, 5, **keys)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert {m["of"] for m in table["merged"]} == {"events", "censored"}
    points = table["curves"][0]["points"]
    assert len(points) < 20

    def coarse(time: float, what: str) -> float:
        bins = [m for m in table["merged"] if m["of"] == what and (m["above"] or -1) < time <= m["up_to"]]
        return bins[0]["up_to"] if bins else time

    survival = survival_of(read_config(KEYS | {"survival.until": 600.0, "survival.groups": ""}))
    cases = survival.cases(table_of(LUNG))
    times = [
        coarse(t, ("events", "censored")[f]) for t, f in zip(cases.bins.tolist(), cases.fates, strict=True)
    ]
    coarser = pd.DataFrame({"time": times, "status": 1 - cases.fates, "sex": LUNG.sex})
    counts = counts_in(survival, coarser)
    assert table["sums_sha256"] == digest_of(counts).hex()
    empty = np.stack([np.arange(601)] * 2, 1)[None]
    again = curves_of(survival, {"counts": counts, "bins": empty, SHA256: np.zeros(32, np.uint8)})
    assert [p["survival"] for p in points] == [p.survival for p in again.groups[0].points]


def test_a_small_group_ends_the_run_with_its_name(tmp_path: Path) -> None:
    parts = [LUNG.iloc[i::3] for i in range(3)]
    women = parts[1].index[(parts[1].sex == 2) & (parts[1].status == 1)]
    parts[1] = parts[1].drop(women[3:])
    with pytest.raises(BouquetError, match="sex=2 would have fewer than 5 persons of client ward-1") as err:
        at_sites(tmp_path, parts, 5)
    assert "owner does not allow" in str(err.value)


def test_a_later_run_with_another_grid_cuts_nowhere_near(tmp_path: Path) -> None:
    """The difference of two answers would have few persons."""
    parts = [LUNG.iloc[i::2] for i in range(2)]
    keys = {"survival.groups": ""}

    def ends(name: str, **more: Any) -> set[float]:
        folder = at_sites(tmp_path, parts, 5, **keys, **more, **{"run-name": name})
        table = json.loads((folder / "result.json").read_text())["table"]
        return {p["time"] for p in table["curves"][0]["points"] if p["events"]}

    first, second = ends("one"), ends("two", **{"survival.step": 50.0})
    assert len(first) > len(second) >= 1
    for part in parts:
        died = part.time[part.status == 1]
        between = [abs(int((died <= a).sum()) - int((died <= b).sum())) for a in first for b in second]
        assert all(n == 0 or n >= 5 for n in between)
    assert ends("three") == first
    with pytest.raises(BouquetError, match="880, the end of follow-up"):
        ends("four", **{"survival.until": 880.0})

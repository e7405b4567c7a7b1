"""Real gRPC processes: own data folders, and nothing left behind when the user stops it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from server_app.deploy.host.host import MARK, marked
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import FINISHED, RUNNING, Job, Jobs
from server_app.deploy.link.status import read_status
from server_app.engines.federation import federation
from server_app.results.folder import RunFolder
from tests.support.signals import hear_ctrl_c

pytestmark = pytest.mark.system
BOUQUET = str(Path(sys.executable).with_name("bouquet"))


def ward(path: Path, seed: int, rows: int) -> None:
    """Write a table with four measurements and a label that depends on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    y = (x[:, 0] + 2 * x[:, 1] > 0).astype(int)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["a", "b", "c", "d", "label"])
        out.writerows([*map(repr, map(float, row)), label] for row, label in zip(x, y, strict=True))


def each_brought_its_own(folder: Path) -> None:
    """Check the run of all nodes, whose clients are the nodes themselves."""
    rounds = RunFolder(folder).rounds()
    assert rounds[1]["selected"] == ["a", "b", "c"]
    clients = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {c["name"] for c in clients if c["phase"] == "evaluate" and c["round"] == 10} == {"a", "b", "c"}
    assert rounds[10]["client_accuracy"] > 0.8
    assert {c["examples"] for c in clients if c["name"] == "c" and c["phase"] == "train"} == {80}


def test_runs_on_different_nodes_go_on_at_once_and_end_as_each_alone(tmp_path: Path) -> None:
    """Two runs at once, the stop of one, a third that waits for both, a fourth that waits for the third."""
    nodes = {}
    for i, name in enumerate("abc"):
        ward(tmp_path / f"{name}.csv", i, 60 + 20 * i)
        nodes[name] = ["--data", str(tmp_path / f"{name}.csv")]
    keys = {
        "dataset": "csv", "model": "logistic", "num-classes": 2, "num-server-rounds": 10,
        "learning-rate": 0.5, "local-epochs": 3, "progress": "none",
    }  # fmt: skip
    with federation(nodes, tmp_path / "runs") as fed:
        jobs = Jobs(fed.kit.jobs, fed.kit.runs)

        def submit(name: str, **more: object) -> None:
            follow.submit(fed.kit, keys | more | {"run-name": name})

        def until(true: Callable[[], object]) -> None:
            deadline = time.monotonic() + 120
            while not true():
                assert time.monotonic() < deadline, fed.logs()
                time.sleep(0.05)

        def job(name: str) -> Job:
            found = jobs.read(name)
            assert found is not None
            return found

        def rounds(name: str) -> int:
            return len(RunFolder(fed.kit.runs / name).rounds(unfinished=True))

        def written(name: str, file: str) -> int:
            return (fed.kit.runs / name / file).stat().st_mtime_ns

        submit("long", nodes="c", **{"num-server-rounds": 5000})
        submit("pair", nodes="a,b", **{"num-server-rounds": 100})
        submit("all", **{"min-nodes": 3, "fraction-evaluate": 1.0, "local-test-fraction": 0.2})
        submit("late", nodes="c")
        until(lambda: rounds("long") > 1 and rounds("pair") > 1)
        assert (job("long").state, job("pair").state) == (RUNNING, RUNNING)
        waits = {
            "all": "waits for c, where job long runs; for a, b, where job pair runs",
            "late": "waits for c, where job long runs; for c, where job all comes first",
        }
        until(lambda: waits.items() <= {r["name"]: r["waits"] for r in read_status(fed.kit)["runs"]}.items())
        jobs.ask_to_stop("long")
        until(lambda: job("long").ended)
        assert job("pair").state == RUNNING
        until(lambda: job("all").ended)
        until(lambda: job("late").ended)
        assert {(j.state, j.attempts) for j in map(job, ("pair", "all", "late"))} == {(FINISHED, 1)}
        assert written("late", "config.json") > written("all", "result.json")  # which was first for c
        submit("late-alone", nodes="c")
        until(lambda: job("late-alone").ended)
        fed.processes["c"].terminate()
        fed.processes.pop("c").wait()
        # On what is left; without a schedule its rounds are the first of the longer run.
        submit("pair-alone", **{"min-nodes": 2, "min-replies": 2})
        until(lambda: job("pair-alone").ended)
        processes = [
            p for w in fed.processes.values() for p in psutil.Process(w.pid).children(recursive=True)
        ]
    assert len(processes) >= 1 + 3  # the SuperLink, and a warm parent on each machine
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def models(name: str) -> list[str]:
        return [row["model_sha256"] for row in RunFolder(tmp_path / "runs" / name).rounds()]

    assert models("pair")[:11] == models("pair-alone")
    assert models("late") == models("late-alone")
    assert len({models(name)[10] for name in ("pair", "late", "all")}) == 3
    assert {row["name"] for row in RunFolder(tmp_path / "runs" / "pair").nodes()} == {"a", "b"}
    each_brought_its_own(tmp_path / "runs" / "all")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_ctrl_c_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    line = [BOUQUET, "federation", "--recipe", "demo", "--run-name", "stopped", "--runs-dir", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            line, stdout=log, stderr=log, env=os.environ.copy(), preexec_fn=hear_ctrl_c
        )
        deadline = time.monotonic() + 120
        while not (tmp_path / "stopped" / "rounds.jsonl").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        children = psutil.Process(process.pid).children(recursive=True)
        marks = {p.environ().get(MARK, "") for p in children} - {""}
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
    assert marks  # of the link's and the nodes' children
    assert not [p for mark in marks for p in marked(mark)]
    assert not [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert "--resume" in (tmp_path / "log").read_text()
    result = json.loads((tmp_path / "stopped" / "result.json").read_text())
    assert result["stopped"] == "by the user"
    assert {"model.safetensors", "report.html"} <= {p.name for p in (tmp_path / "stopped").iterdir()}

"""``bouquet sweep`` as a process: the models of ``bouquet run``; what a kill, an error and Ctrl-C cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from server_app.results.folder import RunFolder
from tests.support.signals import hear_ctrl_c

pytestmark = pytest.mark.system
BOUQUET = [sys.executable, "-m", "server_app.cli.main"]
KEYS = 'num-server-rounds=2 algorithm="fedavg","scaffold" seed=1,2'


def bouquet(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BOUQUET, *line], capture_output=True, text=True, timeout=300, check=False)


def started(tmp_path: Path, *line: str) -> subprocess.Popen[bytes]:
    with (tmp_path / "log").open("ab") as log:
        return subprocess.Popen(
            [*BOUQUET, *line], stdout=log, stderr=log, start_new_session=True, preexec_fn=hear_ctrl_c
        )


def states(folder: Path) -> list[str]:
    path = folder / "sweep.json"
    return [point["state"] for point in json.loads(path.read_text())["points"]] if path.exists() else []


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.02)


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in pids)


def model(path: Path) -> Any:
    return (RunFolder(path).result() or {}).get("model_sha256")


@pytest.mark.full
def test_a_killed_sweep_goes_on_to_the_models_of_bouquet_run(tmp_path: Path) -> None:
    line = ["sweep", "-c", KEYS, "--name", "grid", "--runs-dir", str(tmp_path)]
    process = started(tmp_path, *line)
    wait_for(lambda: states(tmp_path / "grid").count("finished") >= 1, process, tmp_path)
    family = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while not gone(family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(family)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "grid").glob("*/result.json")}
    assert 1 <= len(before) < 4
    done = bouquet("sweep", "--name", "grid", "--runs-dir", str(tmp_path), "--markdown")
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of 4 runs are done" in done.stderr
    assert {p: p.stat().st_mtime_ns for p in before} == before  # nothing was run twice
    assert states(tmp_path / "grid") == ["finished"] * 4
    assert done.stdout.count("| fedavg |") == done.stdout.count("| scaffold |") == 1
    assert (tmp_path / "grid" / "sweep.html").exists()
    line_of_one = ["run", "-c", 'num-server-rounds=2 algorithm="scaffold" seed=2 progress="none"']
    alone = bouquet(*line_of_one, "--run-name", "alone", "--runs-dir", str(tmp_path))
    assert alone.returncode == 0, alone.stderr
    point = tmp_path / "grid" / "scaffold-seed=2"
    assert model(point) == model(tmp_path / "alone") is not None
    rows = [RunFolder(path).rounds() for path in (point, tmp_path / "alone")]
    assert [r["accuracy"] for r in rows[0]] == [r["accuracy"] for r in rows[1]]
    # All is done: the same command only prints the table.
    again = bouquet(*line)
    assert again.returncode == 0
    assert "at once" not in again.stderr


def test_ctrl_c_ends_all_and_says_how_to_go_on(tmp_path: Path) -> None:
    keys = "num-server-rounds=1000 seed=1..3"
    process = started(tmp_path, "sweep", "-c", keys, "--name", "s", "--runs-dir", str(tmp_path))
    wait_for(lambda: len(list((tmp_path / "s").glob("*/rounds.jsonl"))) >= 1, process, tmp_path)
    family = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert gone(family)
    text = (tmp_path / "log").read_text()
    assert f"continue with: bouquet sweep --name s --runs-dir {tmp_path}" in text
    assert states(tmp_path / "s") == ["waiting"] * 3
    assert "Traceback" not in text


def test_a_failed_run_stops_no_other_and_the_median_rule_ends_a_hopeless_one(tmp_path: Path) -> None:
    # 3 clients with 2,000 examples each of 1,797: this partition cannot be made.
    text = "[runs.fails]\nnum-server-rounds = 1\nnum-clients = 3\nmin-client-examples = 2000\n"
    text += "".join(f"[runs.r{i}]\nnum-server-rounds = 4\nlearning-rate = 0.{i}\n" for i in (1, 2, 3))
    # The last rate learns nothing; it has hours of rounds, and the three before it 4 each.
    text += "[runs.slow]\nnum-server-rounds = 100000\nlearning-rate = 1e-9\n"
    listed = tmp_path / "list.toml"
    listed.write_text(text)
    more = ("--runs-dir", str(tmp_path), "--median-stop", "--warm-up", "3", "--jobs", "1")
    done = bouquet("sweep", "--runs-file", str(listed), *more)
    assert done.returncode == 70, done.stderr
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["points"]
    assert [point["state"] for point in found] == ["failed"] + ["finished"] * 3 + ["stopped"]
    assert "min-client-examples" in found[0]["error"]
    assert "1 of 5 runs failed" in done.stderr
    assert "runs failed and are not in the table" in done.stdout
    assert (tmp_path / "sweep" / "sweep.html").exists()
    assert found[4]["stopped_at"] == 3
    assert "of 3 earlier runs" in found[4]["error"]
    assert "1 runs were stopped by the median rule" in done.stdout

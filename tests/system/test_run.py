"""``bouquet run`` as a process: Ctrl-C, and processes that die under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.signals import hear_ctrl_c

pytestmark = pytest.mark.system
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
LONG = 'num-server-rounds=1000 fraction-train=1.0 local-epochs=5000 partition="iid"'  # ten seconds a round


def rounds(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def running(tmp_path: Path, keys: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run with two workers; yield it in the midst of round 1."""
    line = [
        BOUQUET,
        "run",
        "--recipe",
        "demo",
        "--run-name",
        "r",
        "--runs-dir",
        str(tmp_path),
        "-c",
        keys,
        *more,
    ]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True, preexec_fn=hear_ctrl_c)
    try:
        wait_for(lambda: len(rounds(tmp_path / "r")) >= 1, run, tmp_path)
        time.sleep(0.2)
        yield run
    finally:
        if run.poll() is None:
            run.kill()
        run.wait()


def wait_for(true: Any, run: subprocess.Popen[bytes], tmp_path: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert run.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)


def ended(processes: list[psutil.Process], seconds: float = 10) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_ctrl_c_ends_all_of_it_with_one_line(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, LONG) as run:
        workers = psutil.Process(run.pid).children(recursive=True)
        assert workers
        began = time.perf_counter()
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does
        else:
            run.send_signal(number)
        assert run.wait(timeout=30) == 130
        assert time.perf_counter() - began < 10  # result and report are written first
        assert ended(workers)
    log = (tmp_path / "log").read_text()
    assert log.count("--resume") == 1
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert (result["stopped"], result["rounds"]) == ("by the user", 0)
    assert (tmp_path / "r" / "model.safetensors").exists()
    assert (tmp_path / "r" / "report.html").exists()
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_a_killed_worker_costs_its_clients_one_round_and_not_the_run(tmp_path: Path) -> None:
    keys = 'num-server-rounds=2 fraction-train=1.0 local-epochs=900 target-accuracy=0.0 partition="iid"'
    with running(tmp_path, keys, "--nodes", "2") as run:
        worker, *_ = psutil.Process(run.pid).children()
        # A round trains for some seconds: a worker that computes right now has not answered yet.
        before = worker.cpu_times().user
        wait_for(lambda: worker.cpu_times().user > before + 0.2, run, tmp_path)
        worker.kill()
        assert run.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    first, second = rounds(tmp_path / "r")[1:]
    assert 0 < first["answered"] < first["asked"] == 10
    reasons = {q["reason"] for q in first["quarantined"]}
    assert len(first["quarantined"]) == 10 - first["answered"]
    assert all(f"worker process {worker.pid} of the simulation was killed by SIGKILL" in r for r in reasons)
    assert second["answered"] == 10
    assert (tmp_path / "r" / "result.json").exists()


def test_workers_end_with_a_killed_driver(tmp_path: Path) -> None:
    with running(tmp_path, LONG) as run:
        workers = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        run.wait()
        assert ended(workers)


def test_an_error_of_the_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "r" / "checkpoint").mkdir(parents=True)
    (tmp_path / "r" / "checkpoint" / "somebody-elses").touch()
    line = [BOUQUET, "run", "--recipe", "demo", "--run-name", "r", "--runs-dir", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 78
    assert "holds an unfinished run" in done.stderr
    assert "Traceback" not in done.stderr

"""What the link does about a stopped run: its result is written, and the link's own process stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from client_app.app import make_app
from server_app.app import run
from server_app.deploy.link.jobs import STOPPED, Job, Jobs
from server_app.deploy.link.stopped import finish_stopped
from server_app.engines import federation as engine
from task.errors import BouquetError
from task.resolve.read import read_config
from tests.server_app.test_app import KEYS, Stopped


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    keys = KEYS | {"runs-dir": str(tmp_path / "runs"), "num-server-rounds": 4}
    grid = Stopped(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    with pytest.raises(KeyboardInterrupt):
        run(grid, read_config(keys))
    return tmp_path / "runs" / "trial"


def ended(runs: Path) -> tuple[Jobs, Job]:
    jobs = Jobs(runs.parent / "jobs", runs)
    job = jobs.submit("trial", {})
    jobs.update(job, state=STOPPED)
    return jobs, job


def test_a_stopped_run_gets_its_result_and_model(stopped: Path) -> None:
    assert not (stopped / "result.json").exists()
    finish_stopped(*ended(stopped.parent))
    result = json.loads((stopped / "result.json").read_text())
    assert (result["stopped"], result["rounds"]) == ("by the user", 2)
    assert (stopped / "model.safetensors").exists()


def test_ctrl_c_ends_a_federation_and_writes_the_result_when_none_of_its_processes_is_left(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {}

    def sleep(module: str, *command: str) -> list[str]:
        commands[module] = command
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    def leave(fed: engine.Federation) -> None:
        assert all(process.poll() is not None for process in fed.processes.values())
        left(fed)

    left = engine.Federation.leave
    monkeypatch.setattr(engine, "module_command", sleep)
    monkeypatch.setattr(engine, "_await_link", lambda fed: None)
    monkeypatch.setattr(engine.Federation, "leave", leave)

    def stop() -> None:
        with engine.federation({"ada": ["--partition", "0/1"]}, stopped.parent) as fed:
            fed.job = Job("trial", {}, "id")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert {"server_app.cli.main", "server_app.cli.nodes"} == commands.keys()
    (node,) = json.loads(commands["server_app.cli.nodes"][0])
    assert node["words"][1:] == ["--partition", "0/1"]
    assert json.loads((stopped / "result.json").read_text())["stopped"] == "by the user"


def test_nothing_is_written_once_the_job_was_submitted_again(stopped: Path) -> None:
    jobs, job = ended(stopped.parent)
    jobs.submit("trial", {"resume": True})
    finish_stopped(jobs, job)
    assert not (stopped / "result.json").exists()


def test_a_damaged_checkpoint_is_named(stopped: Path) -> None:
    for path in (stopped / "checkpoint").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BouquetError, match=r"checkpoint.*\.safetensors"):
        finish_stopped(*ended(stopped.parent))
    assert not (stopped / "result.json").exists()


def test_the_link_s_own_process_has_no_torch() -> None:
    """It would hold some 300 MB for as long as the link is up."""
    code = "import sys, server_app.deploy.link.run_link; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]

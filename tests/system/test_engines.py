"""The same run in the simulation and over gRPC: the same clients and, round by round, the same bytes.

By the commands that a user types.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from client_app.data.node import open_node
from server_app.deploy.host.host import MARK, marked
from server_app.results.folder import RunFolder
from task.resolve.read import read_config
from tests.support.recorder import LOG, SITE
from tests.support.signals import hear_ctrl_c

pytestmark = pytest.mark.system
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
ROOT = Path(__file__).resolve().parents[2]


def bouquet(command: str, runs: Path, name: str, keys: str, *more: str, **env: str) -> Path:
    """Run the demo's recipe with `keys`; return the result folder."""
    line = [BOUQUET, command, "--recipe", "demo", "-c", keys, "--run-name", name, "--runs-dir", str(runs)]
    done = subprocess.run(
        [*line, *more], capture_output=True, text=True, timeout=400, env=os.environ.copy() | env
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return runs / name


def rounds(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder).rounds()


def test_simulation_and_grpc_agree_to_the_byte_and_private_arrays_cross_no_wire(tmp_path: Path) -> None:
    """Every array of every message is written down, by whichever process makes it.

    The simulation is also that of a run on two nodes that is resumed on one.
    Others' rounds are in `tests.system.test_four_nodes`; what every algorithm sends is in
    `tests.test_privacy`, in one process.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE.format(root=str(ROOT)))
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    keys = 'algorithm="fedper" num-server-rounds=3 fraction-evaluate=1.0 partition="iid"'
    folders = []
    for command, nodes in (("run", "1"), ("federation", "2")):
        log = tmp_path / f"{command}.jsonl"
        folder = bouquet(
            command, tmp_path, command, keys, "--nodes", nodes, PYTHONPATH=path, **{LOG: str(log)}
        )
        folders.append(folder)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        given = json.loads((folder / "config.json").read_text())["run"]
        node = open_node(read_config(given), {})
        whole, parts = node.initial(), node.parts()
        assert parts.private
        trained = {line["process"] for line in lines if line["type"] == "train" and line["reply"]}
        assert trained, "no reply of a client was seen"
        forms = {(n, tuple(s)) for line in lines for r in line["arrays"].values() for n, s in r.items()}
        assert {n for n, _ in forms} == set(parts.shared)
        assert forms <= {(n, whole[n].shape) for n in parts.shared}
    a, b = map(rounds, folders)
    assert len(a) == 4
    for key in ("round", "selected", "model_sha256", "train_loss", "client_accuracy", "metrics"):
        assert [r[key] for r in a] == [r[key] for r in b], key
    assert a[3]["client_accuracy"] is not None
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    assert [q["reason"] for r in a + b for q in r["quarantined"]] == []
    half = bouquet("run", tmp_path, "half", keys.replace("rounds=3", "rounds=1"), "--nodes", "2")
    assert len(rounds(half)) == 2
    again = bouquet("run", tmp_path, "half", keys, "--nodes", "1", "--resume")
    assert [r["model_sha256"] for r in rounds(again)] == [r["model_sha256"] for r in a]
    assert (again / "model.safetensors").read_bytes() == (folders[0] / "model.safetensors").read_bytes()


def test_a_bad_value_is_refused_before_anything_starts(tmp_path: Path) -> None:
    line = [BOUQUET, "run", "--recipe", "demo", "-c", 'algorithm="fedprx"', "--runs-dir", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    assert 'Did you mean "fedprox"?' in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.full  # for every commit: tests/deploy/test_stopped.py
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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

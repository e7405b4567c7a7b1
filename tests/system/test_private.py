"""What personalised algorithms send, in both engines: every array of every message is written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_app.data.node import open_node
from task.resolve.read import read_config
from tests.support.recorder import LOG, SITE

pytestmark = pytest.mark.system
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
ROOT = Path(__file__).resolve().parents[2]


# Every algorithm, in one process: tests/test_privacy.py.
@pytest.mark.parametrize(
    ("engine", "algorithm"), [pytest.param("run", "fenda", marks=pytest.mark.full), ("federation", "fedper")]
)
def test_private_arrays_cross_no_wire(engine: str, algorithm: str, tmp_path: Path) -> None:
    keys = f'algorithm="{algorithm}" num-server-rounds=2 fraction-evaluate=1.0'
    log, site = tmp_path / "messages.jsonl", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(root=str(ROOT)))
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [BOUQUET, engine, "--recipe", "demo", "--nodes", "2", "-c", keys]
    done = subprocess.run(
        [*command, "--runs-dir", str(tmp_path / "runs"), "--run-name", "watched"],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": path, LOG: str(log), "BOUQUET_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    given = json.loads((tmp_path / "runs" / "watched" / "config.json").read_text())["run"]
    node = open_node(read_config(given), {})
    whole, parts = node.initial(), node.parts()
    assert parts.private
    trained = {line["process"] for line in lines if line["type"] == "train" and line["reply"]}
    assert trained, "no reply of a client was seen"
    forms = {(n, tuple(shape)) for line in lines for r in line["arrays"].values() for n, shape in r.items()}
    assert {n for n, _ in forms} == set(parts.shared)
    assert forms <= {(n, whole[n].shape) for n in parts.shared}
    rounds = [
        json.loads(x) for x in (tmp_path / "runs" / "watched" / "rounds.jsonl").read_text().splitlines()
    ]
    assert rounds[2]["client_accuracy"] is not None
    assert [r["quarantined"] for r in rounds] == [[], [], []]

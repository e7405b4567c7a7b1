"""Client-level privacy over gRPC: clipped, folded and noised as in the simulation, to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.privacy.test_ledger import SCRIPT, end, lines
from tests.system.test_engines import bouquet

pytestmark = pytest.mark.system
KEYS = (
    'algorithm="scaffold" num-server-rounds=4 fraction-evaluate=0.0 dp.noise=0.4 dp.clip=1.0 dp.delta=0.01 '
    "dp.clip-quantile=0.4 max-update-norm=0.0"
)


def test_three_nodes_and_the_simulation_agree_to_the_byte(tmp_path: Path) -> None:
    deployed = bouquet("federation", tmp_path, "deployed", KEYS, "--nodes", "3")
    assert len(lines(deployed)) == 5
    secret = (deployed / "privacy/secret").read_bytes()
    keys = json.loads((deployed / "config.json").read_text())["run"]
    own = {"runs-dir": str(tmp_path), "run-name": "simulated", "nodes": "", "progress": "none"}
    own |= {"state-dir": str(tmp_path / "state")}
    line = [sys.executable, "-c", SCRIPT, json.dumps(keys | own), secret.hex(), "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, env=os.environ.copy())
    assert done.returncode == 0, done.stderr[-3000:]
    assert end(tmp_path / "simulated") == end(deployed)
    assert lines(tmp_path / "simulated") == lines(deployed)

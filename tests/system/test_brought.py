"""A folder with net.py and data.py: simulation, federation and `flwr run` end in the same model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brought import NET
from tests.system.test_flwr_run import env  # noqa: F401

pytestmark = pytest.mark.system
DATA = """
import numpy as np


def load(data_dir):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 240)
    x = rng.normal(0, 0.3, (240, 1, 8, 8)).astype(np.float32)
    for c in range(4):
        x[y == c, 0, 2 * c : 2 * c + 2, :] += 1.0
    return x[:200], y[:200], x[200:], y[200:]


def deal(labels, num_clients, rng):
    return np.array_split(rng.permutation(len(labels)), num_clients)
"""
RULES = """
from dataclasses import replace

from client_app.solvers.sgd import Solver, proximal
from strategies.engine.rule import Rule
from task.spec.algorithms import ALGORITHMS


def mean(state, replies, config):
    return replace(state, arrays=replies.arrays["arrays"]), {}


class Pulled(Rule, update=mean):
    entry = replace(ALGORITHMS["fedavg"], solver="rules:PulledSolver")


class PulledSolver(Solver):
    def terms(self, task):
        return proximal(task, 0.5)
"""
KEYS = (
    'model="net:Small" dataset="data:load" partition="data:deal" num-clients=6 num-server-rounds=2 '
    'learning-rate=0.05 progress="log" device="cpu" algorithm="ditto"'
)
ROOT = Path(__file__).resolve().parents[2]


def _bouquet(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    line = [sys.executable, "-m", "server_app.cli.main", *arguments]
    paths = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        line, cwd=folder, env=environment | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=240
    )
    return done.stdout + done.stderr


def _sha256(folder: Path, run: str, output: str) -> str:
    result = folder / "runs" / run / "result.json"
    assert result.exists(), output[-4000:]
    return str(json.loads(result.read_text())["model_sha256"])


def test_the_same_folder_in_simulation_federation_and_flwr_run(
    env: dict[str, str],  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "data.py").write_text(DATA)
    env["BOUQUET_CACHE"] = str(tmp_path / "cache")
    output = _bouquet(folder, env, "run", "-c", KEYS, "--run-name", "one")
    first = _sha256(folder, "one", output)
    # The nodes' policies allow the packages, and each node has looked at its own copy of the code.
    output = _bouquet(folder, env, "federation", "-c", KEYS, "--run-name", "three")
    assert _sha256(folder, "three", output) == first
    code = json.loads((folder / "runs" / "three" / "config.json").read_text())["code"]
    assert set(code) == {"data", "net"}
    (folder / "rules.py").write_text(RULES)
    keys = KEYS.replace('"ditto"', '"rules:Pulled"')  # server and clients each take their half of it
    own = [
        _bouquet(folder, env, how, "-c", keys, "--run-name", f"own-{how}") for how in ("run", "federation")
    ]
    assert _sha256(folder, "own-run", own[0]) == _sha256(folder, "own-federation", own[1]) != first
    output = _bouquet(folder, env, "app", ".", "-c", KEYS)
    assert (folder / "pyproject.toml").exists(), output
    paths = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    line = [str(Path(sys.executable).with_name("flwr")), "run", ".", "--stream", "-c", 'run-name="flower"']
    done = subprocess.run(
        line, cwd=folder, env=env | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=240
    )
    assert _sha256(folder, "flower", done.stdout + done.stderr) == first

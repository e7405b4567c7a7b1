"""The same run in Flower's simulation and over gRPC: the same clients and, round by round, the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system
BOUQUET = str(Path(sys.executable).with_name("bouquet"))


def bouquet(command: str, runs: Path, name: str, keys: str, *more: str) -> Path:
    """Run the demo's recipe with `keys`; return the result folder."""
    line = [
        BOUQUET,
        command,
        "--recipe",
        "demo",
        "-c",
        keys,
        "--run-name",
        name,
        "--runs-dir",
        str(runs),
        *more,
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, env=os.environ.copy())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return runs / name


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_simulation_and_grpc_agree_to_the_byte(tmp_path: Path) -> None:
    """By the commands that a user types; others' rounds are in `tests.system.test_four_nodes`."""
    keys = 'algorithm="fedadam" codec.up="stc" codec.down="stc" codec.keep=0.05 num-server-rounds=5'
    simulated = bouquet("run", tmp_path, "simulated", keys, "--nodes", "2")
    deployed = bouquet("federation", tmp_path, "deployed", keys, "--nodes", "3")
    a, b = rounds(simulated), rounds(deployed)
    assert len(a) == 6
    for key in ("round", "selected", "model_sha256", "accuracy", "train_loss", "metrics"):
        assert [r[key] for r in a] == [r[key] for r in b], key
    assert (simulated / "model.safetensors").read_bytes() == (deployed / "model.safetensors").read_bytes()
    assert [q["reason"] for r in a + b for q in r["quarantined"]] == []
    for sent in ([r["bytes_down"] for r in found] for found in (a, b)):
        assert sent[2] < sent[1] / 1.5  # codes go on from the first round's model


def test_the_number_of_nodes_changes_nothing_and_a_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    keys = 'algorithm="fedprox" num-server-rounds='
    one = bouquet("run", tmp_path, "one", keys + "4", "--nodes", "1")
    ten = bouquet("run", tmp_path, "ten", keys + "4", "--nodes", "10")
    assert [r["model_sha256"] for r in rounds(one)] == [r["model_sha256"] for r in rounds(ten)]
    assert (one / "model.safetensors").read_bytes() == (ten / "model.safetensors").read_bytes()
    half = bouquet("run", tmp_path, "half", keys + "2", "--nodes", "2")
    assert len(rounds(half)) == 3
    again = bouquet("run", tmp_path, "half", keys + "4", "--nodes", "2", "--resume")
    assert len(rounds(again)) == 5
    assert (again / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()


def test_a_bad_value_is_refused_before_anything_starts(tmp_path: Path) -> None:
    line = [BOUQUET, "run", "--recipe", "demo", "-c", 'algorithm="fedprx"', "--runs-dir", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    assert 'Did you mean "fedprox"?' in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())

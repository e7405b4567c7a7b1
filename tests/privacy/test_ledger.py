"""The ledger outlives kill -9, and a run that goes on pays for each release once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.results.folder import RunFolder
from server_app.run.logs.privacy import ReleaseFiles
from task.errors import StateError
from task.privacy.accounting import epsilon

SECRET = bytes(range(32)).hex()
# Runs a simulation with a secret of the test's; dies where the noise of that release is drawn.
SCRIPT = """
import json, os, signal, sys
from task.privacy import noise
keys, secret, dies = json.loads(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
noise.draw_secret = lambda: secret
drawn, integers = [], noise.Stream.integers

def counted(self, size, std):
    drawn.append(size)
    if dies and len(drawn) > 2 * (dies - 1):  # two arrays a round
        os.kill(os.getpid(), signal.SIGKILL)
    return integers(self, size, std)

noise.Stream.integers = counted
from server_app.engines.simulate import simulate
simulate(keys, 2, fresh=True)
"""
KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "num-clients": 20, "fraction-train": 0.5, "device": "cpu",
    "num-server-rounds": 4, "dp.noise": 1.0, "dp.clip": 0.5, "dp.delta": 1e-3, "progress": "none",
}  # fmt: skip


def simulate(runs: Path, name: str, dies: int = 0, **more: Any) -> Path:
    keys = KEYS | {"runs-dir": str(runs), "run-name": name, "state-dir": str(runs / "state"), **more}
    line = [sys.executable, "-c", SCRIPT, json.dumps(keys), SECRET, str(dies)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=os.environ.copy())
    assert done.returncode == (-9 if dies else 0), done.stderr[-3000:]
    return runs / name


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "privacy/ledger.jsonl").read_text().splitlines()]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def end(folder: Path) -> tuple[list[str], float]:
    """Return the models of all rounds, and what they cost together."""
    found = rows(folder)
    return [row["model_sha256"] for row in found], found[-1]["epsilon"]


def test_a_run_killed_between_the_ledger_and_the_release_goes_on_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    whole = simulate(tmp_path, "whole")
    killed = simulate(tmp_path, "killed", dies=3)
    assert [line["round"] for line in lines(killed)] == [0, 1, 2, 3]  # the third before it was made
    assert len(rows(killed)) <= 3
    shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    simulate(tmp_path, "killed", resume=True)
    assert lines(killed) == lines(whole)
    assert end(killed) == end(whole)
    # Killed while the line was written, which is then of a release that was not made.
    shutil.rmtree(tmp_path)
    tmp_path.with_name("killed").rename(tmp_path)
    ledger = killed / "privacy/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    simulate(tmp_path, "killed", resume=True)
    assert lines(killed) == lines(whole)
    assert end(killed) == end(whole)
    result = json.loads((whole / "result.json").read_text())
    assert result["privacy"]["epsilon"] == end(whole)[1]
    for file in ("secret", "ledger.jsonl"):
        assert (whole / "privacy" / file).stat().st_mode & 0o777 == 0o600
    assert list((whole / "privacy/released").iterdir()) == []  # the checkpoint covers all rounds


def test_what_was_released_stays_until_a_checkpoint_covers_it(tmp_path: Path) -> None:
    ledger = ReleaseFiles(RunFolder(tmp_path), resume=False)
    ledger.secret()
    sums = {"arrays/w": np.array([3, -(1 << 40)]), "unclipped/one": np.array([7])}
    for t in (9, 10):
        assert ledger.made(t, "abc") is None
        ledger.make(t, "abc", sums)
    path = tmp_path / "privacy/released/9-abc.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    again = ReleaseFiles(RunFolder(tmp_path), resume=True)
    assert again.secret() == ledger.secret()
    found = again.made(9, "abc")
    assert found is not None
    assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in sums.items()}
    assert again.made(9, "other") is None
    again.covered(9)
    assert again.made(9, "abc") is None
    assert again.made(10, "abc") is not None
    (tmp_path / "privacy/released/10-abc.safetensors").write_bytes(b"half")
    with pytest.raises(StateError, match="released in round 10"):
        again.made(10, "abc")
    ReleaseFiles(RunFolder(tmp_path), resume=False).secret()
    assert list((tmp_path / "privacy/released").iterdir()) == []


def test_a_run_that_has_spent_its_budget_measures_its_last_model(tmp_path: Path) -> None:
    limit = {"dp.max-epsilon": epsilon([(0.5, 1.0)] * 2, 1e-3) + 1e-6, "evaluate-every": 3}
    spent = simulate(tmp_path, "spent", **limit)
    result = json.loads((spent / "result.json").read_text())
    assert [row["accuracy"] is None for row in rows(spent)] == [False, True, False]
    assert (result["rounds"], result["ended_by"]) == (2, "dp.max-epsilon")
    assert result["accuracy"] == rows(spent)[2]["accuracy"]


def test_a_new_run_in_an_old_folder_begins_a_new_ledger(tmp_path: Path) -> None:
    first = ReleaseFiles(RunFolder(tmp_path), resume=False)
    secret = first.secret()
    first.append({"round": 0})
    again = ReleaseFiles(RunFolder(tmp_path), resume=False)
    assert again.secret() != secret
    assert again.lines() == []
    again.append({"round": 0})
    resumed = ReleaseFiles(RunFolder(tmp_path), resume=True)
    assert resumed.secret() == again.secret()
    assert resumed.lines() == [{"round": 0}]


def test_a_lost_secret_is_not_replaced(tmp_path: Path) -> None:
    ledger = ReleaseFiles(RunFolder(tmp_path), resume=False)
    ledger.secret()
    ledger.append({"round": 0})
    (tmp_path / "privacy/secret").unlink()
    with pytest.raises(StateError, match="Put it back"):
        ReleaseFiles(RunFolder(tmp_path), resume=True).secret()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    ledger = ReleaseFiles(RunFolder(tmp_path), resume=False)
    ledger.secret()
    ledger.append({"round": 0})
    (tmp_path / "privacy/ledger.jsonl").write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(StateError, match="line 2"):
        ReleaseFiles(RunFolder(tmp_path), resume=True).lines()

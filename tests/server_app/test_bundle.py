"""`bouquet app`: Flower bundles and runs the folder that it writes, with or without modules of a user."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from typer.testing import CliRunner

from server_app.cli.main import app
from tests.support.flwr_run import flwr_run, local_superlink

KEYS = 'dataset="digits" num-clients=4 num-server-rounds=2 run-name="demo"'


def write(folder: Path, keys: str = KEYS) -> str:
    done = CliRunner().invoke(app, ["app", str(folder), "-c", keys])
    assert done.exit_code == 0, done.output
    return done.output


def bundled(folder: Path) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as stored:
        return {*stored.namelist()} - {".info/CONTENT"}


def test_flower_bundles_a_folder_that_is_empty_at_first(tmp_path: Path) -> None:
    """A pattern that matches no file, which Flower refuses; results that are bundled."""
    folder = tmp_path / "study"
    write(folder)
    assert bundled(folder) == {"pyproject.toml"}
    (folder / "net.py").touch()
    (folder / ".venv").mkdir()
    (folder / "runs").mkdir()
    (folder / "runs/result.json").touch()
    write(folder)
    assert bundled(folder) == {"pyproject.toml", "net.py"}


def test_the_line_to_type_finds_flowers_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool's environment is not on the PATH, so `flwr` and what it starts by name are not found."""
    beside = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(beside))
    assert f"run it: FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run {tmp_path} " in write(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert f"run it: PATH={beside}:$PATH FLWR_" in write(tmp_path)


@pytest.mark.system
@pytest.mark.full
def test_flower_runs_a_folder_without_modules(tmp_path: Path) -> None:
    folder, runs = tmp_path / "study", tmp_path / "runs"
    write(folder)
    with local_superlink(tmp_path) as env:
        shown = flwr_run(env, folder, "seed=1")
    assert (folder / "runs/demo/result.json").exists(), shown[-4000:]
    line = [Path(sys.executable).with_name("bouquet"), "run", "-c", KEYS, "--runs-dir", runs]
    subprocess.run(line, check=True, capture_output=True, timeout=300)
    models = [
        json.loads((r / "demo/result.json").read_text())["model_sha256"] for r in (folder / "runs", runs)
    ]
    assert models[0] == models[1]

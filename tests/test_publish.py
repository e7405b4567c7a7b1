"""Flower's own commands take the project as it is: `flwr app publish` its files, `flwr build` its bundle."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from flwr.cli import build

from task.flower.app import build_bundle

ROOT = Path(__file__).resolve().parents[1]
publish = import_module("flwr.cli.app_cmd.publish")  # the package has a function of this name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files that git keeps."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout has git's list of its files")
    folder = tmp_path_factory.mktemp("clone") / "bouquet"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def test_flowers_hub_takes_the_project(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too many files, a file over 1 MB, one that is no UTF-8: each is found only at the upload."""
    paths = publish._collect_file_paths(checkout)
    publish._validate_files(paths)
    names = {path.relative_to(checkout.resolve()).as_posix() for path in paths}
    assert {"pyproject.toml", "README.md", "LICENSE", "docs/howto/deploy.md", "server_app/app.py"} <= names
    assert not [name for name in names if name.startswith("tests/")]
    assert "Skip: tests/conftest.py" in capsys.readouterr().out


def test_git_keeps_what_the_hub_does_not_get() -> None:
    """A new test that `git add` passes over, or compiled files that it takes."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout has git")
    names = ["tests/test_new.py", "tests/new/data.json", "tests/new/.gitignore", "tests/__pycache__/a.pyc"]
    done = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == names[-1:]


def test_the_bundle_is_flowers_whatever_else_is_in_the_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that `flwr build` packs and ours does not; seconds that are spent on the files of a .venv."""
    for name in (".venv/lib/module.py", "task/__pycache__/names.py"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).touch()
    with zipfile.ZipFile(io.BytesIO(build.build_fab_from_disk(checkout))) as stored:
        expected = {name: stored.read(name) for name in stored.namelist()}
    seen: list[str] = []
    built = build.build_fab_from_files
    monkeypatch.setattr(build, "build_fab_from_files", lambda files: (seen.extend(files), built(files))[1])
    with zipfile.ZipFile(io.BytesIO(build_bundle(checkout))) as packed:
        assert {name: packed.read(name) for name in packed.namelist()} == expected
    assert not [name for name in seen if name.startswith(".venv")]
    assert len(expected) > 300

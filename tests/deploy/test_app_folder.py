"""The app's folder for Flower's bundle, where the app is installed from a wheel."""

from __future__ import annotations

import hashlib
import io
import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from server_app.deploy.host import host
from server_app.deploy.link.runner import bundle
from task.errors import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


def listed(fab: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.startswith(".info")}


def test_a_wheel_gives_the_bundle_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyproject.toml `bouquet federation` and `bouquet link` end at once."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            return (ROOT / "pyproject.toml").read_text("utf-8") if name == host.IN_METADATA else None

    wanted = listed(bundle())
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')  # what others leave there
    monkeypatch.setattr(host, "APP_DIR", tmp_path)
    monkeypatch.setattr(host, "distribution", lambda name: Distribution())
    found = listed(bundle())
    assert found.keys() == wanted.keys()
    assert found == wanted


def test_the_bundle_is_compressed_and_has_what_its_list_says() -> None:
    """Each node downloads it before its first message, also over a slow line."""
    made = bundle()
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        lines = archive.read(".info/CONTENT").decode("utf-8").splitlines()
    found = {name: hashlib.sha256(content).hexdigest() for name, content in listed(made).items()}
    assert found == dict(line.split(",")[:2] for line in lines)
    assert len(made) < 0.5 * sum(map(len, listed(made).values()))


def test_the_wheel_has_the_file(tmp_path: Path) -> None:
    target: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"][
        "build"
    ]
    assert target["targets"]["wheel"]["extra-metadata"] == {"pyproject.toml": host.IN_METADATA.split("/")[1]}
    assert {*PACKAGES, "bouquet"} == set(target["targets"]["wheel"]["packages"])

"""The site is built without a warning, and one planted in a page is found; packages are sound and whole."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LARGEST_WHEEL = 3_000_000  # bytes


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment on the project; return what it said."""
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)


def build(to: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder as `make docs` does; a second time only what has changed."""
    strict = ["-W", "--keep-going", "-q", "-c", "docs", "-d", str(to / "trees"), "-b", "html"]
    return tool("sphinx", *strict, ".", str(to / "site"))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    for page in ("docs/start/first-run", "docs/reference/keys", "docker/SECURITY", "index"):
        assert (tmp_path / "site" / f"{page}.html").exists()
    assert "fedprox.mu" in (tmp_path / "site/docs/reference/keys.html").read_text("utf-8")
    # A link to nowhere, to a heading that is not there, and to a file that is not there: each is found.
    page = ROOT / "docs" / "start" / "planted.md"
    links = "[a](nowhere.md) [b](../howto/runs.md#no-such-heading) [c](../images/none.png)"
    try:
        page.write_text(f"---\norphan: true\n---\n\n# Planted\n\n{links}\n", encoding="utf-8")
        done = build(tmp_path)
    finally:
        page.unlink()
    assert done.returncode != 0
    assert all(word in done.stderr for word in ("nowhere.md", "no-such-heading", "none.png")), done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_packages_are_sound(tmp_path: Path) -> None:
    """What PyPI shows, what a wheel should not have, and its size."""
    done = tool("hatchling", "build", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    for name, arguments in (
        ("twine", ["check", "--strict", str(wheel), str(source)]),
        ("check_wheel_contents", [str(wheel)]),
    ):
        done = tool(name, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    assert wheel.stat().st_size < LARGEST_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        parts = {Path(name).name: Path(name).parent.name for name in archive.namelist()}
    assert (parts["bouquet.1"], parts["LICENSE"]) == ("man1", "licenses")
    with tarfile.open(source) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    if (ROOT / ".git").exists():  # the source has all that git keeps, and so the tests and what they read
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert files == {*tracked.stdout.splitlines(), "PKG-INFO"}


def test_the_citation_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert [a["name"] for a in cited["authors"]] == [a["name"] for a in project["authors"]]
    assert cited["keywords"] == project["keywords"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {cited['version']} ({cited['date-released']})\n" in changelog

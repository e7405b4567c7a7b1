"""``python -m tests.compat``: the app, its simulation and its link on every tested Flower, and on next ones.

Each version from the oldest that pyproject.toml admits to the newest tested has an environment of its own,
``.venv-compat/1.42``; version.py is what is checked in it. So has each *next* Flower, which next_flower.py
makes of the installed one; next_version.py is what is checked there. The same recipe must end in the same
model bytes everywhere, also where link and nodes have different versions. Prints a line per check and a
table; exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from server_app.deploy.host.host import APP_DIR
from task.flower.names import NEWEST_TESTED
from tests.compat.next_flower import SEEDS, VERSION
from tests.compat.next_flower import environment as next_environment
from tests.compat.version import check

WORK = APP_DIR / ".venv-compat"
# flwr 1.42 asks for a certifi one day younger than this floor of ours, which not every index has.
OVERRIDE = "certifi>=2026.10.18\n"


def supported() -> list[str]:
    """Return the versions from the oldest that pyproject.toml admits to the newest tested."""
    dependencies = tomllib.loads((APP_DIR / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (pin,) = (d for d in dependencies if d.startswith("flwr["))
    bounds = re.fullmatch(r"flwr\[simulation\]>=1\.(\d+),<2", pin)
    assert bounds, pin
    return [f"1.{minor}" for minor in range(int(bounds[1]), NEWEST_TESTED[1] + 1)]


def environment(version: str) -> Path:
    """Return the Python of a version's environment, made or brought up to date."""
    python = WORK / version / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", WORK / version], check=True)
    override = WORK / "override.txt"
    override.write_text(OVERRIDE)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "--override", override, "--compile-bytecode",
         "--editable", ".", "--group", "dev", f"flwr[simulation]=={version}.*"],
        check=True, cwd=APP_DIR,
    )  # fmt: skip
    return python


def run(python: Path, *options: str, module: str = "version") -> dict[str, str]:
    """Return what the checks of one version found; empty if they did not end."""
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        out = Path(folder, "found.json")
        subprocess.run([python, "-m", f"tests.compat.{module}", "--out", out, *options], cwd=APP_DIR)
        return json.loads(out.read_text()) if out.exists() else {}


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="tests.compat", description=__doc__.split("\n")[0])
    parser.add_argument(
        "versions", nargs="*", default=[*supported(), NEXT], help=f"such as 1.41, or {NEXT}; default: all"
    )
    asked = parser.parse_args().versions
    versions = [version for version in asked if version != NEXT]
    pythons = {version: environment(version) for version in versions}
    found = {
        f"flwr {version}": run(python, *(["--stock"] if version == versions[-1] else []))
        for version, python in pythons.items()
    }
    if NEXT in asked:
        found["flwr here"] = run(Path(sys.executable), "--simulation")
        for seed in SEEDS:
            python = next_environment(WORK / f"{NEXT}-{seed}", seed)
            found[f"flwr {VERSION}, seed {seed}"] = run(python, module="next_version")
    if len(versions) > 1:
        oldest, newest = versions[0], versions[-1]
        for link, node in ((newest, oldest), (oldest, newest)):
            found[f"link {link}, nodes {node}"] = run(pythons[link], "--nodes", str(pythons[node]))
    for name, checks in found.items():
        print(f"{name:24}", *(f"{what}: {how}" for what, how in checks.items()), sep="  ")
    models = {how for checks in found.values() for what, how in checks.items() if what in MODELS}
    good = all(checks and "FAIL" not in checks.values() for checks in found.values())
    return 0 if check("the same model bytes everywhere", len(models) == 1) and good else 1


NEXT = "next"
MODELS = ("simulation", "federation", "killed node", "resumed")

if __name__ == "__main__":
    sys.exit(main())

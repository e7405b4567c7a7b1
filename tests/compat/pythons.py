"""``python -m tests.compat.pythons``: the wheel on every supported Python, with the oldest and newest torch.

Each has an environment of its own, ``.venv-compat/python-3.12``, made by uv: the wheel of this tree and
pytest, nothing else. From an empty folder it runs the recipe ``demo``, which must end in the same model bytes
everywhere; then the tests that need no package of the group dev. Prints a line for each; exit code 1 if one
failed, or if uv neither finds a Python nor can fetch it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from server_app.deploy.host.host import APP_DIR
from tests.compat.__main__ import WORK
from tests.compat.version import check, sha

UV = Path(sys.executable).with_name("uv")
PROJECT = tomllib.loads((APP_DIR / "pyproject.toml").read_text("utf-8"))["project"]
TESTS = (
    "tests/test_promise.py", "tests/test_flower_names.py", "tests/task/test_config.py",
    "tests/strategies/test_examples.py", "tests/client_app/test_solvers.py",
)  # fmt: skip


def supported() -> list[str]:
    """Return the Pythons that the classifiers of pyproject.toml name, oldest first."""
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["classifiers"])
    return [match[1] for match in found if match]


def oldest_torch() -> str:
    """Return the oldest torch that pyproject.toml admits, such as torch==2.4.*."""
    (pin,) = (d for d in PROJECT["dependencies"] if d.startswith("torch>="))
    return pin.partition(",")[0].replace(">=", "==") + ".*"


def environment(folder: Path, python: str, *packages: str) -> None:
    """Make an environment of a Python with some packages and what runs tests."""
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", python, folder], check=True)
    line = [UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    subprocess.run([*line, "pytest", "pytest-timeout", "pytest-xdist", *packages], check=True)


def demo(environment: Path) -> str:
    """Return the hash of the demo's model, of the installed command in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        line = [environment / "bin" / "bouquet", "run", "--recipe", "demo", "--run-name", "demo"]
        subprocess.run(line, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)
        return sha(Path(folder, "runs", "demo"))


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="tests.compat.pythons", description=__doc__.split("\n")[0])
    parser.add_argument("pythons", nargs="*", default=supported(), help="3.12, or a path; default: all")
    pythons = parser.parse_args().pythons
    torch = oldest_torch()
    cases = [*((python, "") for python in pythons), (supported()[0], torch)]
    models, good = set[str](), True
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, APP_DIR], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        for python, pin in cases:
            name = f"python-{Path(python).name.removeprefix('python')}"
            made = WORK / (f"{name}-oldest-torch" if pin else name)
            try:
                environment(made, python, str(wheel), *filter(None, [pin]))
                models.add(model := demo(made))
                line = [made / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
                subprocess.run(line, check=True, cwd=APP_DIR)
                check(f"{made.name}: model {model}, tests", True)
            except subprocess.SubprocessError as err:
                good = check(f"{made.name}: {err}", False)
    return 0 if check("the same model bytes everywhere", len(models) == 1) and good else 1


if __name__ == "__main__":
    sys.exit(main())

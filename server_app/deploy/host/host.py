"""This machine: its place names, free ports and marked processes."""

import hashlib
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import psutil

from task.errors import PACKAGES

MARK = "BOUQUET_FEDERATION"
APP_DIR = Path(__file__).resolve().parents[3]
PROJECT = "pyproject.toml"
IN_METADATA = f"extra_metadata/{PROJECT}"  # of a wheel
MACHINE_ID = Path("/etc/machine-id")
PLACE_HEADER = "bouquet-place"  # of a call to the Fleet API
APP_HEADER = "bouquet-app"  # of a node that runs only its installed app: its version
HOLD_HEADER = "bouquet-hold"  # of a long poll: the seconds that the SuperLink may wait


@contextmanager
def app_folder() -> Iterator[Path]:
    """Yield the app's folder with its ``pyproject.toml``, from which Flower builds a bundle.

    That is the checkout; of an app that is installed from a wheel it is a copy, made for the block.

    Raises:
        OSError: The app's files are not here.
    """
    if _is_ours(APP_DIR / PROJECT):
        yield APP_DIR
        return
    with tempfile.TemporaryDirectory(prefix="bouquet-app-") as folder:
        text = distribution("bouquet").read_text(IN_METADATA)
        if text is None:
            raise OSError(f"the installed bouquet has no {IN_METADATA}")
        Path(folder, PROJECT).write_text(text, "utf-8")
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(APP_DIR / package, Path(folder, package), ignore=ignored)
        yield Path(folder)


def _is_ours(project: Path) -> bool:
    """Return whether a file is Bouquet's ``pyproject.toml``: other packages leave theirs next to it."""
    try:
        return bool(tomllib.loads(project.read_text("utf-8"))["project"]["name"] == "bouquet")
    except (OSError, KeyError, TypeError, ValueError):
        return False


def place_of(folder: Path) -> str:
    """Return a name for a folder of this machine: it outlives restarts, and no other machine has it."""
    try:
        machine = MACHINE_ID.read_text("utf-8").strip()
    except OSError:
        machine = ""
    name = "\0".join([machine, socket.gethostname(), str(folder.resolve())])
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def marked(mark: str, name: str = MARK) -> Iterator[psutil.Process]:
    """Yield the processes that have a mark in their environment, under a name."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])

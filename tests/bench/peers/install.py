"""An environment for each peer, made by uv from PyPI, so that one's pins do not meet another's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions, version
from pathlib import Path

LIMIT_S = 1200.0
# torch is ours, so that all of them compute with the same one.
TORCH = f"torch=={version('torch').split('+')[0]}"
REQUIREMENTS: dict[str, Sequence[str]] = {
    "pfl": ("pfl==0.6.0", TORCH),
    "fluke": ("fluke-fl==0.8.1", TORCH),
    "fedlab": ("fedlab==1.3.0", TORCH),
    "flower": ("flwr[simulation]>=1.39", "torchvision", TORCH),
    "fedjax": ("fedjax==0.0.17", "jax[cpu]==0.10.2"),
}


def folder_of(work: Path, peer: str) -> Path:
    """Return the folder of a peer's environment."""
    return work / "peers-venv" / peer


def python_of(work: Path, peer: str) -> Path | None:
    """Return the Python of a peer's environment; None if it is not installed."""
    folder = folder_of(work, peer)
    wanted = "\n".join(REQUIREMENTS[peer])
    ready = folder / ".ready"
    return folder / "bin" / "python" if ready.is_file() and ready.read_text() == wanted else None


def version_of(work: Path, peer: str) -> str:
    """Return the version of a peer that is installed, "" if none is."""
    name = re.split(r"[\[=<>]", REQUIREMENTS[peer][0])[0]
    paths = [str(p) for p in folder_of(work, peer).glob("lib/python*/site-packages")]
    return next((d.version for d in distributions(name=name, path=paths)), "")


def install(work: Path, peer: str) -> Path:
    """Make a peer's environment if it is not there and return its Python.

    Raises:
        RuntimeError: It cannot be installed; the message ends with the last lines of uv.
    """
    if python := python_of(work, peer):
        return python
    folder = folder_of(work, peer)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is not installed; `make setup` does it")
    wanted = REQUIREMENTS[peer]
    for words in (
        ["venv", "--python", sys.executable, str(folder)],
        ["pip", "install", "--compile-bytecode", "--python", str(python), *wanted],
    ):
        try:
            done = subprocess.run([uv, "--quiet", *words], capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"uv {words[0]} took longer than {LIMIT_S:g} s") from None
        if done.returncode:
            tail = " ".join(done.stderr.split())[-400:]
            raise RuntimeError(f"uv {words[0]} ended with {done.returncode}: {tail}")
    (folder / ".ready").write_text("\n".join(wanted))
    return python

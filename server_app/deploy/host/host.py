"""This machine: its place names, free ports and marked processes."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "BOUQUET_FEDERATION"
APP_DIR = Path(__file__).resolve().parents[3]
MACHINE_ID = Path("/etc/machine-id")
PLACE_HEADER = "bouquet-place"  # of a call to the Fleet API
APP_HEADER = "bouquet-app"  # of a node that runs its installed app only: which that is
HOLD_HEADER = "bouquet-hold"  # of a call that the SuperLink may hold until there is an answer: seconds


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

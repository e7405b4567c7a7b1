"""Whole runs with a transcript, in this process: ServerApp, real messages, real clients, result folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_app.app import make_app
from server_app.app import run
from server_app.extras.verify.check import verify
from server_app.extras.verify.findings import Findings
from task.resolve.read import read_config
from tests.support.grid import LocalGrid


def run_here(
    keys: Mapping[str, Any], folder: Path, nodes: int = 2, grid: type[LocalGrid] = LocalGrid, **more: Any
) -> Path:
    """Do a run; return its result folder. What clients keep, receipts too, lies in ``folder/state``."""
    places = {"runs-dir": str(folder / "runs"), "state-dir": str(folder / "state"), "progress": "none"}
    given = {"transcript": "sums", **keys, **places}
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    return run(grid(make_app(given), configs, **more), read_config(given), overlap=False)


def found(run_folder: Path, state: Path | None = None) -> Findings:
    """Return what a check of a run finds, with the receipts of a state folder."""
    return verify(run_folder, state)[1]


def texts(findings: Findings) -> list[str]:
    """Return the contradictions as lines."""
    return [str(fault) for fault in findings.faults]

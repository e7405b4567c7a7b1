"""Start a command, see its rounds pass, measure its memory, and leave no process behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.bench.data import ROOT

LIMIT_S = 1800.0  # of one command
LOOK_S = 0.02  # between looks at rounds.jsonl


@dataclass
class Outcome:
    """What a finished command showed.

    Attributes:
        rows: The lines of its rounds.jsonl.
        until_round_1: Seconds from the start to the end of round 1, evaluation and checkpoint included.
        wall: Seconds from the start to the end of the process.
        peak: Peak bytes of all its processes together, 0 if not asked for.
        processes: Their number at the peak.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    until_round_1: float = float("nan")
    wall: float = float("nan")
    peak: int = 0
    processes: int = 0

    def seconds(self, skip: int) -> list[float]:
        """Return the seconds of the rounds after number `skip`."""
        return [row["seconds"]["total"] for row in self.rows if row["round"] > skip]


def environment(work: Path, data: Path) -> dict[str, str]:
    """Return the environment of the commands: data and caches of the benchmarks, no reports to anybody."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return env | {
        "BOUQUET_CACHE": str(work / "cache"),
        "BOUQUET_DATA": str(data),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(work / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def bouquet(folder: Path, keys: Mapping[str, Any], *more: str) -> list[str]:
    """Return the command line of ``bouquet run`` into `folder`."""
    pairs = " ".join(f"{k}={json.dumps(v)}" for k, v in keys.items())
    place = ["--run-name", folder.name, "--runs-dir", str(folder.parent)]
    return [str(Path(sys.executable).with_name("bouquet")), "run", *more, "-c", pairs, *place]


def run(command: list[str], folder: Path, env: Mapping[str, str], *, memory: bool = False) -> Outcome:
    """Run a command that writes ``rounds.jsonl`` into `folder`, to its end.

    Raises:
        RuntimeError: It failed; the message ends with its last lines.
    """
    folder.mkdir(parents=True)
    log, rounds = folder.with_suffix(".log"), folder / "rounds.jsonl"
    outcome = Outcome()
    with log.open("wb") as sink:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=sink, stderr=subprocess.STDOUT)
        family = psutil.Process(process.pid)
        try:
            while process.poll() is None and time.perf_counter() - start < LIMIT_S:
                if outcome.until_round_1 != outcome.until_round_1 and _lines(rounds) >= 2:  # round 0 is first
                    outcome.until_round_1 = time.perf_counter() - start
                if memory:
                    _measure(family, outcome)
                time.sleep(0.2 if memory else LOOK_S)
            outcome.wall = time.perf_counter() - start
        finally:
            end(family)
    if process.wait() != 0 or _lines(rounds) < 2:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    outcome.rows = [json.loads(line) for line in rounds.read_text(encoding="utf-8").splitlines()]
    return outcome


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _measure(family: psutil.Process, outcome: Outcome) -> None:
    """Raise `outcome`'s peak to what the process and its descendants hold now.

    Proportional set size where the system has it: pages that several processes share count once.
    """
    total = count = 0
    for process in _tree(family):
        try:
            info = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(info, "pss", 0) or info.rss
        count += 1
    if total > outcome.peak:
        outcome.peak, outcome.processes = total, count


def _tree(family: psutil.Process) -> list[psutil.Process]:
    try:
        return [family, *family.children(recursive=True)]
    except psutil.Error:
        return []


def end(family: psutil.Process) -> None:
    """Stop a process and its descendants if they still run."""
    left = _tree(family)
    for process in left:
        try:
            process.terminate()
        except psutil.Error:
            continue
    for process in psutil.wait_procs(left, timeout=5)[1]:
        try:
            process.kill()
        except psutil.Error:
            continue

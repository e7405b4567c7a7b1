"""Start a command, see its rounds pass, measure its memory, and leave no process behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.bench.data import ROOT

LIMIT_S = 1800.0  # of one command
LOOK_S = 0.005  # between looks at rounds.jsonl
SAMPLE_S = 0.1  # between samples of the memory


@dataclass
class Outcome:
    """What a finished command showed.

    Attributes:
        rows: The lines of its rounds.jsonl.
        arrivals: Seconds from the start to each of the lines; a line comes when its round is evaluated.
        wall: Seconds from the start to the end of the process.
        pss: Peak bytes of all its processes together, pages that several share counted once; 0 if not asked
            for.
        rss: The same with shared pages counted in each process.
        processes: Their number at the peak.
        cpu: Seconds of CPU time of the process and of those that it waited for.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    wall: float = float("nan")
    pss: int = 0
    rss: int = 0
    processes: int = 0
    cpu: float = float("nan")

    @property
    def until_round_1(self) -> float:
        """Seconds from the start to the end of round 1, its evaluation included."""
        return self.arrivals[1] if len(self.arrivals) > 1 else float("nan")

    @property
    def accuracy(self) -> float:
        """Accuracy after the last round."""
        return float(self.rows[-1]["accuracy"])

    def seconds(self, skip: int) -> list[float]:
        """Return the seconds of the rounds after number `skip`: from one line to the next.

        Not the command's own figure, which may leave out what runs during the next round.
        """
        return [b - a for a, b in pairwise(self.arrivals[skip:])]


def environment(work: Path, data: Path) -> dict[str, str]:
    """Return the environment of the commands: data and caches of the benchmarks, no reports to anybody.

    Ray's workers run at niceness 15 by default, so that on a busy machine they alone would be slowed down.
    A GPU stays unseen: all sides are compared on the same cores.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return env | {
        "BOUQUET_CACHE": str(work / "cache"),
        "BOUQUET_DATA": str(data),
        "CUDA_VISIBLE_DEVICES": "",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(work / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }


def bouquet(folder: Path, keys: Mapping[str, Any], *more: str) -> list[str]:
    """Return the command line of ``bouquet run`` into `folder`."""
    pairs = " ".join(f"{k}={json.dumps(v)}" for k, v in keys.items())
    place = ["--run-name", folder.name, "--runs-dir", str(folder.parent)]
    return [str(Path(sys.executable).with_name("bouquet")), "run", *more, "-c", pairs, *place]


def run(command: list[str], folder: Path, env: Mapping[str, str], *, memory: bool = False) -> Outcome:
    """Run a command that writes ``rounds.jsonl`` into `folder`, to its end.

    Args:
        command: The command line.
        folder: The result folder, not there yet.
        env: Environment.
        memory: Sample the memory of all its processes; costs some time, so that its seconds do not count.

    Raises:
        RuntimeError: It failed; the message ends with its last lines.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log, rounds = folder.with_suffix(".log"), folder / "rounds.jsonl"
    outcome = Outcome()
    size, before = 0, _cpu()
    with log.open("wb") as sink:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=sink, stderr=subprocess.STDOUT)
        family = psutil.Process(process.pid)
        try:
            alive = True
            while alive and time.perf_counter() - start < LIMIT_S:
                alive = process.poll() is None  # before the last look at the file
                now = time.perf_counter() - start
                if rounds.exists() and rounds.stat().st_size != size:
                    size = rounds.stat().st_size
                    new = rounds.read_bytes().count(b"\n") - len(outcome.arrivals)
                    outcome.arrivals += [now] * new
                if memory and alive:
                    _measure(family, outcome)
                time.sleep((SAMPLE_S if memory else LOOK_S) if alive else 0)
            outcome.wall = now
        finally:
            end(family)
    outcome.cpu = _cpu() - before
    if process.wait() != 0 or len(outcome.arrivals) < 2:
        raise RuntimeError(f"{_brief(command)} ended with {process.returncode}:\n{last_lines(log)}")
    outcome.rows = read_rows(folder)
    return outcome


def _cpu() -> float:
    """Return the seconds of CPU time of all processes that this one has waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a result folder's rounds.jsonl."""
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def last_lines(log: Path) -> str:
    """Return the end of what a command printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _brief(command: list[str]) -> str:
    words = " ".join(command)
    return words if len(words) < 200 else f"{words[:200]}..."


def _measure(family: psutil.Process, outcome: Outcome) -> None:
    """Raise `outcome`'s peaks to what the process and its descendants hold now.

    Where the system has no proportional set size, the resident one takes its place.
    """
    pss = rss = count = 0
    for process in _tree(family):
        try:
            info = process.memory_full_info()
        except psutil.Error:
            continue
        pss += getattr(info, "pss", 0) or info.rss
        rss += info.rss
        count += 1
    outcome.rss = max(outcome.rss, rss)
    if pss > outcome.pss:
        outcome.pss, outcome.processes = pss, count


def _tree(family: psutil.Process) -> list[psutil.Process]:
    try:
        return [family, *family.children(recursive=True)]
    except psutil.Error:
        return []


def end(family: psutil.Process, *more: psutil.Process) -> None:
    """Stop a process, its descendants and `more` if they still run."""
    left = list({*_tree(family), *more})
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

"""Start a command, see its rounds pass, measure its memory, and leave no process behind."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
        gated: Seconds from gate to gate, the first from the start: all that the round loop does.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    until_round_1: float = float("nan")
    wall: float = float("nan")
    peak: int = 0
    processes: int = 0
    gated: list[float] = field(default_factory=list)

    def seconds(self, skip: int) -> list[float]:
        """Return the seconds of the rounds after number `skip`."""
        return [row["seconds"]["total"] for row in self.rows if row["round"] > skip]


def environment(work: Path, data: Path) -> dict[str, str]:
    """Return the environment of the commands: data and caches of the benchmarks, no reports to anybody.

    Ray's workers run at niceness 15 by default, so that on a busy machine they alone would be slowed down.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return env | {
        "BOUQUET_CACHE": str(work / "cache"),
        "BOUQUET_DATA": str(data),
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


def run(
    command: list[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    memory: bool = False,
    between: Callable[[], object] | None = None,
) -> Outcome:
    """Run a command that writes ``rounds.jsonl`` into `folder`, to its end.

    Args:
        command: The command line.
        folder: The result folder, not there yet.
        env: Environment.
        memory: Sample the memory of all its processes; costs some time.
        between: Called while the command, which must be `tests.bench.gated`, waits.

    Raises:
        RuntimeError: It failed; the message ends with its last lines.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log, rounds = folder.with_suffix(".log"), folder / "rounds.jsonl"
    outcome = Outcome()
    gate = Gate() if between else None
    with log.open("wb") as sink:
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command[:3], *gate.arguments, *command[3:]] if gate else command,
            cwd=ROOT, env=dict(env), stdout=sink, stderr=subprocess.STDOUT,
            pass_fds=gate.theirs if gate else (),
        )  # fmt: skip
        family = psutil.Process(process.pid)
        try:
            if gate and between:
                outcome.gated = gate.serve(between)
            while process.poll() is None and time.perf_counter() - start < LIMIT_S:
                if math.isnan(outcome.until_round_1) and _lines(rounds) >= 2:  # the first is round 0
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


class Gate:
    """Our ends of the two pipes of a gated command."""

    def __init__(self) -> None:
        self.hear, say = os.pipe()
        hear, self.say = os.pipe()
        self.theirs = say, hear
        self.arguments = [str(say), str(hear)]

    def serve(self, between: Callable[[], object]) -> list[float]:
        """Call `between` at each gate until the command ends; return the seconds from gate to gate."""
        for descriptor in self.theirs:
            os.close(descriptor)
        seconds = []
        start = time.perf_counter()
        while os.read(self.hear, 1):
            seconds.append(time.perf_counter() - start)
            between()
            start = time.perf_counter()
            with contextlib.suppress(BrokenPipeError):
                os.write(self.say, b".")
        for descriptor in (self.hear, self.say):
            os.close(descriptor)
        return seconds


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

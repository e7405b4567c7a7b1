"""What a benchmark returns, the machine that it ran on, and how both are shown and kept."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Reading:
    """One number.

    Attributes:
        benchmark: Name of the benchmark.
        what: What was measured, against what.
        measured: The number.
        unit: ``x`` for a ratio, else ``s``, ``ms``, ``MB``.
        target: At most so much; None if there is no target.
        detail: What went into it, in words.
        samples: The single measurements, by side.
    """

    benchmark: str
    what: str
    measured: float
    unit: str = "x"
    target: float | None = None
    detail: str = ""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)


def median(values: Iterable[float]) -> float:
    """Return the median; NaN of nothing."""
    known = list(values)
    return statistics.median(known) if known else float("nan")


def short(value: float) -> str:
    """Return a number with three digits, but no power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ratio(
    benchmark: str,
    what: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None,
    unit: str = "s",
    detail: str = "",
) -> Reading:
    """Return the ratio of two medians, with both in the detail."""
    a, b = median(ours), median(theirs)
    words = f"{short(a)} {unit} : {short(b)} {unit}, medians of {len(ours)} and {len(theirs)}"
    samples = {"ours": list(ours), "theirs": list(theirs)}
    return Reading(benchmark, what, a / b, "x", target, f"{words}{'; ' if detail else ''}{detail}", samples)


def machine() -> dict[str, Any]:
    """Return what a reading depends on beside the code; takes the two seconds that it looks at the CPUs."""
    import psutil
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "load": [round(x, 2) for x in os.getloadavg()],
        "busy_percent": psutil.cpu_percent(interval=2.0),
        "cpus": cpus,
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "flwr", "ray", "numpy")},
    }


def busy(percent: float) -> str:
    """Return a warning if the CPUs had work before the benchmarks began, else nothing."""
    return f"CPUs {percent:.0f} % busy before the first benchmark: readings disturbed" if percent > 10 else ""


def append(path: Path, readings: Iterable[Reading], about: Mapping[str, Any]) -> None:
    """Append a JSON line per reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with path.open("a", encoding="utf-8") as file:
        for reading in readings:
            file.write(json.dumps({"time": now, **asdict(reading), "about": dict(about)}) + "\n")


def show(console: Console, readings: Iterable[Reading]) -> None:
    """Print a table."""
    table = Table("benchmark", "what", "measured", "target", "detail", title="Bouquet's benchmarks")
    for r in readings:
        target = "-" if r.target is None else f"<= {r.target:g} {r.unit}"
        if r.target is not None:
            target = f"[{'green' if r.measured <= r.target else 'red'}]{target}"
        table.add_row(r.benchmark, r.what, f"{short(r.measured)} {r.unit}", target, r.detail)
    console.print(table)

"""What a benchmark returns, the machine that it ran on, and how both are shown and kept."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BUSY_PERCENT = 10.0  # from here on a reading is called disturbed
WIDEST = 3.0  # of the picture, in targets
NEAR, FAR = "#3a7d44", "#b03030"  # colours of what meets its target and of what does not


@dataclass(frozen=True)
class Row:
    """One line of the table, one object of bench.json.

    Attributes:
        name: Name of the row.
        what: What was measured, against what.
        ratio: The median over the runs; None if there is none, and then `error` or `detail` says why.
        target: At most so much; None if there is no target.
        unit: ``x`` if `ratio` is one, ``MB`` if it is a growth of the memory.
        runs: Number of runs or pairs of runs.
        min: The smallest of their ratios.
        max: The largest.
        ours: Median of our side, in `side_unit`.
        theirs: Median of the other side.
        side_unit: ``s``, ``ms`` or ``MB``.
        detail: What went into it, in words.
        error: Why it could not run.
        samples: The single measurements, by side.
        load: Load average over the last minute when its benchmark began.
        busy: Percent of the CPUs that was taken then, when nothing of ours ran.
        time: When its benchmark began.
    """

    name: str
    what: str = ""
    ratio: float | None = None
    target: float | None = None
    unit: str = "x"
    runs: int = 0
    min: float | None = None
    max: float | None = None
    ours: float | None = None
    theirs: float | None = None
    side_unit: str = "s"
    detail: str = ""
    error: str = ""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    load: float = math.nan
    busy: float = math.nan
    time: str = ""

    @property
    def words(self) -> str:
        """The detail as the table shows it."""
        if self.error:
            return f"could not run: {self.error.splitlines()[-1] if self.error.strip() else 'unknown'}"
        parts = [self.detail] if self.detail else []
        if self.ours is not None and self.theirs is not None:
            pair = f"{short(self.ours)} : {short(self.theirs)} {self.side_unit}"
            parts.insert(0, pair)
        return "; ".join(parts)


def median(values: Iterable[float]) -> float:
    """Return the median; NaN of nothing."""
    known = list(values)
    return statistics.median(known) if known else math.nan


def short(value: float) -> str:
    """Return a number with three digits, but no power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def paired(
    name: str,
    what: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None,
    side_unit: str = "s",
    detail: str = "",
) -> Row:
    """Return the median of the ratios of runs that stood side by side."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return _row(name, what, ratios, ours, theirs, target, "x", side_unit, detail)


def growth(
    name: str,
    what: str,
    large: Sequence[float],
    small: Sequence[float],
    target: float | None,
    detail: str = "",
) -> Row:
    """Return the median of the differences of runs that stood side by side, in MB."""
    grown = [a - b for a, b in zip(large, small, strict=True)]
    return _row(name, what, grown, large, small, target, "MB", "MB", detail)


def _row(
    name: str, what: str, values: Sequence[float], ours: Sequence[float], theirs: Sequence[float],
    target: float | None, unit: str, side_unit: str, detail: str,
) -> Row:  # fmt: skip
    return Row(
        name, what, median(values), target, unit,
        runs=len(values), min=min(values), max=max(values), ours=median(ours), theirs=median(theirs),
        side_unit=side_unit, detail=detail, samples={"ours": list(ours), "theirs": list(theirs)},
    )  # fmt: skip


def left_open(name: str, why: str) -> Row:
    """Return a row that this machine or this version has no answer for."""
    return Row(name, detail=f"left open: {why}")


def failed(name: str, error: BaseException) -> Row:
    """Return a row that could not run."""
    return Row(name, error=f"{type(error).__name__}: {error}")


def stamp(rows: Iterable[Row], before: Mapping[str, Any]) -> list[Row]:
    """Return the rows with what `now` said before their benchmark."""
    return [replace(row, **before) for row in rows]


def now() -> dict[str, Any]:
    """Return time, load average and how busy the CPUs are; takes the second over which it measures them."""
    import psutil

    busy = psutil.cpu_percent(interval=1.0)
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"load": round(os.getloadavg()[0], 2), "busy": busy, "time": time}


def machine() -> dict[str, Any]:
    """Return what a reading depends on besides the code."""
    import torch

    from task.numerics.devices import gpu_model

    return {
        "cpus": cpus(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu_model() or None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "flwr", "numpy")},
    }


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warning(percent: float) -> str:
    """Return a warning if the CPUs had work that was not ours, else nothing."""
    return f"CPUs {percent:.0f} % busy: readings disturbed" if percent > BUSY_PERCENT else ""


def write(path: Path, rows: Iterable[Row], about: Mapping[str, Any]) -> None:
    """Write the rows as a JSON list; what is not a number becomes null."""
    objects = [{k: _plain(v) for k, v in asdict(row).items()} | {"about": dict(about)} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}")
    temp.write_text(json.dumps(objects, indent=1) + "\n", encoding="utf-8")
    temp.replace(path)


def read(path: Path) -> list[Row]:
    """Return the rows of a file that `write` wrote; none if there is no file."""
    if not path.exists():
        return []
    objects = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**{k: v for k, v in each.items() if k != "about"}) for each in objects]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def merged(old: Iterable[Row], new: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """Return the new rows and those of the old ones that they do not replace, in the given order."""
    rows = {row.name: row for row in old} | {row.name: row for row in new}
    place = {name: i for i, name in enumerate(order)}
    return sorted(rows.values(), key=lambda row: place.get(row.name, len(place)))


def show(console: Console, rows: Iterable[Row]) -> None:
    """Print a table."""
    table = Table("row", "what", "ratio", "min-max", "target", "runs", "busy", "detail", title="Benchmarks")
    for r in rows:
        value = "-" if r.ratio is None else f"{short(r.ratio)} {r.unit}"
        spread = "-" if r.min is None or r.max is None else f"{short(r.min)}-{short(r.max)}"
        target = "-" if r.target is None else f"<= {r.target:g} {r.unit}"
        if r.target is not None and r.ratio is not None:
            target = f"[{'green' if r.ratio <= r.target else 'red'}]{target}"
        words = f"[red]{_escaped(r.words)}" if r.error else _escaped(r.words)
        table.add_row(r.name, r.what, value, spread, target, str(r.runs or "-"), f"{r.busy:.0f} %", words)
    console.print(table)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def draw(path: Path, rows: Iterable[Row], title: str) -> None:
    """Draw the rows that have a target: bars of ratio : target, with a line where both are equal."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.target is not None or row.error]
    known = [row for row in shown if row.ratio is not None and row.target]
    longest = max((row.ratio / row.target for row in known if row.ratio and row.target), default=1.0)
    right = min(max(1.15, 1.1 * longest), WIDEST)
    figure = Figure(figsize=(10, max(2.0, 0.42 * len(shown) + 1.3)), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(shown):
        if row.ratio is None or not row.target:
            why = row.error.partition("\n")[0][:90]
            axes.text(0.02, i, f"could not run: {why}", va="center", fontsize=8, color=FAR)
            continue
        share = max(row.ratio / row.target, 0.0)
        axes.barh(i, min(share, right), color=NEAR if share <= 1 else FAR, height=0.62)
        if row.min is not None and row.max is not None:
            axes.plot([row.min / row.target, row.max / row.target], [i, i], color="#222222", linewidth=1.2)
        label = f"{short(row.ratio)} {row.unit}  (target {row.target:g})"
        place = axes.get_yaxis_transform()
        axes.text(1.01, i, label, va="center", fontsize=9, transform=place)
    axes.axvline(1.0, color="#222222", linewidth=1.2, linestyle="--")
    axes.set_yticks(range(len(shown)), [row.name for row in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, right)
    beyond = f"; bars end at {WIDEST:g}" if longest > right else ""
    axes.set_xlabel(f"measured : target, shorter is better (line: least to most of the runs{beyond})")
    axes.set_title(title, fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)

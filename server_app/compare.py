"""Several runs side by side: a table and one plot, for `bouquet compare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from server_app.results import RunFolder
from task.errors import ConfigError
from task.metrics import rounds_to_target

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def groups(paths: Sequence[Path]) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the rounds of each run by curve; names that differ in a last ``-number`` are seeds of one.

    Raises:
        ConfigError: A path is no result folder, or holds no rounds.
    """
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for path in paths:
        rounds = RunFolder(path).rounds() if (path / "config.json").exists() else []
        if not rounds:
            raise ConfigError(f"compare: expected a result folder with rounds; got {path}")
        found.setdefault(re.sub(r"-\d+$", "", path.name), []).append(rounds)
    return found


def table(curves: dict[str, list[list[dict[str, Any]]]], target: float) -> Table:
    """Return final and best accuracy, loss and rounds to the target: mean, and range over seeds."""
    out = Table(
        "run", "seeds", "rounds", "final accuracy", "best accuracy", "final loss", f"rounds to {target:g}"
    )
    for name, runs in curves.items():
        last = [[r for r in rounds if r["accuracy"] is not None][-1] for rounds in runs]
        best = [max(r["accuracy"] for r in rounds if r["accuracy"] is not None) for rounds in runs]
        reached = [_to_target(rounds, target) for rounds in runs]
        out.add_row(
            name,
            str(len(runs)),
            str(max(len(r) for r in runs) - 1),
            _range([r["accuracy"] for r in last]),
            _range(best),
            _range([r["loss"] for r in last]),
            _range([x for x in reached if x is not None]) if None not in reached else "not reached by all",
        )
    return out


def _to_target(rounds: list[dict[str, Any]], target: float) -> float | None:
    seen = [(r["round"], r["accuracy"]) for r in rounds if r["accuracy"] is not None]
    return rounds_to_target([s[0] for s in seen], [s[1] for s in seen], target)


def _range(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4g} to {max(values):.4g})"


def plot(curves: dict[str, list[list[dict[str, Any]]]], path: Path) -> None:
    """Draw loss and accuracy by round: the mean over seeds, and the range as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, key in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for colour, (name, runs) in zip(COLOURS * len(curves), curves.items(), strict=False):
            series = [{r["round"]: r[key] for r in rounds if r[key] is not None} for rounds in runs]
            x = sorted(set.intersection(*(set(s) for s in series)))
            y = np.array([[s[i] for i in x] for s in series])
            axes.plot(
                x, y.mean(0), color=colour, label=f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name
            )
            axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel(f"{key} on the global test set")
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)

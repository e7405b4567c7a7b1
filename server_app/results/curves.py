"""Survival curves in a result folder: ``table.csv``, ``table.tex``, ``survival.png`` and a plot."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from server_app.results.lines import Row
from server_app.results.svg import COLOURS, LIGHT, Plot, Point, Series
from server_app.results.written import CSV, LATEX, ResultTable, closed
from task.classical.curves import LATEX as HEADS
from task.classical.curves import curves_of
from task.classical.survival import survival_of
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text

PICTURE = "survival.png"
HOLDS = "no weights of a model: the counts by bin of time that table.csv is made of"
_DRAWN = 8  # groups that have limits in the picture
_MOST_STEPS = 390  # of a line on the page


def write_curves(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table and the picture of curves that have counts; return what result.json says of them."""
    if not arrays["counts"].any():
        for name in (CSV, LATEX, PICTURE):
            (folder / name).unlink(missing_ok=True)
        return {"converged": False}
    survival = survival_of(config)
    found = curves_of(survival, arrays)
    write_text(folder / CSV, found.points().csv())
    write_text(folder / LATEX, found.medians().latex(HEADS))
    table = {"converged": True, "time": survival.time.name, **found.as_dict()}
    test = found.test
    title = f"log-rank p = {test.p:.3g}" if test and test.p is not None else ""
    draw_curves(folder / PICTURE, _labelled(table), survival.time.name, title)
    return table


def curve_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the curves, as (label, text)."""
    table: Row = result["table"]
    lines = [(str(row["group"]), _words(row)) for row in table["curves"]]
    test, below = table["log_rank"], merged_line(table)
    if test and test["chi2"] is not None:
        below = [("Log-rank test", f"chi2 {test['chi2']:.10g}, df {test['df']}, p {test['p']:.4g}"), *below]
    return closed(table, lines, below)


def merged_line(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the line of the terminal that says whether bins of time were merged."""
    merged = len(table["merged"])
    return [("Merged bins of time", f"{merged}, as sites' min-examples asks for")] if merged else []


def _words(row: Row) -> str:
    middle, low, high = (
        "not reached" if row[k] is None else f"{row[k]:g}"
        for k in ("median_time", "median_lower", "median_upper")
    )
    return f"{row['persons']} persons, {row['events']} events, median {middle} (95 % {low} to {high})"


def _steps(row: Row, of: str) -> list[tuple[float, float]]:
    """Return a curve as a function of time that is constant between points; it begins at 1."""
    known = [(p["time"], p[of]) for p in row["points"] if p.get(of) is not None]
    return [(min(0.0, *(t for t, _ in known)) if known else 0.0, 1.0), *known]


def draw_curves(path: Path, rows: Sequence[Row], x: str, title: str = "") -> None:
    """Draw curves, each a ``label`` and ``points``, with limits where they are few."""
    from matplotlib.figure import Figure  # a second to import

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        colour, steps = LIGHT[f"c{i % COLOURS}"], _steps(row, "survival")
        axes.step(*zip(*steps, strict=True), where="post", color=colour, label=row["label"])
        censored = [(p["time"], p["survival"]) for p in row["points"] if p.get("censored")]
        axes.plot(*zip(*censored, strict=True) if censored else ([], []), "|", color=colour, markersize=5)
        if len(rows) <= _DRAWN:
            low, high = _steps(row, "lower"), _steps(row, "upper")
            at, bottom, top = [t for t, _ in low], [s for _, s in low], [s for _, s in high]
            axes.fill_between(at, bottom, top, step="post", color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=x, ylabel="survival", ylim=(0, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def plot_of(rows: Sequence[Row], x: str, note: str) -> Plot:
    """Return the plot of curves, each a ``label`` and ``points``, for a page."""
    series = []
    for i, row in enumerate(rows):
        steps = _steps(row, "survival")
        steps = steps[:: max(1, -(-len(steps) // _MOST_STEPS))]
        points = [Point(*steps[0])]
        for (_, before), (at, after) in pairwise(steps):
            points += [Point(at, before), Point(at, after)]
        series.append(Series(row["label"], i, points))
    return Plot(
        "survival", "Survival", "share without the event", note, series, x=x, zero=True, within=(0.0, 1.0)
    )


def curve_plots(result: Mapping[str, Any]) -> list[Plot]:
    """Return the plot of the curves."""
    table: Row = result["table"]
    note = "Kaplan-Meier curves of the rows of all sites; limits and all digits are in table.csv."
    return [plot_of(_labelled(table), table["time"], note)]


def _labelled(table: Row) -> list[Row]:
    return [{**row, "label": f"{row['group']} (n = {row['persons']})"} for row in table["curves"]]


TABLES = {"survival": ResultTable(HOLDS, write_curves, curve_lines, curve_plots)}

"""Cox's regression in a result folder: table, ``baseline.csv``, and the curve of a person at the means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.coefficients import CSV, LATEX
from server_app.results.curves import PICTURE, draw_curves, plot_of
from server_app.results.lines import Row
from server_app.results.svg import Plot
from task.classical.cox import cox_of
from task.classical.hazards import hazards_of_result
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text
from task.text import logger

BASELINE = "baseline.csv"
HOLDS = "no weights of a model: the coefficients, their covariance and the baseline of table.csv"
_WHOSE = "of a person whose columns are at their means"
_SHOWN = 40  # coefficients in the terminal


def write_hazards(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of a regression that has ended; return what result.json says of it."""
    if not arrays["figures"].any():
        for name in (CSV, LATEX, BASELINE, PICTURE):
            (folder / name).unlink(missing_ok=True)
        rounds = config.server.num_server_rounds
        logger.warning("no table: the iteration has not ended in %d rounds; raise num-server-rounds", rounds)
        return {"converged": False}
    cox = cox_of(config)
    found = hazards_of_result(cox, arrays)
    write_text(folder / CSV, found.csv())
    write_text(folder / LATEX, found.latex())
    write_text(folder / BASELINE, found.baseline_csv())
    table = {"converged": True, "time": cox.survival.time.name, **found.as_dict()}
    draw_curves(folder / PICTURE, _curves(table), table["time"], _WHOSE)
    return table


def hazard_plots(result: Mapping[str, Any]) -> list[Plot]:
    """Return the plot of the baseline."""
    table: Row = result["table"]
    return [
        plot_of(_curves(table), table["time"], f"By Cox's regression, {_WHOSE}; baseline.csv has it all.")
    ]


def _curves(table: Row) -> list[Row]:
    return [{"label": name, "points": points} for name, points in table["baseline"].items()]


def hazard_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the table, as (label, text)."""
    table: Row = result["table"]
    lines = [(str(row["name"]), _text(row)) for row in table["coefficients"][:_SHOWN]]
    if more := len(table["coefficients"]) - len(lines):
        lines.append(("...", f"{more} more in {CSV}"))
    figures = ("rows", "events", "log_likelihood", "aic", "likelihood_ratio_chi2")
    lines += [(name, f"{table[name]:.10g}") for name in figures]
    if table["proportional_p"] is not None:
        lines.append(("Proportional hazards", f"p {table['proportional_p']:.3g}"))
    if table["merged"]:
        lines.append(("Merged bins of time", f"{len(table['merged'])}, as sites' min-examples asks for"))
    return [*lines, ("SHA-256 of all sums", str(table["sums_sha256"]))]


def _text(row: Row) -> str:
    ratio = f"hazard ratio {row['hazard_ratio']:.4g} ({row['lower']:.4g} to {row['upper']:.4g})"
    return f"{row['coefficient']:.8g} (se {row['se']:.6g}, p {row['p']:.3g}), {ratio}"

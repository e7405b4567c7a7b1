"""Cox's regression in a result folder: ``table.csv``, ``table.tex``, ``baseline.csv``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.coefficients import CSV, LATEX
from server_app.results.lines import Row
from task.classical.cox import cox_of
from task.classical.hazards import hazards_of_result
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text
from task.text import logger

BASELINE = "baseline.csv"
HOLDS = "no weights of a model: the coefficients, their covariance and the baseline of table.csv"
_SHOWN = 40  # coefficients in the terminal


def write_hazards(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of a regression that has ended; return what result.json says of it."""
    if not arrays["figures"].any():
        for name in (CSV, LATEX, BASELINE):
            (folder / name).unlink(missing_ok=True)
        rounds = config.server.num_server_rounds
        logger.warning("no table: the iteration has not ended in %d rounds; raise num-server-rounds", rounds)
        return {"converged": False}
    found = hazards_of_result(cox_of(config), arrays)
    write_text(folder / CSV, found.csv())
    write_text(folder / LATEX, found.latex())
    write_text(folder / BASELINE, found.baseline_csv())
    return {"converged": True, **found.as_dict()}


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

"""The table of a regression in a result folder: ``table.csv``, ``table.tex`` and ``table`` of result.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.lines import Row
from task.classical.fit import model_of
from task.classical.table import ended, fitted
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text
from task.text import logger

CSV, LATEX = "table.csv", "table.tex"
HOLDS = "no weights of a model: the coefficients and matrices of table.csv"
_SHOWN = 40  # coefficients in the terminal


def write_coefficients(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of a regression that has ended; return what result.json says of it."""
    if not ended(arrays):
        for name in (CSV, LATEX):
            (folder / name).unlink(missing_ok=True)
        rounds = config.server.num_server_rounds
        logger.warning("no table: the iteration has not ended in %d rounds; raise num-server-rounds", rounds)
        return {"converged": False}
    found = fitted(model_of(config), arrays, squares=not config.entry.owns("regression.family"))
    write_text(folder / CSV, found.csv())
    write_text(folder / LATEX, found.latex())
    return {"converged": True, **found.as_dict()}


def coefficient_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a regression's table, as (label, text)."""
    table: Row = result["table"]
    lines = [(str(row["name"]), _text(row)) for row in table["coefficients"][:_SHOWN]]
    if more := len(table["coefficients"]) - len(lines):
        lines.append(("...", f"{more} more in {CSV}"))
    figures = ("rows", "deviance", "null_deviance", "aic", "r_squared")
    lines += [(name, f"{table[name]:.10g}") for name in figures if table.get(name) is not None]
    return [*lines, ("SHA-256 of all sums", str(table["sums_sha256"]))]


def _text(row: Mapping[str, Any]) -> str:
    if row["se"] is None:
        return f"{row['coefficient']:.8g}"
    return f"{row['coefficient']:.8g} (se {row['se']:.6g}, robust {row['hc0']:.6g}, p {row['p']:.3g})"

"""The table of a regression in a result folder: ``table.csv``, ``table.tex`` and ``table`` of result.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.lines import Row
from server_app.results.written import ResultTable, closed, write_printed
from task.classical.fit import model_of
from task.classical.table import LATEX, ended, fitted
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays

HOLDS = "no weights of a model: the coefficients and matrices of table.csv"


def write_coefficients(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of a regression that has ended; return what result.json says of it."""
    table = fitted(model_of(config), arrays) if ended(arrays) else None
    return write_printed(folder, config, table, LATEX)


def coefficient_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a regression's table, as (label, text)."""
    table: Row = result["table"]
    lines = [(str(row["name"]), _text(row)) for row in table["coefficients"]]
    figures = ("rows", "deviance", "null_deviance", "aic", "r_squared", "lr_p", "f_p")
    below = [(name, f"{table[name]:.10g}") for name in figures if table.get(name) is not None]
    return closed(table, lines, below)


def _text(row: Mapping[str, Any]) -> str:
    if row["se"] is None:
        return f"{row['coefficient']:.8g}"
    kind = "hc1" if "hc1" in row else "cl1"
    interval = f"{row['low']:.5g} to {row['high']:.5g}"
    robust = f"robust se {row[kind]:.6g}, p {row[f'{kind}_p']:.3g}"
    return f"{row['coefficient']:.8g} ({interval}; se {row['se']:.6g}, p {row['p']:.3g}; {robust})"


TABLES = {"regression": ResultTable(HOLDS, write_coefficients, coefficient_lines)}

"""Cox's regression in a result folder: table, ``baseline.csv``, and the curve of a person at the means."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from server_app.results.curves import PICTURE, draw_curves, merged_line, plot_of
from server_app.results.lines import Row
from server_app.results.svg import Plot
from server_app.results.written import ResultTable, closed, write_printed
from task.classical.cox import cox_of
from task.classical.hazards import LATEX, baseline_table, hazards_table
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text

BASELINE = "baseline.csv"
HOLDS = "no weights of a model: the coefficients, their covariance and the baseline of table.csv"
_WHOSE = "of a person whose columns are at their means"


def write_hazards(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of a regression that has ended; return what result.json says of it."""
    cox, ended = cox_of(config), bool(arrays["figures"].any())
    table = write_printed(folder, config, hazards_table(cox, arrays) if ended else None, LATEX)
    if not ended:
        for name in (BASELINE, PICTURE):
            (folder / name).unlink(missing_ok=True)
        return table
    baseline = baseline_table(cox, arrays)
    table["baseline"] = baseline.as_dict()["baseline"]
    write_text(folder / BASELINE, baseline.csv())
    draw_curves(folder / PICTURE, _curves(table), table["time"], _WHOSE)
    return table


def hazard_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the table, as (label, text)."""
    table: Row = result["table"]
    lines = [(str(row["name"]), _text(row)) for row in table["coefficients"]]
    figures = ("rows", "events", "log_likelihood", "aic", "likelihood_ratio_chi2")
    below = [(name, f"{table[name]:.10g}") for name in figures]
    if "concordance" in table:
        below.append(("Harrell's c", _concordance(table)))
    if table["proportional_p"] is not None:
        below.append(("Proportional hazards", f"p {table['proportional_p']:.3g}"))
    return closed(table, lines, [*below, *merged_line(table)])


def hazard_plots(result: Mapping[str, Any]) -> list[Plot]:
    """Return the plot of the baseline."""
    table: Row = result["table"]
    return [
        plot_of(_curves(table), table["time"], f"By Cox's regression, {_WHOSE}; baseline.csv has it all.")
    ]


def _curves(table: Row) -> list[Row]:
    strata = groupby(table["baseline"], key=lambda point: str(point["stratum"]))
    return [{"label": name, "points": list(points)} for name, points in strata]


def _concordance(table: Row) -> str:
    if table["concordance"] is None:
        return "none: the sites have too few persons in bins of the risk score"
    return f"{table['concordance']:.5g}, off by {table['concordance_error']:.2g} at most, by its bins"


def _text(row: Row) -> str:
    ratio = f"hazard ratio {row['hazard_ratio']:.4g} ({row['lower']:.4g} to {row['upper']:.4g})"
    return f"{row['coefficient']:.8g} (se {row['se']:.6g}, p {row['p']:.3g}), {ratio}"


TABLES = {"hazards": ResultTable(HOLDS, write_hazards, hazard_lines, hazard_plots)}

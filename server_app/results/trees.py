"""The table of boosted trees in a result folder: what each column did for the splits, and the losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.svg import Plot, Point, Series
from server_app.results.written import ResultTable, closed, write_printed
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.resolve.analyses import declared_of
from task.trees.table import importance_table

HOLDS = "boosted trees; bouquet predict uses them, bouquet export writes them for XGBoost and ONNX"


def write_trees(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table; return what result.json says of it."""
    return write_printed(folder, config, importance_table(declared_of(config), arrays))


def tree_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a table of trees, as (label, text): the columns of the largest total gain first."""
    table = result["table"]
    rows = sorted(table["columns"], key=lambda row: -row["total_gain"])
    lines = [
        (row["column"], f"{row['weight']} splits; total gain {row['total_gain']:.6g}, mean {row['gain']:.4g}")
        for row in rows
        if row["weight"]
    ]
    figures = ("trees", "leaves", "rows", "loss", "held_out_rows", "held_out_loss", "held_out_error")
    return closed(table, lines, [(n.replace("_", " "), f"{table[n]:.10g}") for n in figures if n in table])


def tree_plots(result: Mapping[str, Any]) -> list[Plot]:
    """Return the plot of the losses by round."""
    table, which = result["table"], (("rows of the trees", "losses"), ("rows held out", "held_out_losses"))
    if "losses" not in table:  # they are not asked for where noise protects rows
        return []
    series = [
        Series(name, i, [Point(t, loss) for t, loss in enumerate(table[key], 1)])
        for i, (name, key) in enumerate(which)
        if key in table
    ]
    note = f"The model has the trees of the first {table['rounds']} rounds."
    return [Plot("trees", "Loss of the trees", "loss", note, series, zero=True)]


TABLES = {
    "trees": ResultTable(HOLDS, write_trees, tree_lines),
    "boosting": ResultTable(HOLDS, write_trees, tree_lines, tree_plots),
}

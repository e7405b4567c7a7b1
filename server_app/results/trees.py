"""What trees use of each column, in a result folder: ``table.csv``, ``table.tex`` and result.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.lines import Row
from server_app.results.written import SHOWN, write_printed
from task.classical.printed import Printed
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.trees.ensemble import LEAF, Ensemble
from task.trees.xgb import xgb_of

TREES_HELD = "the trees; bouquet export writes them for XGBoost and ONNX, bouquet predict uses them"
_MEASURES = ("weight", "gain", "cover", "total_gain", "total_cover")


def write_trees(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the importance of the columns, the largest gain first; return what result.json says of it."""
    names = xgb_of(config).names
    trees = Ensemble.from_arrays(arrays, len(names))
    found = trees.importance(len(names))
    order = sorted(range(len(names)), key=lambda j: (-found["total_gain"][j], names[j]))
    rows = [(names[j], *(float(found[m][j]) for m in _MEASURES)) for j in order]
    leaves = int((trees.feature == LEAF).sum())
    figures = {"trees": trees.trees, "leaves": leaves, "base": [float(b) for b in trees.base]}
    table = write_printed(
        folder, config, Printed("columns", ("column", *_MEASURES), tuple(rows), figures, "")
    )
    del table["sums_sha256"]  # no sums make up the result
    return table


def tree_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the terminal, as (label, text)."""
    table: Row = result["table"]
    used = [row for row in table["columns"] if row["weight"]]
    lines = [
        (str(row["column"]), f"splits {row['weight']:.0f}, total gain {row['total_gain']:.6g}")
        for row in used[:SHOWN]
    ]
    more = len(used) - SHOWN
    rest = [("...", f"{more} more in table.csv")] if more > 0 else []
    return [*lines, *rest, ("trees", f"{table['trees']}, with {table['leaves']} leaves")]

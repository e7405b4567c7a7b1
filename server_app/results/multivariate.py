"""The tables of clusters and principal components in a result folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.results.lines import Row
from server_app.results.written import ResultTable, closed, write_printed
from task.classical.clusters import clustering_of, clusters_table
from task.classical.components import components_of, components_table
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays

CENTRES_HELD = "no weights of a model: the centres of table.csv"
COMPONENTS_HELD = "no weights of a model: the means, scales and components of table.csv"
_NAMED = 6  # columns in a line of the terminal


def write_clusters(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of clusters; return what result.json says of it."""
    return write_printed(folder, config, clusters_table(clustering_of(config), arrays))


def write_components(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table of components; return what result.json says of it."""
    return write_printed(folder, config, components_table(components_of(config), arrays))


def cluster_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a table of clusters, as (label, text)."""
    table: Row = result["table"]
    lines = [
        (
            f"cluster {row['cluster']}",
            f"{row['rows']} rows; " + _columns(row, ("cluster", "rows", "share", "within")),
        )
        for row in table["clusters"]
    ]
    below = [(name, f"{table[name]:.10g}") for name in ("rows", "inertia", "explained")]
    if table["empty"]:
        below.append(("without rows", ", ".join(f"cluster {k}" for k in table["empty"])))
    return closed(table, lines, below)


def component_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a table of components, as (label, text)."""
    table: Row = result["table"]
    lines = [
        (
            f"component {row['component']}",
            f"variance {row['variance']:.6g}, {row['share']:.1%}; "
            + _columns(row, ("component", "variance", "share", "cumulative")),
        )
        for row in table["components"]
    ]
    return closed(table, lines, [("rows", str(table["rows"]))])


def _columns(row: Mapping[str, Any], others: Sequence[str]) -> str:
    """Return the numbers of the first columns."""
    found = [f"{name} {number:.4g}" for name, number in row.items() if name not in others]
    return ", ".join([*found[:_NAMED], *(["..."] if len(found) > _NAMED else [])])


TABLES = {
    "clusters": ResultTable(CENTRES_HELD, write_clusters, cluster_lines),
    "components": ResultTable(COMPONENTS_HELD, write_components, component_lines),
}

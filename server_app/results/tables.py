"""Tables of analyses by exact sums in a result folder, by the work of their entries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.results import curves, hazards, statistics, trees
from server_app.results.coefficients import HOLDS, coefficient_lines, write_coefficients
from server_app.results.multivariate import (
    CENTRES_HELD,
    COMPONENTS_HELD,
    cluster_lines,
    component_lines,
    write_clusters,
    write_components,
)
from server_app.results.svg import Plot
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays

Result = Mapping[str, Any]


@dataclass(frozen=True)
class ResultTable:
    """How the result of an analysis is written and shown."""

    holds: str  # what the model's file has
    write: Callable[[Path, Config, NamedArrays], dict[str, Any]]  # returns ``table`` of result.json
    lines: Callable[[Result], list[tuple[str, str]]]  # of the terminal, as (label, text)
    plots: Callable[[Result], Sequence[Plot]] = lambda result: ()  # of the report


KINDS: Mapping[str, ResultTable] = {
    "regression": ResultTable(HOLDS, write_coefficients, coefficient_lines),
    "description": ResultTable(statistics.HOLDS, statistics.write_statistics, statistics.statistics_lines),
    "clusters": ResultTable(CENTRES_HELD, write_clusters, cluster_lines),
    "components": ResultTable(COMPONENTS_HELD, write_components, component_lines),
    "survival": ResultTable(curves.HOLDS, curves.write_curves, curves.curve_lines, curves.curve_plots),
    "trees": ResultTable(trees.HOLDS, trees.write_trees, trees.tree_lines),
    "hazards": ResultTable(hazards.HOLDS, hazards.write_hazards, hazards.hazard_lines, hazards.hazard_plots),
    "boosting": ResultTable(trees.HOLDS, trees.write_trees, trees.tree_lines, trees.tree_plots),
}


def table_lines(work: str, result: Result) -> list[tuple[str, str]]:
    """Return the lines of a result's table, as (label, text); none of a result without one."""
    table = result.get("table") or {}
    if not table:
        return []
    if not table["converged"]:
        return [("Table", "none: the iteration has not ended")]
    return KINDS[work].lines(result)


def table_plots(algorithm: str, result: Result) -> Sequence[Plot]:
    """Return the plots of a result's table; none of a result without one."""
    table, entry = result.get("table") or {}, ALGORITHMS.get(algorithm)
    return KINDS[entry.work].plots(result) if entry and table.get("converged") else ()

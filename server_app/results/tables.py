"""Tables of analyses by exact sums in a result folder, by the work of their entries."""

from collections.abc import Sequence
from functools import cache

from server_app.results.svg import Plot
from server_app.results.written import Result, ResultTable
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.declared import declared_in


@cache
def _tables() -> dict[str, ResultTable]:
    return declared_in("TABLES", "server_app.results")


def result_table(work: str) -> ResultTable:
    """Return how a result is written and shown, as a module of this room declares it in ``TABLES``."""
    return _tables()[work]


def table_lines(work: str, result: Result) -> list[tuple[str, str]]:
    """Return the lines of a result's table, as (label, text); none of a result without one."""
    table = result.get("table") or {}
    if not table:
        return []
    if not table["converged"]:
        return [("Table", "none: the iteration has not ended")]
    return result_table(work).lines(result)


def table_plots(algorithm: str, result: Result) -> Sequence[Plot]:
    """Return the plots of a result's table; none of a result without one."""
    table, entry = result.get("table") or {}, ALGORITHMS.get(algorithm)
    return result_table(entry.work).plots(result) if entry and table.get("converged") else ()

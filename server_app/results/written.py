"""How an analysis's table is written and shown: ``table.csv``, ``table.tex``, ``table`` of result.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.results.svg import Plot
from task.classical.printed import Printed
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text
from task.text import logger

CSV, LATEX = "table.csv", "table.tex"
SHOWN = 40  # rows in the terminal
Line = tuple[str, str]  # label and text
Result = Mapping[str, Any]


@dataclass(frozen=True)
class ResultTable:
    """How the result of an analysis is written and shown."""

    holds: str  # what the model's file has
    write: Callable[[Path, Config, NamedArrays], dict[str, Any]]  # returns ``table`` of result.json
    lines: Callable[[Result], list[tuple[str, str]]]  # of the terminal, as (label, text)
    plots: Callable[[Result], Sequence[Plot]] = lambda result: ()  # of the report


def write_printed(
    folder: Path, config: Config, table: Printed | None, heads: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write a table, or nothing if the analysis has not ended; return what result.json says of it."""
    if table is None:
        for name in (CSV, LATEX):
            (folder / name).unlink(missing_ok=True)
        rounds = config.server.num_server_rounds
        logger.warning("no table: the iteration has not ended in %d rounds; raise num-server-rounds", rounds)
        return {"converged": False}
    write_text(folder / CSV, table.csv())
    write_text(folder / LATEX, table.latex(heads))
    return {"converged": True, **table.as_dict()}


def closed(table: Mapping[str, Any], rows: Sequence[Line], figures: Sequence[Line]) -> list[Line]:
    """Return lines of the terminal: the first rows, the figures below them, and the digest."""
    more = len(rows) - SHOWN
    rest = [("...", f"{more} more in {CSV}")] if more > 0 else []
    return [*rows[:SHOWN], *rest, *figures, ("SHA-256 of all sums", str(table["sums_sha256"]))]

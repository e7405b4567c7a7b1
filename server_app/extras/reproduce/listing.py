"""Cells of published tables in a terminal: how far each is, and what it came to once more."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from server_app.extras.reproduce.pages import (
    CANNOT_RUN,
    NOT_RUN,
    TableRow,
    counted,
    row_of,
    rows_of,
    several,
    took,
)
from server_app.extras.reproduce.plan import Runs, once_more, standing
from server_app.extras.reproduce.records import SECONDS_AN_HOUR, RunRecord, RunRecords, results_of

if TYPE_CHECKING:
    from server_app.extras.reproduce.tables import Cell, PublishedTable
    from server_app.extras.reproduce.work import TableQueue


@dataclass(frozen=True)
class _Listed:
    """One cell of the list, with the time that it takes."""

    row: TableRow
    hours: float  # infinity if it cannot run here
    what: str  # that takes this time: what is left of the cell, or all of it again

    @property
    def texts(self) -> list[str]:
        """Its columns."""
        row = self.row
        time = CANNOT_RUN if math.isinf(self.hours) else f"{took(self.hours)} {self.what}"
        return [row.at.cell.name, row.published, row.ours, row.status, time]


def listing(
    chosen: Sequence[tuple[PublishedTable, Cell]], *, again: bool = False, limit_s: float = math.inf
) -> Group:
    """Return the cells by table, with what is known of each and the time that it takes.

    Args:
        chosen: The cells, with their tables.
        again: Whether they are to be measured once more, as `again.measured` returns them. Without it, this
            is the time of those that have all their results.
        limit_s: Only cells that take at most this long.
    """
    parts: list[Text | Table] = []
    within = f"in at most {took(limit_s / SECONDS_AN_HOUR)}" if limit_s < math.inf else ""
    for table in {t.path: t for t, _ in chosen}.values():
        rows = rows_of(table, [cell for other, cell in chosen if other.path == table.path])
        found = [_listed(row, again=again) for row in rows]
        found = [each for each in found if not within or each.hours * SECONDS_AN_HOUR <= limit_s]
        title = f"{len(found)} of {several(len(rows), 'cell')} {within}" if within else counted(rows)
        if found:
            shown = _table("cell", "published", "ours", "status", "time")
            for each in found:
                shown.add_row(*each.texts)
            parts += [Text.assemble((table.name, "bold"), f": {title}"), shown, Text()]
    return Group(*parts or [Text(f"0 of {several(len(chosen), 'cell')} {within}")])


def _listed(row: TableRow, *, again: bool) -> _Listed:
    at = row.at
    if at.cell.needs:
        return _Listed(row, math.inf, "")
    if again or at.done:
        return _Listed(row, standing(at.cell if again else once_more(at.cell, at), {}).hours_left, "again")
    return _Listed(row, at.hours_left, "left")


def outcome(queue: TableQueue) -> Table:
    """Return the cells that were measured once more, next to the published values and the recorded ones.

    The recorded value is over all seeds of the table, as on its page.
    """
    shown = _table("cell", "published", "recorded", "again", "difference", "verdict")
    standings = [*queue.standings()]
    shown.title = "\n".join(dict.fromkeys(table.title for table, _ in standings))  # what is counted
    shown.title_justify = "left"
    for table, at in standings:
        runs = RunRecords(results_of(table.path)).by_run
        new, old = row_of(at), row_of(standing(table.cells[at.cell.name], runs))
        verdict = _verdict(at.by_seed.values(), runs)
        shown.add_row(at.cell.name, new.published, old.ours, new.ours, new.difference, verdict)
    return shown


def _verdict(records: Collection[RunRecord], before: Runs) -> str:
    """Return how many seeds ended in the recorded model, and how many have no record."""
    known = [(record, before[record.run]) for record in records if record.run in before]
    same = sum(new.model_sha256 == old.model_sha256 for new, old in known)
    parts = [f"same bits in {same} of {several(len(known), 'seed')}"] if known else []
    if lacking := len(records) - len(known):
        parts.append(f"no record of {several(lacking, 'seed')}")
    return "; ".join(parts) or NOT_RUN


def _table(name: str, *heads: str) -> Table:
    """Return a table without rows whose first column, which --cells wants, is never cut."""
    return Table(Column(name, no_wrap=True), *heads, box=None, pad_edge=False)

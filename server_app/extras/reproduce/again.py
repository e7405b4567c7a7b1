"""Measure recorded cells once more: at their best rates, and compared with what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_app.extras.reproduce.pages import said
from server_app.extras.reproduce.plan import once_more, standing
from server_app.extras.reproduce.records import RunRecords, results_of
from task.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from server_app.extras.reproduce.tables import Cell, PublishedTable
    from server_app.extras.reproduce.work import TableQueue


def measured(chosen: Sequence[tuple[PublishedTable, Cell]]) -> list[tuple[PublishedTable, Cell]]:
    """Return the cells whose best rate is known, with that rate alone.

    Raises:
        ConfigError: There is none.
    """
    # The table's own first seed chose the rate, whatever --seeds says.
    known = [(t, c, standing(t.cells[c.name], RunRecords(results_of(t.path)).by_run)) for t, c in chosen]
    found = [(t, once_more(c, at)) for t, c, at in known if at.rate is not None]
    if not found:
        names = ", ".join(cell.name for _, cell in chosen)
        raise ConfigError(
            f"--again: expected cells with results; got {names}, of which none has its learning rates "
            "measured. --list shows how far each cell is; leave --again out to measure them"
        )
    return found


def compared(queue: TableQueue) -> Iterator[str]:
    """Yield a line for each value that was measured once more, next to the recorded one."""
    for table, at in queue.standings():
        before = RunRecords(results_of(table.path)).by_run
        for seed, record in at.by_seed.items():
            old = before.get(record.run)
            words = f"{table.name}/{at.cell.name}, seed {seed}: {said(at.cell, record)}"
            if old is None:
                words += "; no record to compare with"
            elif old.model_sha256 == record.model_sha256:
                words += f"; recorded on {old.date}: the same model, to the bit"
            else:
                # A record's machine is that on which the bits were made; nothing else differs.
                words = f"{table.name}/{at.cell.name}, seed {seed}: other bits than on {old.machine}; this "
                words += f"machine is {record.machine}: {said(at.cell, record)}, recorded on {old.date}: "
                words += said(at.cell, old)
            yield words

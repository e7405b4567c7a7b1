"""What the terminal shows of the runs: what is to be done, how far it is, what is left."""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from server_app.extras.reproduce.pages import said, several, took
from server_app.extras.reproduce.plan import Wanted
from server_app.extras.reproduce.records import RunRecord
from server_app.extras.reproduce.work import Remaining, TableQueue
from task.errors import BouquetError, DataError
from task.text import plain
from task.units import clock, human_seconds


def say_wanted(queue: TableQueue, table: str, again: Path | None, limit_s: float = 0.0) -> None:
    """Say what is about to run, or that nothing is."""
    found = queue.standings()
    open_ = [at for _, at in found if not at.done]
    cells = several(len(open_), "cell")
    if open_:
        left = took(math.fsum(at.hours_left for at in open_))
        which = "" if table else ' of all tables; "bouquet reproduce TABLE --cells NAME" runs some,'
        within = f", of which this does {human_seconds(limit_s)} at most" if 0 < limit_s < math.inf else ""
        typer.echo(
            f"{cells} to measure,{which} {left} estimated{within}; you can stop and continue", err=True
        )
    elif found:
        more = f"delete {again}" if again else "use --again"
        words = f"all results of {several(len(found), 'cell')} are there, nothing runs"
        typer.echo(plain(f"{words}: to measure and compare once more, {more}"), err=True)


def say_missing(queue: TableQueue) -> str:
    """Say once for each data set why it cannot be found; return their names.

    Raises:
        DataError: No cell is left to run.
    """
    before = len(queue.cells)
    why = queue.missing_data()
    lines = "".join(f"\n  {plain(text)}" for text in why.values())
    if why and all(at.done for _, at in queue.standings()):
        raise DataError(f"reproduce: the data of all cells that are left are missing{lines}")
    if why:
        left_out = before - len(queue.cells)
        typer.echo(f"{left_out} of {before} cells lack their data and are left out{lines}", err=True)
    return ", ".join(why)


def say_left(left: Remaining) -> None:
    """Say which cells are left, how long they take, and why they did not run.

    Raises:
        BouquetError: Runs failed.
    """
    open_ = [at for at in left.standings if not at.done]
    if open_:
        total = math.fsum(at.hours_left for at in open_)
        why = "over the budget" if left.over_budget else "of other processes" if left.busy else "failed"
        cells = several(len(open_), "cell")
        typer.echo(f"left: {cells}, {took(total)} estimated ({why})", err=True)
        for at in sorted(open_, key=lambda at: at.hours_left):
            typer.echo(plain(f"  {at.cell.name}: {took(at.hours_left)}"), err=True)
    if left.failed:
        name, why = next(iter(left.failed.items()))
        runs = several(len(left.failed), "run")
        raise BouquetError(
            f"reproduce: {runs} failed, the first: {name}: {why}. The same command tries again"
        )


class Announcements:
    """Progress on the terminal: a line when a run starts, one when it ends, and in between the round.

    Behind the last round that is done is the time since then.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._since: dict[tuple[str, int], float] = {}  # by folder of a run and round

    def began(self, table: str, run: Wanted, resumed: bool) -> None:
        """Say that a run starts or goes on."""
        how = "goes on" if resumed else "starts"
        self._line(f"{_words(table, run)}: {how}, at most {run.rounds} rounds, {took(run.hours)} estimated")

    def looked(self, running: Sequence[tuple[Wanted, int]]) -> None:
        """Show the rounds of the runs at work, on a line of their own."""
        now = time.monotonic()
        self._since = {(r.folder, n): self._since.get((r.folder, n), now) for r, n in running}
        words = "  " + ", ".join(
            f"round {n} of at most {r.rounds} ({clock(now - self._since[r.folder, n])})" for r, n in running
        )
        words = words[: shutil.get_terminal_size().columns - 1]  # only the last line can be cleared
        if self._live and words != self._shown:
            self._shown = words
            typer.echo(f"\r\x1b[K{words}", nl=False, err=True)

    def ended(self, table: str, run: Wanted, record: RunRecord | str) -> None:
        """Say what a run has come to, or why it failed."""
        words = _words(table, run)
        if isinstance(record, str):
            self._line(f"{words}: failed: {record}")
        else:
            self._line(f"{words}: {said(run.cell, record)}, {took(record.hours)}")

    def _line(self, words: str) -> None:
        self._shown = ""
        typer.echo(("\r\x1b[K" if self._live else "") + plain(words), err=True)


def _words(table: str, run: Wanted) -> str:
    return f"{table}/{run.cell.name}, learning rate {run.rate:g}, seed {run.seed}"

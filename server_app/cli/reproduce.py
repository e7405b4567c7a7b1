"""The command ``reproduce``: measure the cells of published tables and compare them with the papers."""

from __future__ import annotations

import fnmatch
import math
import re
import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import Code, RunsDir, allow, console, importing, sigterm_is_ctrl_c
from task.errors import BouquetError, ConfigError, DataError, choose_from
from task.text import plain
from task.units import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_app.extras.reproduce.plan import Wanted
    from server_app.extras.reproduce.records import RunRecord
    from server_app.extras.reproduce.tables import Cell, PublishedTable
    from server_app.extras.reproduce.work import Remaining, TableQueue

ON_CPU, ON_GPU = "cpu", "gpu"  # of --plan
UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]bouquet reproduce --list[/bold]  ·  [bold]bouquet reproduce mcmahan-table1-2nn "
    "--cells 'iid-*' --budget 2h[/bold]  ·  [bold]bouquet reproduce silos --cells fedavg-local --seeds 1 "
    "--again[/bold]"
)
def reproduce(
    table: Annotated[str, typer.Argument(help="Bundled table or TOML file; none = all bundled ones.")] = "",
    cells: Annotated[
        list[str] | None,
        typer.Option("--cells", help="Names of cells, * and ? allowed; may be repeated. None = all."),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Start no run that would end later than this, e.g. 90min, 2h; 0 = start none.")
    ] = "",
    plan: Annotated[
        str,
        typer.Option(
            help="cpu: the cell with the least time left first. gpu: only cells that want a GPU; those "
            "that the paper quotes and nobody has measured first. The budget then ends the run at work, and "
            "the next call continues it from its checkpoint."
        ),
    ] = ON_CPU,
    listing: Annotated[
        bool, typer.Option("--list", help="List the cells and their progress, and exit.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Measure cells that have results once more, each seed at its best rate, and compare: into "
            "the folder again of --runs-dir, whatever the table's results.jsonl has.",
        ),
    ] = False,
    seeds: Annotated[
        str, typer.Option(help="Seeds instead of the table's, e.g. 1,2,3; --list shows the table's.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    nodes: Annotated[
        int, typer.Option(min=0, help="Worker processes of a run; 0 = automatic, by the number of cores.")
    ] = 0,
    runs_dir: RunsDir = "runs/reproduce",
    code: Code = None,
) -> None:
    """Measure the cells of a paper's table, and write our values next to the published ones.

    For each cell, every learning rate runs on the first seed, then the best one on the other seeds. After an
    interruption the same command continues and repeats no run; several commands may run at once. Results are
    appended to results.jsonl next to the table; tables are written as Markdown and HTML into the folder of
    the runs. Cells that have all their results do not run: --again measures them once more.
    """
    allow(code)
    chosen = _chosen(table, cells or [], seeds)
    if plan not in (ON_CPU, ON_GPU):
        raise ConfigError(choose_from("--plan", plan, (ON_CPU, ON_GPU)))
    if plan == ON_GPU:
        chosen = _on_gpu(chosen)
    limit = _seconds(budget)
    if listing:
        _list(chosen)
        return
    with importing():
        from server_app.engines.simulate import available_cpus
        from server_app.extras.reproduce.again import compared, measured
        from server_app.extras.reproduce.records import RESULTS, results_of
        from server_app.extras.reproduce.work import TableQueue
        from server_app.run.prepare import check_measured
    from task.resolve.read import read_config

    for table_, cell in chosen:
        try:
            check_measured(read_config(cell.keys_of(cell.start, cell.seeds[0])))
        except ConfigError as err:
            raise ConfigError(f"{table_.path}, cell {cell.name}: {err}") from None
    folder = Path(runs_dir).expanduser().absolute()
    shown = _Announcements()
    if again:
        recorded = measured(chosen)
        if left_out := len(chosen) - len(recorded):
            typer.echo(f"{left_out} of {len(chosen)} cells have no results yet: left out", err=True)
        chosen = recorded
        folder /= "again"
    if jobs > 1:  # a single run finds out by itself
        nodes = nodes or max(1, available_cpus() // jobs)
    queue = TableQueue(
        chosen, folder, nodes, jobs=jobs, gpu=plan == ON_GPU,
        results=(lambda _: folder / RESULTS) if again else results_of,
        began=shown.began, looked=shown.looked, ended=shown.ended,
    )  # fmt: skip
    lacking = _say_missing(queue) if limit else ""
    _say_wanted(queue, table, folder if again else None)
    try:
        with sigterm_is_ctrl_c():
            left = queue.work(limit)
    except KeyboardInterrupt:
        left = None
    finally:
        if again:
            for line in compared(queue):
                typer.echo(plain(line))
        else:
            _write(chosen, folder)
    if left is None:
        typer.echo(f"stopped; continue with: {shlex.join(['bouquet', *sys.argv[1:]])}", err=True)
        sys.exit(exits.INTERRUPTED)
    _say_left(left)
    if lacking:
        raise DataError(
            f"reproduce: cells of {lacking} were not run, as their data are missing; the first lines say "
            "what to do. The same command then runs them"
        )


def _say_wanted(queue: TableQueue, table: str, again: Path | None) -> None:
    """Say what is about to run, or that nothing is."""
    from server_app.extras.reproduce.pages import several, took

    found = queue.standings()
    open_ = [at for _, at in found if not at.done]
    cells = several(len(open_), "cell")
    if open_:
        left = took(math.fsum(at.hours_left for at in open_))
        which = "" if table else ' of all tables; "bouquet reproduce TABLE --cells NAME" runs some,'
        typer.echo(f"{cells} to measure,{which} {left} estimated; you can stop and continue", err=True)
    elif found:
        more = f"delete {again}" if again else "use --again"
        words = f"all results of {several(len(found), 'cell')} are there, nothing runs"
        typer.echo(plain(f"{words}: to measure and compare once more, {more}"), err=True)


def _say_missing(queue: TableQueue) -> str:
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


def _chosen(table: str, globs: Sequence[str], seeds: str) -> list[tuple[PublishedTable, Cell]]:
    """Return the cells that are asked for, with their tables."""
    from server_app.extras.reproduce.tables import crossed, read_table, tables

    found = sorted((read_table(name) for name in ([table] if table else tables())), key=lambda t: t.group)
    numbers = tuple(int(word) for word in seeds.split(",")) if re.fullmatch(r"\d+(,\d+)*", seeds) else ()
    if seeds and (not numbers or len(set(numbers)) < len(numbers)):
        raise ConfigError(f"--seeds: expected different whole numbers, e.g. 1,2,3; got {seeds}")
    names = [name for t in found for name in t.cells]
    for glob in globs:
        if not fnmatch.filter(names, glob):
            raise ConfigError(choose_from("--cells", glob, dict.fromkeys(names)))
    return [
        (
            t,
            replace(cell, seeds=crossed(numbers, [*dict.fromkeys(s.data for s in cell.seeds)]))
            if numbers
            else cell,
        )
        for t in found
        for name, cell in t.cells.items()
        if not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)
    ]


def _on_gpu(chosen: Sequence[tuple[PublishedTable, Cell]]) -> list[tuple[PublishedTable, Cell]]:
    """Return the cells that want a GPU, with the seconds that a round takes there if one is at hand."""
    found = [(t, c) for t, c in chosen if c.gpu_round_seconds]
    if not found:
        raise ConfigError(
            '--plan gpu: expected cells with "gpu-round-seconds", the estimated seconds of a round there; '
            f"got {len(chosen)} without. Add the key to the table, or leave --plan out"
        )
    with importing():
        from task.numerics.devices import gpu_model

    if not gpu_model():
        typer.echo("--plan gpu: torch sees no GPU here; the runs use the CPU, as do the estimates", err=True)
        return found
    return [(t, replace(c, round_seconds=c.gpu_round_seconds or 0.0, on_gpu=True)) for t, c in found]


def _seconds(budget: str) -> float:
    """Return a budget in seconds; without a budget, infinity."""
    if not budget:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", budget) if budget != "0" else None
    if budget != "0" and match is None:
        raise ConfigError(
            f"--budget: expected a number and s, min, h or d, such as 90min or 2h; got {budget}"
        )
    return float(match[1]) * UNITS[match[2]] if match else 0.0


def _list(chosen: Sequence[tuple[PublishedTable, Cell]]) -> None:
    from server_app.extras.reproduce.pages import listing

    terminal = console()
    terminal.print(listing(chosen))


def _write(chosen: Sequence[tuple[PublishedTable, Cell]], folder: Path) -> None:
    """Write each table with all its cells as Markdown and HTML."""
    from server_app.extras.reproduce.pages import as_html, markdown, rows_of
    from task.storage.files import make_folder, write_text

    make_folder(folder)
    for table in {t.path: t for t, _ in chosen}.values():
        rows = rows_of(table)
        write_text(folder / f"{table.name}.md", markdown(table, rows))
        write_text(folder / f"{table.name}.html", as_html(table, rows))
        typer.echo(plain(f"{folder / table.name}.md and .html"))


def _say_left(left: Remaining) -> None:
    from server_app.extras.reproduce.pages import several, took

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


class _Announcements:
    """Progress on the terminal: a line when a run starts, one when it ends, and in between the round.

    Next to the round is the time since it began.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._since: dict[tuple[str, int], float] = {}  # by folder of a run and round

    def began(self, table: str, run: Wanted, resumed: bool) -> None:
        from server_app.extras.reproduce.pages import took

        how = "goes on" if resumed else "starts"
        self._line(f"{_words(table, run)}: {how}, at most {run.rounds} rounds, {took(run.hours)} estimated")

    def looked(self, running: Sequence[tuple[Wanted, int]]) -> None:
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
        from server_app.extras.reproduce.pages import said, took

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

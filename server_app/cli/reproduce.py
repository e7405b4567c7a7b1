"""The command ``reproduce``: measure the cells of published tables and compare them with the papers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import Code, RunsDir, allow, console, importing, sigterm_is_ctrl_c
from task.errors import ConfigError, DataError, choose_from
from task.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_app.extras.reproduce.tables import Cell, PublishedTable
    from server_app.extras.reproduce.work import TableQueue

ON_CPU, ON_GPU = "cpu", "gpu"  # of --plan

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]bouquet reproduce --list[/bold]  ·  [bold]bouquet reproduce mcmahan-table1-2nn "
    "--cells 'iid-*' --budget 2h[/bold]  ·  [bold]bouquet reproduce --quoted --list --budget 5min[/bold]  ·  "
    "[bold]bouquet reproduce mcmahan-table1-2nn-centred --cells iid-b10-c0 --again[/bold]"
)
def reproduce(
    table: Annotated[str, typer.Argument(help="Bundled table or TOML file; none = all bundled ones.")] = "",
    cells: Annotated[
        list[str] | None,
        typer.Option("--cells", help="Names of cells, * and ? allowed; may be repeated. None = all."),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="Start no run that would end later than this, e.g. 90min, 2h; 0 = start none. With --list: "
            "list only cells that take at most this long."
        ),
    ] = "",
    quoted: Annotated[
        bool, typer.Option("--quoted", help="Only cells of which the paper has a value.")
    ] = False,
    plan: Annotated[
        str,
        typer.Option(
            help="cpu: the cell with the least time left first. gpu: only cells that want a GPU; those "
            "that the paper quotes and nobody has measured first. The budget then ends the run at work, and "
            "the next call continues it from its checkpoint."
        ),
    ] = ON_CPU,
    listing: Annotated[
        bool,
        typer.Option("--list", help="List the cells, their progress and the time that each takes, and exit."),
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
    from server_app.extras.reproduce.choice import chosen_cells, seconds_of

    allow(code)
    chosen = chosen_cells(table, cells or [], seeds, quoted=quoted)
    if plan not in (ON_CPU, ON_GPU):
        raise ConfigError(choose_from("--plan", plan, (ON_CPU, ON_GPU)))
    if plan == ON_GPU:
        chosen = _on_gpu(chosen)
    limit = seconds_of(budget)
    if again:
        chosen = _measured(chosen)
    if listing:
        _list(chosen, again=again, limit_s=limit)
        return
    with importing():
        from server_app.engines.simulate import available_cpus
        from server_app.extras.reproduce import announce
        from server_app.extras.reproduce.records import RESULTS, results_of
        from server_app.extras.reproduce.work import TableQueue

    _check(chosen)
    folder = Path(runs_dir).expanduser().absolute()
    shown = announce.Announcements()
    if again:
        folder /= "again"
    if jobs > 1:  # a single run finds out by itself
        nodes = nodes or max(1, available_cpus() // jobs)
    queue = TableQueue(
        chosen, folder, nodes, jobs=jobs, gpu=plan == ON_GPU,
        results=(lambda _: folder / RESULTS) if again else results_of,
        began=shown.began, looked=shown.looked, ended=shown.ended,
    )  # fmt: skip
    lacking = announce.say_missing(queue) if limit else ""
    announce.say_wanted(queue, table, folder if again else None, limit)
    try:
        with sigterm_is_ctrl_c():
            left = queue.work(limit)
    except KeyboardInterrupt:
        left = None
    finally:
        if again:
            _show_again(queue, folder / RESULTS)
        else:
            _write(chosen, folder)
    if left is None:
        typer.echo(f"stopped; continue with: {shlex.join(['bouquet', *sys.argv[1:]])}", err=True)
        sys.exit(exits.INTERRUPTED)
    announce.say_left(left)
    if lacking:
        raise DataError(
            f"reproduce: cells of {lacking} were not run, as their data are missing; the first lines say "
            "what to do. The same command then runs them"
        )


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


def _measured(chosen: Sequence[tuple[PublishedTable, Cell]]) -> list[tuple[PublishedTable, Cell]]:
    """Return the cells that have results, with their best rates alone; say how many have none."""
    from server_app.extras.reproduce.again import measured

    found = measured(chosen)
    if left_out := len(chosen) - len(found):
        typer.echo(f"{left_out} of {len(chosen)} cells have no results yet: left out", err=True)
    return found


def _list(chosen: Sequence[tuple[PublishedTable, Cell]], *, again: bool, limit_s: float) -> None:
    from server_app.extras.reproduce.listing import listing

    console().print(listing(chosen, again=again, limit_s=limit_s))


def _check(chosen: Sequence[tuple[PublishedTable, Cell]]) -> None:
    """Refuse cells whose keys do not go together, before anything runs."""
    from server_app.run.prepare import check_measured
    from task.resolve.read import read_config

    for table, cell in chosen:
        try:
            check_measured(read_config(cell.keys_of(cell.start, cell.seeds[0])))
        except ConfigError as err:
            raise ConfigError(f"{table.path}, cell {cell.name}: {err}") from None


def _show_again(queue: TableQueue, results: Path) -> None:
    """Show what was measured once more, next to what was recorded."""
    from server_app.extras.reproduce.again import compared
    from server_app.extras.reproduce.listing import outcome

    for line in compared(queue):
        typer.echo(plain(line))
    console().print("", outcome(queue), "", sep="\n")
    typer.echo(plain(f"results: {results}"))


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

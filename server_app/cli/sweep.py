"""The command ``sweep``: many runs as one experiment."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import Code, RunsDir, Target, Whose, allow, console, formerly, sigterm_is_ctrl_c
from server_app.cli.queued import work
from task.errors import BouquetError, ConfigError
from task.text import plain

if TYPE_CHECKING:
    from server_app.sweep.points import Plan
    from server_app.sweep.queue import SweepQueue

MOST_LISTED = 40  # points of --dry-run

app = typer.Typer()


@app.command(
    cls=formerly(list="--runs-file"),
    epilog="Examples: [bold]bouquet sweep -c 'learning-rate=0.05,0.1,0.2 seed=1..5 "
    'algorithm="fedavg","scaffold"\' --name grid[/bold]  ·  [bold]bouquet sweep --name grid[/bold]  ·  '
    "[bold]bouquet compare runs/grid --plot grid.png[/bold]",
)
def sweep(
    recipe: Annotated[
        str, typer.Argument(help="Bundled recipe or TOML file; an array in it means several values.")
    ] = "",
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Run-config keys, e.g. -c 'learning-rate=0.1,0.2 seed=1..5'."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the sweep: its folder below --runs-dir.")] = "sweep",
    runs_dir: RunsDir = "runs",
    listed: Annotated[
        str,
        typer.Option("--runs-file", help="A TOML file with a table \\[runs.NAME] for each run, or a scene."),
    ] = "",
    draw: Annotated[
        int,
        typer.Option(
            "--random",
            min=0,
            help="Draw this number of configurations at random, each with all seeds; 0 = all.",
        ),
    ] = 0,
    draw_seed: Annotated[int, typer.Option("--random-seed", help="Seed of --random.")] = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0 = one for each core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and exit.")] = False,
    median_stop: Annotated[
        bool,
        typer.Option(
            "--median-stop",
            help="Stop a run whose best accuracy is below the median of the earlier runs with its seed.",
        ),
    ] = False,
    warm_up: Annotated[int, typer.Option(min=1, help="First round at which --median-stop compares.")] = 5,
    on: Whose = None,
    target: Target = 0.9,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    code: Code = None,
) -> None:
    """Run every combination of run-config keys, and compare the configurations over their seeds.

    -c 'a=1,2 seed=1..5' gives keys several values; so does an array in RECIPE, a bundled recipe or a TOML
    file. The queue is on disk: after an interruption, the same command or --name alone continues and repeats
    no run.
    """
    from server_app.results.folder import one_folder
    from server_app.sweep.points import plan, read_axes

    allow(code)
    axes, own = read_axes(recipe, config or [])
    runs_dir = str(axes.pop("runs-dir", [runs_dir])[0])
    one_folder("sweep --name", name)
    planned = plan(axes, own - {"runs-dir"}, listed, draw, draw_seed) if axes or listed else None
    for remark in planned.remarks if planned else []:
        typer.echo(plain(f"sweep: {remark}"), err=True)
    folder = Path(runs_dir).expanduser() / name
    if dry_run:
        _list(planned, folder)
        return
    from server_app.sweep.queue import check_there, holding, open_queue

    if planned is None:
        check_there(folder)
    command = shlex.join(["bouquet", *sys.argv[1:]])
    with holding(folder):
        queue, remarks = open_queue(folder, planned, command)
        for remark in remarks:
            typer.echo(plain(f"sweep: {remark}"), err=True)
        try:
            with sigterm_is_ctrl_c():
                work(queue, jobs, warm_up if median_stop else None)
        except KeyboardInterrupt:
            done = sum(queue.run(entry).finished() for entry in queue.entries)
            again = shlex.join(["bouquet", "sweep", "--name", name, "--runs-dir", runs_dir])
            typer.echo(
                f"stopped with {done} of {len(queue.entries)} runs finished; continue with: {again}", err=True
            )
            sys.exit(exits.INTERRUPTED)
        _results(queue, on, target, markdown)


def _list(planned: Plan | None, folder: Path) -> None:
    if planned is None:
        raise ConfigError("sweep --dry-run: expected keys to sweep, such as -c 'seed=1..3'; got none")
    typer.echo(f"{len(planned.points)} runs in {folder}:")
    for point in planned.points[:MOST_LISTED]:
        typer.echo(plain(f"  {point.name}"))
    if rest := len(planned.points) - MOST_LISTED:
        typer.echo(f"  ... and {rest} more") if rest > 0 else None


def _results(queue: SweepQueue, on: str | None, target: float, markdown: bool) -> None:
    """Write sweep.csv and sweep.html, and print the table."""
    from server_app.results import compare as side_by_side
    from server_app.results.report import write_report
    from server_app.sweep.queue import FAILED, STOPPED
    from server_app.sweep.report import PAGE, write_page
    from server_app.sweep.results import as_csv, best_words, outcome
    from task.storage.files import write_text

    for entry in queue.entries:
        if entry.state == STOPPED and not (queue.folder / entry.name / "report.html").exists():
            write_report(queue.folder / entry.name)
    failed = [entry for entry in queue.entries if entry.state == FAILED]
    why = ""
    try:
        out = outcome(queue, on, target)
    except ConfigError as err:
        out, why = None, str(err)
    write_text(queue.folder / "sweep.csv", as_csv(queue, out, target))
    write_page(queue, out, why)
    if out is None:
        typer.echo(plain(f"no table: {why}"), err=True)
    elif markdown:
        remarks = [*best_words(out), *out.remarks]
        typer.echo(plain(side_by_side.markdown(out.header, out.lines, remarks)))
    else:
        terminal = console()
        for part in side_by_side.terminal_tables(out.header, out.lines, terminal.width):
            terminal.print(part, "")
        typer.echo(plain("\n".join([*best_words(out), *out.remarks])))
    typer.echo(f"Results: {(queue.folder / PAGE).absolute()}")
    if failed:
        counted = Counter(entry.error for entry in failed).most_common(3)
        reasons = "; ".join(f"{error} ({n})" for error, n in counted)
        raise BouquetError(
            f"sweep: {len(failed)} of {len(queue.entries)} runs failed: {reasons}. Their output is in "
            f"{queue.folder / 'logs'}; the same command retries them"
        )

"""Commands that list and show, such as ``algorithms``, ``models``, ``report``, ``compare``, ``state``."""

import json
from pathlib import Path
from typing import Annotated

import click
import typer

from server_app.cli.common import (
    Code,
    Recipe,
    Set,
    Target,
    Whose,
    check,
    console,
    formerly,
    names_of_algorithms,
    read_keys,
)
from server_app.cli.keyed import KeyedCommand
from task.errors import ConfigError
from task.text import plain

app = typer.Typer()


@app.command(
    "algorithms",
    epilog="Examples: [bold]bouquet algorithms fedprox[/bold]  ·  [bold]bouquet algorithms --json[/bold]",
)
def list_algorithms(
    name: Annotated[
        str, typer.Argument(help="An algorithm; none = list all.", autocompletion=names_of_algorithms)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List the algorithms, or describe one: what it does, paper, knobs, what leaves a client, example."""
    from server_app.cli.catalogue import as_dict, card, terminal_table

    shown = card(name) if name else terminal_table()  # refuses an unknown name, with --json, too
    if as_json:
        found = as_dict()
        typer.echo(json.dumps(found[name] if name else found, indent=2))
    else:
        console().print(shown)


@app.command("models", epilog="Use one with [bold]bouquet run -c 'model=\"cnn\"'[/bold]")
def list_models() -> None:
    """List the models: description, input, number of parameters."""
    from server_app.cli.models import table

    console().print(table())


@app.command(
    "recipes",
    epilog="Run one with [bold]bouquet run --recipe NAME[/bold] or [bold]flwr run . -c FILE.toml[/bold]",
)
def list_recipes() -> None:
    """List the bundled recipes: published experiments by name."""
    from rich.table import Table

    from task.config.read import recipes

    table = Table("recipe", "what it is")
    for name, path in recipes().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        table.add_row(name, next((line.lstrip("# ") for line in lines if line.startswith("#")), ""))
    console().print(table)


@app.command(
    cls=KeyedCommand,
    epilog='Example: [bold]bouquet data -c \'dataset="mnist" partition="shards" num-clients=100\'[/bold]',
)
def data(
    recipe: Recipe = "",
    config: Set = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the data sets and partitions, and exit.")
    ] = False,
    plot: Annotated[
        str, typer.Option(help="Where to write the plot of label counts per client.")
    ] = "label-counts.png",
    code: Code = None,
) -> None:
    """Describe a data set and its partition among clients, and plot the label counts per client."""
    from server_app.cli import data as datacard

    if listing:
        console().print(*datacard.listing())
        return
    checked = check(read_keys(recipe, config, code=code))
    terminal = console()
    for part in datacard.describe(checked, Path(plot)):
        terminal.print(part, soft_wrap=isinstance(part, str))


@app.command(epilog="Example: [bold]bouquet report runs/demo[/bold]")
def report(
    run: Annotated[Path, typer.Argument(help="A result folder, or a run's name below runs/.")],
) -> None:
    """Write report.html and its plots for a run, finished or not.

    RUN is a result folder, or the name of a run below runs/.
    """
    from server_app.results.folder import no_run, place_of
    from server_app.results.report import write_report

    folder = place_of(run)
    if not (folder / "config.json").exists():
        raise no_run("report: expected a result folder with config.json", run)
    for path in write_report(folder):
        typer.echo(path)


@app.command(
    cls=formerly(names="--by-name"),
    epilog="Examples: [bold]bouquet compare runs/fedprox-* runs/fedavg-* --plot both.png[/bold]  ·  "
    "[bold]bouquet compare runs/none runs/stc --x bytes --plot bytes.png[/bold]",
)
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Result folders, names of runs below runs/, or folders of sweeps; runs that differ only in "
            "the seed form one row."
        ),
    ],
    on: Whose = None,
    target: Target = 0.9,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    plot: Annotated[
        str,
        typer.Option(
            help="Where to write the plot of accuracy and loss over --x, and of the clients' accuracies."
        ),
    ] = "",
    x: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(["rounds", "bytes", "bytes-up", "seconds", "simulated-seconds"]),
            help="The x axis of --plot: bytes in both directions, or from clients only; measured "
            "seconds, or those of simulated devices.",
        ),
    ] = "rounds",
    by_name: Annotated[
        bool,
        typer.Option(
            "--by-name",
            help="Label rows by the runs' names; names that differ only in a final "
            "-number count as seeds of one row.",
        ),
    ] = False,
    last_round: Annotated[
        int | None, typer.Option(min=0, help="Ignore later rounds, to compare runs of different lengths.")
    ] = None,
) -> None:
    """Compare runs in a table, with mean and standard deviation over seeds, and plot their curves.

    RUNS are result folders, or folders of sweeps. Runs whose configurations differ only in the seed form one
    row. Rows are labelled by the keys in which they differ.
    """
    from server_app.results import compare as side_by_side
    from server_app.results.groups import groups

    if x != "rounds" and not plot:
        raise ConfigError(f"compare --x {x}: expected --plot FILE with it; got none")
    curves = groups(runs, names=by_name, last_round=last_round)
    on, remarks = side_by_side.choose(curves, on)
    header, lines, more = side_by_side.table(curves, on, target)
    remarks += more
    if markdown:
        typer.echo(plain(side_by_side.markdown(header, lines, remarks)))
    else:
        terminal = console()
        for part in side_by_side.terminal_tables(header, lines, terminal.width):
            terminal.print(part, "")
        typer.echo(plain("\n".join(remarks)))
    if plot:
        side_by_side.plot(curves, on, Path(plot), x)
        typer.echo(Path(plot).resolve())


@app.command(
    epilog="Examples: [bold]bouquet state[/bold]  ·  [bold]bouquet state ditto-mnist-7 --delete --yes[/bold]"
)
def state(
    run: Annotated[
        str, typer.Argument(help="A run's name, or name/id where runs share a name; none = all runs.")
    ] = "",
    state_dir: Annotated[
        str, typer.Option("--state-dir", help="Folder of the kept state, like the run-config key state-dir.")
    ] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Delete the kept state of one run.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm --delete.")] = False,
) -> None:
    """List the state, such as personal models, that clients on this machine keep between rounds, by run.

    RUN is a run's name, or name/id where several runs share a name.
    """
    from server_app.cli import client_state as statecard

    runs = statecard.kept_runs(state_dir, run)
    if delete:
        gone = statecard.delete(run, runs, yes)
        typer.echo(plain(f"deleted the state of {gone.clients} clients of {gone.name}/{gone.id}"))
    else:
        console().print(statecard.table(runs) if runs else "no run has kept state")

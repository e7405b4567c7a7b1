"""The commands ``verify`` and ``replay``: check a run by its transcript, or repeat an asynchronous one."""

from pathlib import Path
from typing import Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import Code, allow, console
from task import portable
from task.errors import ConfigError
from task.text import plain

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]bouquet verify runs/demo[/bold]  ·  "
    "[bold]bouquet verify runs/demo --kit kits/ward-1[/bold]"
)
def verify(
    run: Annotated[Path, typer.Argument(help="A result folder, or a run's name below runs/.")],
    kit: Annotated[
        Path | None,
        typer.Option("--kit", help="A node's kit or state folder: check that node's receipts, too."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", help="The federation's ca.crt, which signs the nodes' certificates; default: the kit's."
        ),
    ] = None,
    code: Code = None,
) -> None:
    """Check a run by its transcript: signatures, sums, and that each model is the rule's result on the sums.

    The run needs transcript = "sums" or "full". RUN is a result folder, or the name of a run below runs/.
    Exit code 1: something does not match.
    """
    from rich.table import Table

    allow(code)
    from server_app.results.folder import RunFolder, machine_of, machine_words, no_run, place_of

    folder = place_of(run)
    if not folder.exists():
        raise no_run("expected a result folder or a run's name below runs/", run)
    config = RunFolder(folder).config()
    if machine_of(config)["portable"]:
        try:
            portable.start_again()
        except ConfigError as err:
            typer.echo(plain(f"note: checked with kernels other than the run's: {err}"))
    from server_app.extras.verify.check import proves
    from server_app.extras.verify.check import verify as check
    from server_app.extras.verify.findings import MOST

    chain, found = check(folder, kit, ca)
    table = Table("checked", "number", title=f"{folder.name}, {len(chain.lines) - 1} rounds")
    for what, number in found.counts.items():
        table.add_row(what, f"{number:,}")
    console().print(table)
    if machine := machine_words(config):
        found.note(f"computed by {machine}")
    for note in found.notes:
        typer.echo(plain(f"note: {note}"))
    typer.echo(f"last line of the transcript: SHA-256 {chain.head}")
    if found.faults:
        for fault in found.faults[:MOST]:
            typer.secho(plain(f"contradicts: {fault}"), fg="red", err=True)
        if more := len(found.faults) - MOST:
            typer.secho(f"... and {more} more", fg="red", err=True) if more > 0 else None
        raise typer.Exit(exits.NO)
    for title, lines in zip(("proven", "not proven"), proves(chain, receipts=kit is not None), strict=True):
        typer.echo(f"{title}:")
        for line in lines:
            typer.echo(f"  - {line}")


@app.command(epilog="Example: [bold]bouquet replay runs/ward[/bold]")
def replay(
    run: Annotated[Path, typer.Argument(help="A result folder, or a run's name below runs/.")],
    nodes: Annotated[int, typer.Option(min=0, help="Virtual nodes, 0 = one per CPU.")] = 0,
    code: Code = None,
) -> None:
    """Repeat an asynchronous run of a link, with its updates in the order in which they arrived.

    The run needs order-of-arrival = "real"; it recorded the order in RUN/arrivals.jsonl. The simulation
    repeats all its rounds from its keys, its data and that order, and compares the model after each round.
    Exit code 1: a model differs.
    """
    from server_app.cli.common import importing, sigterm_is_ctrl_c

    allow(code)
    with sigterm_is_ctrl_c():
        with importing():
            from server_app.engines.replay import replay as again
            from server_app.results.folder import place_of
        done = again(place_of(run), nodes, lambda line: typer.echo(plain(line), err=True))
    went = f"{done.rounds} of {done.of} rounds: {done.updates} updates"
    typer.echo(f"{went}, {done.refused} refused, {done.lost} starts given up")
    if not done.differs:
        typer.echo(f"the same model after each round; after the last one SHA-256 {done.model}")
        return
    for note in done.notes:
        typer.echo(plain(f"note: {note}"))
    typer.secho(
        f"differs: after round {done.differs} the run's model is {done.model}; the repetition has {done.got}",
        fg="red",
        err=True,
    )
    raise typer.Exit(exits.NO)

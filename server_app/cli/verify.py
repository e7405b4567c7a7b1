"""The command ``verify``."""

from pathlib import Path
from typing import Annotated

import typer

from server_app.cli.common import console
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
        typer.Option("--kit", help="A node's kit, or a state folder: check the node's own receipts, too."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", help="The federation's ca.crt, for nodes' certificates; default: the kit's."),
    ] = None,
) -> None:
    """Check a run by its transcript: signatures, sums, and that each model is the rule's result on the sums.

    The run needs transcript = "sums" or "full". RUN is a result folder, or the name of a run below runs/.
    Exit code 1 says that something contradicts.
    """
    from rich.table import Table

    from server_app.results.folder import RunFolder, machine_of, machine_words

    folder = run if run.exists() else Path("runs") / run
    config = RunFolder(folder).config()
    if machine_of(config)["portable"]:
        try:
            portable.start_again()
        except ConfigError as err:
            typer.echo(plain(f"note: checked with other kernels than the run's: {err}"))
    from server_app.verify.check import proves
    from server_app.verify.check import verify as check
    from server_app.verify.findings import MOST

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
        raise typer.Exit(1)
    for title, lines in zip(("proven", "not proven"), proves(chain, receipts=kit is not None), strict=True):
        typer.echo(f"{title}:")
        for line in lines:
            typer.echo(f"  - {line}")

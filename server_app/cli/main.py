"""The command line: ``bouquet``."""

import os
import sys
import traceback
from typing import Annotated

import click
import typer

from server_app.cli import (
    audit,
    bundle,
    deploy,
    describe,
    exits,
    reproduce,
    run,
    scene,
    show,
    sweep,
    takeout,
    verify,
)
from task.errors import BouquetError
from task.text import plain

app = typer.Typer(
    name="bouquet",
    help="Every classic federated-learning algorithm as one deployable Flower app.",
    epilog="Begin with [bold]bouquet run --recipe demo[/bold]; results lie in runs/.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for family in (
    run.app,
    describe.app,
    sweep.app,
    reproduce.app,
    scene.app,
    show.app,
    verify.app,
    takeout.app,
    bundle.app,
    deploy.app,
):  # in the order of the help
    app.add_typer(family)
app.add_typer(audit.app)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the versions and exit.")] = False,
) -> None:
    """Every classic federated-learning algorithm as one deployable Flower app."""
    if version:
        from server_app.results.folder import versions

        words = (f"{name} {number or '?'}" for name, number in versions().items())
        typer.echo(", ".join(words))
        raise typer.Exit


def main() -> None:
    """Entry point: print expected errors as one line, without a traceback."""
    # Files that Flower and other libraries write, here and in child processes, are private, too.
    os.umask(0o077)
    code = exits.DONE
    try:
        # Without standalone mode typer returns the exit code; `INTERRUPTED` means Ctrl-C.
        code = app(standalone_mode=False) or exits.DONE
    except BouquetError as err:
        typer.secho(f"error: {plain(str(err))}", fg="red", err=True)
        code = exits.code_of(err)
    except OSError as err:
        if err.filename is None:  # not about a file: a bug
            traceback.print_exc()
        else:
            typer.secho(f"error: {plain(str(err.filename))}: {err.strerror}", fg="red", err=True)
        code = exits.code_of(err)
    except click.ClickException as err:
        err.show()
        code = exits.USAGE
    except click.Abort:
        code = exits.INTERRUPTED
    except exits.StoppedError as err:
        typer.secho(plain(str(err)), err=True)
        sys.exit(exits.INTERRUPTED)
    except Exception:  # a bug
        traceback.print_exc()
        code = exits.FAILED
    if code == exits.INTERRUPTED:
        typer.secho("stopped by the user", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

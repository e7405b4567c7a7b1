"""The command ``scene``: a few runs for teaching, and their comparison."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from server_app.cli.common import Code, RunsDir, Set, console
from server_app.cli.show import compare
from server_app.deploy.host.modules import module_command

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]bouquet scene straggler[/bold]  ·  "
    "[bold]bouquet scene ring --link kits/link[/bold]"
)
def scene(
    name: Annotated[str, typer.Argument(help="The scene; none = list them.")] = "",
    config: Set = None,
    runs_dir: RunsDir = "runs",
    link: Annotated[Path | None, typer.Option("--link", help="Kit of a link: run on its nodes.")] = None,
    code: Code = None,
) -> None:
    """Run a scene for teaching: several runs in sequence, compared in a table and a plot.

    The runs are named NAME-RUN and replace those of an earlier call.
    docs/howto/teaching.md says what to look at.
    """
    from task.config.read import scene_runs, scenes

    if not name:
        from rich.table import Table

        table = Table("scene", "what it shows", "runs")
        for known, path in scenes().items():
            title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
            table.add_row(known, title, ", ".join(scene_runs(known)))
        console().print(table)
        return
    runs, label = scene_runs(name), Path(name).stem
    folder = Path(runs_dir) if link is None else link / "runs"
    where = ["--runs-dir", runs_dir] if link is None else ["--link", str(link)]
    keys = [word for pair in config or () for word in ("-c", pair)]
    keys += [word for package in code or () for word in ("--code", package)]
    for run in runs:
        typer.echo(f"{label}-{run}", err=True)
        # One process per run: the simulation's workers must be forked from a process that has run nothing
        # yet.
        command = ["run", "--recipe", f"{name}/{run}", "--run-name", f"{label}-{run}", "--overwrite"]
        line = module_command("server_app.cli.main", *command, *where, *keys)
        done = subprocess.run(line, check=False)
        if done.returncode:
            raise typer.Exit(done.returncode)
    compare([folder / f"{label}-{run}" for run in runs], plot=str(folder / f"{label}.png"), by_name=True)

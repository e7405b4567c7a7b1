"""``bouquet app``: make a folder, with a user's own code or without, an app for ``flwr run``."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from server_app.cli.common import Code, Recipe, Set, check, read_keys
from task.errors import ConfigError

app = typer.Typer()
MARK = "# Written by `bouquet app`; write it again with `bouquet app FOLDER -c ...`, or edit the keys."
_HEAD = """\
{mark}
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Federated learning with Bouquet"
license = "Apache-2.0"
dependencies = ["bouquet"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "{name}"
fab-include = {include}

[tool.flwr.app.components]
serverapp = "server_app.app:app"
clientapp = "client_app.app:app"
"""


@app.command(
    "app",
    epilog='Example: [bold]bouquet app . -c \'model="net:Small" dataset="data:load"\'[/bold], then '
    "[bold]flwr run . --stream[/bold]",
)
def write_app(
    folder: Annotated[
        Path, typer.Argument(help="Folder, with your own modules or without; made if missing.")
    ],
    recipe: Recipe = "",
    config: Set = None,
    code: Code = None,
) -> None:
    """Make a folder an app for `flwr run`, with your own code in it or without: write its pyproject.toml."""
    from task.config.read import as_run_config
    from task.references import is_hub, package_of, references_in

    folder = folder.expanduser().resolve()
    target = folder / "pyproject.toml"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder; got a file")
    if target.exists() and MARK not in target.read_text("utf-8"):
        raise ConfigError(f"{target}: expected none, or one that `bouquet app` wrote; got another project's")
    keys = as_run_config(check({"runs-dir": str(folder / "runs"), **read_keys(recipe, config, code=code)}))
    packages = sorted({package_of(reference) for reference in references_in(keys) if not is_hub(reference)})
    missing = [p for p in packages if not ((folder / f"{p}.py").is_file() or (folder / p).is_dir())]
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "app"
    # Flower refuses a pattern that matches no file.
    modules = any(folder.glob("*.py")) or any(folder.glob("[!.]*/**/*.py"))
    include = json.dumps(["pyproject.toml", "**/*.py"] if modules else ["pyproject.toml"])
    folder.mkdir(parents=True, exist_ok=True)
    head = _HEAD.format(mark=MARK, name=name, include=include)
    target.write_text(head + _tables(keys), encoding="utf-8")
    typer.echo(f"wrote {target}; results will lie in {keys['runs-dir']}")
    for package in missing:
        typer.echo(f'not in this folder, so install it where the app runs: "{package}"', err=True)
    # `flwr` starts other programs of Flower by name; a tool's environment is not on the PATH.
    programs = "" if shutil.which("flwr") else f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH "
    run = f"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run {shlex.quote(str(folder))} --stream"
    typer.echo(f"run it: {programs}{run}")


def _tables(keys: dict[str, bool | int | float | str]) -> str:
    """Return every run-config key in Flower's tables: Flower's ``-c`` accepts only keys listed there."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
        tables.setdefault(section, []).append(f"{name} = {text}")
    head = "\n[tool.flwr.app.config"
    return "".join(
        f"{head}{'.' * bool(section)}{section}]\n" + "\n".join(lines) + "\n"
        for section, lines in tables.items()
    )

"""``bouquet app``: make a folder of a user's own code an app for ``flwr run``."""

import json
import re
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
fab-include = ["**/*.py"]

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
    folder: Annotated[Path, typer.Argument(help="Folder with your own modules, such as net.py.")],
    recipe: Recipe = "",
    config: Set = None,
    code: Code = None,
) -> None:
    """Make a folder of your own code an app for `flwr run`: write its pyproject.toml."""
    from task.config.read import as_run_config
    from task.references import is_hub, package_of, references_in

    folder = folder.expanduser().resolve()
    target = folder / "pyproject.toml"
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder with your own modules; got none")
    if target.exists() and MARK not in target.read_text("utf-8"):
        raise ConfigError(f"{target}: expected none, or one that `bouquet app` wrote; got another project's")
    keys = as_run_config(check({"runs-dir": str(folder / "runs"), **read_keys(recipe, config, code=code)}))
    packages = sorted({package_of(reference) for reference in references_in(keys) if not is_hub(reference)})
    missing = [p for p in packages if not ((folder / f"{p}.py").is_file() or (folder / p).is_dir())]
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "app"
    target.write_text(_HEAD.format(mark=MARK, name=name) + _tables(keys), encoding="utf-8")
    typer.echo(f"wrote {target}; results will lie in {keys['runs-dir']}")
    for package in missing:
        typer.echo(f'not in this folder, so install it where the app runs: "{package}"', err=True)
    typer.echo(f"run it: FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run {folder} --stream")


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

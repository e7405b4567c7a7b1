"""Shared by all commands: options, reading keys, and how a command ends."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from typer.core import TyperCommand

from task.errors import ConfigError
from task.text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from task.config.knobs import Config
    from task.config.sections import Value


def names_of_recipes(incomplete: str) -> list[str]:
    """Return the bundled recipes that a shell can complete a word to."""
    from task.config.read import recipes

    return [name for name in recipes() if name.startswith(incomplete)]


def names_of_algorithms(incomplete: str) -> list[str]:
    """Return the algorithms that a shell can complete a word to."""
    from task.catalogue.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


Recipe = Annotated[
    str,
    typer.Option(
        "--recipe", "-r", help="Bundled recipe (see `bouquet recipes`) or a TOML file.",
        autocompletion=names_of_recipes,
    ),
]  # fmt: skip
Set = Annotated[
    list[str] | None, typer.Option("--config", "-c", help="Run-config keys, e.g. -c 'seed=7 fedprox.mu=0.1'.")
]
From = Annotated[
    Path | None,
    typer.Option("--from", help="Repeat this run: a result folder, its name below runs/, or a model file."),
]
RunName = Annotated[str, typer.Option("--run-name", help="Name of the run: its folder below --runs-dir.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue the run of this --run-name from its last checkpoint; it keeps its keys."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="First delete the run of this --run-name, finished or not.")
]


def _count_of_nodes(text: str) -> int:
    if not str(text).isdecimal():
        raise ConfigError(
            f"--nodes: expected the number of virtual nodes of a simulation; got {text!r}. The names of a "
            "link's nodes are --node-names"
        )
    return int(text)


Nodes = Annotated[
    int,
    typer.Option(
        parser=_count_of_nodes,
        metavar="INTEGER",
        help="Number of virtual nodes of a simulation, 0 = one per CPU; it does not change results.",
    ),
]
NodeNames = Annotated[
    str, typer.Option(help="With --link: names of the nodes to run on, such as ward-1,ward-3; none = all.")
]
RunsDir = Annotated[str, typer.Option("--runs-dir", help="Where result folders are written.")]
Target = Annotated[
    float,
    typer.Option(
        "--target",
        min=0,
        max=1,
        help="Target accuracy: count the rounds, bytes and seconds until it is reached.",
    ),
]
Whose = Annotated[
    str | None,
    typer.Option(
        "--on",
        click_type=click.Choice(["server", "clients"]),
        help="Whose evaluations to compare; default: the server's, else the clients'.",
    ),
]
KeepState = Annotated[
    bool | None,
    typer.Option(
        "--keep-state/--no-keep-state",
        help="Whether to keep the clients' state, such as personal models, after the run (default: keep).",
    ),
]
Code = Annotated[
    list[str] | None,
    typer.Option(
        "--code",
        help="Package or module of your own whose code a file may name, such as net for net:Small; "
        "may be repeated.",
    ),
]


def formerly(**options: str) -> type[TyperCommand]:
    """Return the class of a command that takes options by an earlier name, too, with a warning.

    Earlier names are given without hyphens: ``formerly(link="--address")``. The help does not show them.
    """

    def now(argument: str) -> str:
        name, equals, value = argument.partition("=")
        new = options.get(name.removeprefix("--"), "") if name.startswith("--") else ""
        if not new:
            return argument
        typer.echo(f"{name} is now {new}; the old name goes with version 2.0", err=True)
        return f"{new}{equals}{value}"

    class Command(TyperCommand):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            end = args.index("--") if "--" in args else len(args)
            return super().parse_args(ctx, [*map(now, args[:end]), *args[end:]])

    return Command


def allow(code: list[str] | None) -> None:
    """Allow the files that this command reads to name code of these packages of the user."""
    from task import trust

    trust.allow(code or ())


def read_keys(
    recipe: str,
    pairs: list[str] | None,
    run_name: str = "",
    runs_dir: str = "",
    resume: bool = False,
    overwrite: bool = False,
    repeat: Path | None = None,
    code: list[str] | None = None,
    here: bool = True,
) -> dict[str, object]:
    """Return the run-config keys: those of a recipe or repeated run, then ``-c``, then the options.

    A run that is resumed by its name has those that it was started with, unless they are given again; if
    its folder is not `here`, its link adds them. Code that ``-c`` names is trusted: the user typed it. Code
    that a recipe, a TOML file or an existing run names is not: its package must be among those of `code`.
    """
    with importing():
        from task import trust
        from task.config.options import parse_options, typed
        from task.config.read import read_recipe
        from task.references import check_origin, references_in
        from task.resolve.read import fuse

    allow(code)
    trust.user_named(references_in(typed(pairs)))
    base = read_recipe(recipe) if recipe else {}
    if repeat is not None:
        base = _repeated(repeat, recipe, resume)
    own = parse_options(pairs)
    check_origin({**base, **own}, recipe or repeat or "-c FILE.toml")
    options: dict[str, Value] = {"run-name": run_name} if run_name else {}
    options |= {"runs-dir": runs_dir} if runs_dir else {}
    options |= {"resume": True} if resume else {}
    given: dict[str, Value] = {**base, **own, **options}
    started: dict[str, Value] = {}
    if overwrite and (given.get("resume") or not given.get("run-name")):
        got = "--resume" if given.get("resume") else "none"
        raise ConfigError(f"--overwrite: expected --run-name and no --resume with it; got {got}")
    if here and given.get("resume"):
        from server_app.run.same_run import keys_to_resume

        started = keys_to_resume(given)
    keys, unread = fuse({**started, **base}, own)
    keys |= options
    if listed := "; ".join(f"{key}, which is for {why}" for key, why in unread.items() if key in base):
        place = f"{recipe and 'recipe '}{recipe or repeat}"
        typer.echo(plain(f"{place}: ignored keys that this run does not read: {listed}"), err=True)
    return keys


def _repeated(run: Path, recipe: str, resume: bool) -> dict[str, Value]:
    """Return the keys of a run to repeat."""
    from server_app.run.repeat import keys_of_run

    if recipe or resume:
        other = "--recipe" if recipe else "--resume, which continues a run"
        raise ConfigError(f"--from: expected it alone, perhaps with -c and --run-name; got {other}")
    keys, lines = keys_of_run(run)
    for line in lines:
        typer.echo(plain(line), err=True)
    return keys


def check(keys: Mapping[str, object]) -> Config:
    """Read the keys; a bad one ends the command here, before anything starts."""
    from task.resolve.read import read_config

    return read_config(keys)


def remove(checked: Config) -> None:
    """Delete the result folder that a run of this name left."""
    from server_app.run.naming import remove_run

    remove_run(Path(checked.output.runs_dir).expanduser(), checked.run_name)


def console() -> Console:
    """Return the terminal that tables are printed on."""
    from server_app.run.terminal import Terminal

    return Terminal()


@contextmanager
def importing() -> Iterator[None]:
    """Pause garbage collection while modules are imported.

    Imports create many long-lived objects; traversing them repeatedly would take a quarter of the time.
    Afterwards they are frozen, so that forked processes keep sharing their pages.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that what it started is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

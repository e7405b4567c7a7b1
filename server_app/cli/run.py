"""Commands that run a federation: ``run``, ``federation``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import (
    Code,
    From,
    KeepState,
    NodeNames,
    Nodes,
    Overwrite,
    Recipe,
    Resume,
    RunName,
    RunsDir,
    Set,
    check,
    console,
    importing,
    read_keys,
    remove,
    sigterm_is_ctrl_c,
)
from server_app.cli.keyed import KeyedCommand
from task import portable
from task.errors import ConfigError
from task.flower.names import untested

if TYPE_CHECKING:
    from task.config.knobs import Config

app = typer.Typer()


@app.command(
    cls=KeyedCommand,
    epilog="Examples: [bold]bouquet run --recipe demo[/bold]  ·  "
    '[bold]bouquet run -c \'algorithm="fedprox" fedprox.mu=0.1 dataset="mnist" model="2nn"\'[/bold]  ·  '
    "[bold]bouquet run --link kits/link --recipe demo --node-names ward-1,ward-3[/bold]",
)
def run(
    recipe: Recipe = "",
    repeat: From = None,
    config: Set = None,
    nodes: Nodes = 0,
    node_names: NodeNames = "",
    gpus: Annotated[
        int,
        typer.Option(
            min=0, help="Number of this machine's GPUs to train on, with a virtual node for each; 0 = all."
        ),
    ] = 0,
    run_name: RunName = "",
    runs_dir: RunsDir = "",
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_state: KeepState = None,
    help_keys: Annotated[
        bool, typer.Option("--help-keys", help="List every run-config key and exit.")
    ] = False,
    link: Annotated[
        Path | None, typer.Option("--link", help="Kit of a link or a submitter: run on the link's nodes.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --link: submit the run and return at once.")
    ] = False,
    attach: Annotated[str, typer.Option("--attach", help="With --link: follow the run of this name.")] = "",
    stop: Annotated[str, typer.Option("--stop", help="With --link: stop the run of this name.")] = "",
    code: Code = None,
) -> None:
    """Run a federation: as a simulation on this machine, or on the nodes of a link.

    A run on a link continues without this command: Ctrl-C only stops following it.
    """
    if help_keys:
        from server_app.cli.catalogue import listing

        console().print(listing())
        return
    keys = read_keys(recipe, config, run_name, runs_dir, resume, overwrite, repeat, code, link is None)
    keys |= {} if keep_state is None else {"keep-state": keep_state}
    if link is not None:
        if gpus:
            raise ConfigError(
                "--gpus: expected in a simulation only; the nodes of a link have their own GPUs"
            )
        if nodes:
            raise ConfigError(
                "--nodes: expected in a simulation only; --node-names chooses among the nodes of a link"
            )
        if node_names and (attach or stop):
            raise ConfigError(
                "--node-names: expected only when a run is submitted; got it with --attach or --stop"
            )
        keys |= {"node-names": node_names} if node_names else {}
        from server_app.cli.at_link import run_at_link

        run_at_link(link, keys, detach, attach, stop, overwrite)
        return
    if detach or attach or stop:
        raise ConfigError("--detach, --attach and --stop: expected them with --link KIT; got none")
    if node_names:
        raise ConfigError(
            f"--node-names: expected it with --link KIT, whose nodes have names; got {node_names!r} for a "
            "simulation, whose number of nodes is --nodes"
        )
    checked = check(keys)
    if checked.train.portable:
        portable.start_again()
    path = _checked_beforehand(checked, overwrite)
    if checked.output.progress != "none":
        typer.echo("starting the simulation ...", err=True)
        if warning := untested():
            typer.echo(warning, err=True)
    with _stopping(path), sigterm_is_ctrl_c():
        with importing():
            from server_app.engines.simulate import simulate
        if overwrite:
            remove(checked)
        simulate(keys, nodes, gpus=gpus, fresh=True)


def _checked_beforehand(checked: Config, overwrite: bool) -> Path:
    """Return the folder of a run, after checks that need no torch."""
    with importing():
        from server_app.run.beforehand import check_beforehand

    return check_beforehand(checked, overwrite=overwrite)


@contextmanager
def _stopping(path: Path) -> Iterator[None]:
    """Let Ctrl-C end the block with words about what is left of the run in the folder `path`."""
    try:
        yield
    except KeyboardInterrupt:
        from server_app.results.folder import RunFolder

        again = f"`bouquet run --resume --run-name {path.name}` continues from the last checkpoint"
        if RunFolder(path).begun():
            raise exits.StoppedError(f"stopped by the user; {again}") from None
        raise exits.StoppedError("stopped before round 1; there is nothing to resume") from None


@app.command(
    cls=KeyedCommand,
    epilog="Examples: [bold]bouquet federation --recipe demo --nodes 3[/bold]  ·  "
    "[bold]bouquet federation --recipe slow-line --bandwidth 256kbit[/bold]",
)
def federation(
    recipe: Recipe = "",
    config: Set = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 3,
    bandwidth: Annotated[
        str, typer.Option(help="Bandwidth limit of each node to and from the link, each way, e.g. 256kbit.")
    ] = "",
    slow: Annotated[
        int,
        typer.Option(
            min=0, help="Apply --bandwidth to this number of nodes only, the last ones; 0 = to all."
        ),
    ] = 0,
    run_name: RunName = "",
    runs_dir: RunsDir = "",
    resume: Resume = False,
    overwrite: Overwrite = False,
    code: Code = None,
) -> None:
    """Start a link and nodes with TLS and node keys as processes on this machine, and run on them."""
    keys = read_keys(recipe, config, run_name, runs_dir, resume, overwrite, code=code)
    checked = check(keys)
    path = _checked_beforehand(checked, overwrite)
    from server_app.deploy.host.resource_limits import read_rate
    from server_app.engines.federation import federation as start
    from task.config.read import as_run_config
    from task.references import package_of, references_in

    if slow and not bandwidth:
        raise ConfigError("--slow: expected --bandwidth RATE, the limit of those nodes, with it; got none")
    limit = ["--bandwidth", bandwidth] if bandwidth and read_rate(bandwidth) else []
    first = nodes - min(slow or nodes, nodes)
    keys.pop("runs-dir", None)
    if overwrite:
        remove(checked)
    if checked.output.progress != "none":
        typer.echo("starting a link and its nodes ...", err=True)
    runs = Path(checked.output.runs_dir).expanduser()
    packages = sorted({package_of(r) for r in references_in(as_run_config(checked))})
    shares = {
        f"node-{i + 1}": ["--partition", f"{i}/{nodes}", *(limit if i >= first else [])] for i in range(nodes)
    }
    with _stopping(path), sigterm_is_ctrl_c(), start(shares, runs, packages, he=checked.server.he) as fed:
        fed.run(keys)

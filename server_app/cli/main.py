"""The command line: ``bouquet``."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from task.errors import BouquetError, ConfigError, DataError
from task.text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from task.config.knobs import Config

app = typer.Typer(
    name="bouquet",
    help="Every classic federated-learning algorithm as one deployable Flower app.",
    epilog="Begin with [bold]bouquet run --recipe demo[/bold]; results lie in runs/.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

DETACHED = 3  # exit code of a watch that ended before the run

Recipe = Annotated[
    str, typer.Option("--recipe", "-r", help="Bundled recipe (see `bouquet recipes`) or a TOML file.")
]
Set = Annotated[
    list[str] | None, typer.Option("--config", "-c", help="Run-config keys, e.g. -c 'seed=7 fedprox.mu=0.1'.")
]
RunName = Annotated[str, typer.Option("--run-name", help="Folder below the runs folder.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last checkpoint of this run; it must be there.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete the run of this --run-name first, finished or not.")
]
RunsDir = Annotated[str, typer.Option("--runs-dir", help="Where result folders are written.")]


def _keys(
    recipe: str,
    pairs: list[str] | None,
    run_name: str = "",
    runs_dir: str = "",
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, object]:
    with _importing():
        from flwr.common.config import parse_config_args

        from task.config.read import fuse, read_recipe

    keys, unread = fuse(read_recipe(recipe) if recipe else {}, parse_config_args(pairs))
    if unread:
        listed = "; ".join(f"{key}, which is for {why}" for key, why in unread.items())
        typer.echo(f"recipe {recipe}: left out what this run does not read: {listed}", err=True)
    if run_name:
        keys["run-name"] = run_name
    if runs_dir:
        keys["runs-dir"] = runs_dir
    if resume:
        keys["resume"] = True
    if overwrite and (keys.get("resume") or not keys.get("run-name")):
        got = "--resume" if keys.get("resume") else "none"
        raise ConfigError(f"--overwrite: expected --run-name and no --resume with it; got {got}")
    return keys


@app.command(
    epilog="Examples: [bold]bouquet run --recipe demo[/bold]  ·  "
    '[bold]bouquet run -c \'algorithm="fedprox" fedprox.mu=0.1 dataset="mnist" model="2nn"\'[/bold]  ·  '
    "[bold]bouquet run --link kits/link --recipe demo[/bold]"
)
def run(
    recipe: Recipe = "",
    config: Set = None,
    nodes: Annotated[
        int, typer.Option(help="Virtual nodes; 0 = one per CPU. Results do not depend on it.")
    ] = 0,
    run_name: RunName = "",
    runs_dir: RunsDir = "",
    resume: Resume = False,
    overwrite: Overwrite = False,
    help_keys: Annotated[
        bool, typer.Option("--help-keys", help="List every run-config key and exit.")
    ] = False,
    link: Annotated[
        Path | None, typer.Option("--link", help="Kit of a link: run on its nodes instead of here.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --link: submit only; the run goes on by itself.")
    ] = False,
    attach: Annotated[str, typer.Option("--attach", help="With --link: follow the run of this name.")] = "",
    stop: Annotated[str, typer.Option("--stop", help="With --link: end the run of this name.")] = "",
) -> None:
    """Run a federation in Flower's simulation engine, on this machine, or on the nodes of a link.

    On a link the run goes on whatever happens to this command: Ctrl-C only ends the watching.
    """
    if help_keys:
        _list_keys()
        return
    keys = _keys(recipe, config, run_name, runs_dir, resume, overwrite)
    if link is not None:
        _run_at_link(link, keys, detach, attach, stop, overwrite)
        return
    if detach or attach or stop:
        raise ConfigError("--detach, --attach and --stop: expected them with --link KIT; got none")
    checked = _check(keys)
    if checked.output.progress != "none":
        typer.echo("starting the simulation engine ...", err=True)
    with _sigterm_is_ctrl_c():
        with _importing():
            from server_app.engines.simulate import simulate
        if overwrite:
            _remove(checked)
        simulate(keys, nodes)


def _run_at_link(
    folder: Path, keys: dict[str, object], detach: bool, attach: str, stop: str, overwrite: bool
) -> None:
    """Submit a run to a link, follow it, or end it."""
    from server_app.deploy.kits.kit import read_link_kit
    from server_app.deploy.link import follow
    from server_app.deploy.link.jobs import Jobs

    kit = read_link_kit(folder)
    if stop:
        Jobs(kit.jobs, kit.runs).ask_to_stop(stop)
        typer.echo(f"asked the link to end {stop}; what it has so far stays in {kit.runs / stop}")
        return
    job = follow.attach(kit, attach) if attach else follow.submit(kit, keys, overwrite=overwrite)
    again = f"bouquet run --link {folder} --attach {job.name}"
    if detach:
        typer.echo(f"job {job.name} is {job.state}; watch it: {again}")
        return
    try:
        with _sigterm_is_ctrl_c():
            follow.follow(kit, job)
    except KeyboardInterrupt:
        typer.echo(f"detached; job {job.name} goes on. Watch it again: {again}", err=True)
        raise typer.Exit(DETACHED) from None


@app.command("link", epilog="Example: [bold]bouquet link kits/link[/bold]")
def run_link(
    kit: Annotated[Path, typer.Argument(help="The link's folder that `bouquet provision` made.")],
) -> None:
    """Run the SuperLink of a federation, with the kit that it was given, until it is stopped."""
    from server_app.deploy.kits.kit import read_link_kit
    from server_app.deploy.link.serve import run_link as serve

    serve(read_link_kit(kit))


@app.command(epilog="Examples: [bold]bouquet status kits/link[/bold]  ·  [bold]... --json[/bold]")
def status(
    kit: Annotated[Path, typer.Argument(help="The link's folder that `bouquet provision` made.")],
    as_json: Annotated[bool, typer.Option("--json", help="The status as JSON.")] = False,
) -> None:
    """Show a link's nodes and runs, and whether it is green, yellow or red; red gives the exit code 1.

    Yellow means that the link works, but without some nodes or clients, which are named with the reason.
    """
    from server_app.deploy.kits.kit import read_link_kit
    from server_app.deploy.link import status as statuses

    found = statuses.read_status(read_link_kit(kit))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _console().print(*statuses.tables(found), sep="\n")
    if found["state"] == statuses.RED:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]bouquet federation --recipe demo --nodes 3[/bold]")
def federation(
    recipe: Recipe = "",
    config: Set = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 3,
    run_name: RunName = "",
    runs_dir: RunsDir = "",
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Run it on a link and nodes with TLS and node keys, real processes on this machine."""
    keys = _keys(recipe, config, run_name, runs_dir, resume, overwrite)
    checked = _check(keys)
    from server_app.engines.federation import federation as start

    keys.pop("runs-dir", None)
    if overwrite:
        _remove(checked)
    if checked.output.progress != "none":
        typer.echo("starting a link and its nodes ...", err=True)
    shares = {f"node-{i + 1}": ["--partition", f"{i}/{nodes}"] for i in range(nodes)}
    with _sigterm_is_ctrl_c(), start(shares, Path(checked.output.runs_dir).expanduser()) as fed:
        fed.run(keys)


@app.command("algorithms", epilog="Example: [bold]bouquet algorithms --json[/bold]")
def list_algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="The catalogue as JSON.")] = False,
) -> None:
    """List the algorithms: the catalogue, with what goes over the wire."""
    from server_app.cli.catalogue import as_dict, terminal_table

    if as_json:
        typer.echo(json.dumps(as_dict(), indent=2))
    else:
        _console().print(terminal_table())


@app.command(
    "recipes",
    epilog="Run one with [bold]bouquet run --recipe NAME[/bold] or [bold]flwr run . -c FILE.toml[/bold]",
)
def list_recipes() -> None:
    """List the bundled recipes: published set-ups by name."""
    from rich.table import Table

    from task.config.read import recipes

    table = Table("recipe", "what it is")
    for name, path in recipes().items():
        head = [
            line.lstrip("# ")
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.startswith("#")
        ]
        table.add_row(name, head[0] if head else "")
    _console().print(table)


@app.command(
    epilog='Example: [bold]bouquet data -c \'dataset="mnist" partition="shards" num-clients=100\'[/bold]'
)
def data(
    recipe: Recipe = "",
    config: Set = None,
    listing: Annotated[bool, typer.Option("--list", help="List data sets and partitions.")] = False,
    plot: Annotated[
        str, typer.Option(help="Where to write the plot of label counts per client.")
    ] = "label-counts.png",
) -> None:
    """Show what a data set is, where it comes from and how it is partitioned; plot its labels by client."""
    from server_app.cli import data as datacard

    if listing:
        _console().print(*datacard.listing())
        return
    checked = _check(_keys(recipe, config))
    _console().print(*datacard.describe(checked, Path(plot)))


@app.command(epilog="Example: [bold]bouquet report runs/demo[/bold]")
def report(
    run: Annotated[Path, typer.Argument(help="A result folder, or a run's name below runs/.")],
) -> None:
    """Write report.html and its plots from a result folder, finished or not."""
    from server_app.results.report import write_report

    folder = run if run.exists() else Path("runs") / run
    if not (folder / "config.json").exists():
        raise ConfigError(f"report: expected a result folder with config.json; got {run}")
    for path in write_report(folder):
        typer.echo(path)


@app.command(epilog="Example: [bold]bouquet compare runs/fedprox-* runs/fedavg-* --plot both.png[/bold]")
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Result folders; names that differ in a last -number are seeds.")
    ],
    on: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(["server", "clients"]),
            help="Whose evaluations; without it the server's, or the clients' if a run has only those.",
        ),
    ] = None,
    target: Annotated[
        float, typer.Option(min=0, max=1, help="Accuracy to count rounds, bytes and seconds to.")
    ] = 0.9,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,
    plot: Annotated[
        str, typer.Option(help="Where to write accuracy and loss by round, and the clients' accuracies.")
    ] = "",
) -> None:
    """Compare runs: a table, mean and deviation over seeds, and one plot of their curves."""
    from server_app.results import compare as side_by_side

    curves = side_by_side.groups(runs)
    on, remarks = side_by_side.choose(curves, on)
    header, lines, more = side_by_side.table(curves, on, target)
    remarks += more
    if markdown:
        typer.echo(plain(side_by_side.markdown(header, lines, remarks)))
    else:
        console = _console()
        for part in side_by_side.terminal_tables(header, lines, console.width):
            console.print(part, "")
        typer.echo(plain("\n".join(remarks)))
    if plot:
        side_by_side.plot(curves, on, Path(plot))
        typer.echo(Path(plot).resolve())


@app.command(
    epilog="Examples: [bold]bouquet state[/bold]  ·  [bold]bouquet state ditto-mnist-7 --delete --yes[/bold]"
)
def state(
    run: Annotated[
        str, typer.Argument(help="A run's name, or name/id where runs share a name; none = all runs.")
    ] = "",
    state_dir: Annotated[
        str, typer.Option("--state-dir", help="Run-config key state-dir of the runs; none = its default.")
    ] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete what the clients keep of one run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm --delete.")] = False,
) -> None:
    """List what the clients of this machine keep between rounds, such as personal models, run by run.

    RUN is a run's name, or name/id where several runs share a name.
    """
    from server_app.cli import client_state as statecard

    runs = statecard.kept_runs(state_dir, run)
    if delete:
        gone = statecard.delete(run, runs, yes)
        typer.echo(plain(f"deleted what {gone.clients} clients kept of {gone.name}/{gone.id}"))
    else:
        _console().print(statecard.table(runs) if runs else "no run has kept state")


@app.command(
    epilog="Examples: [bold]bouquet provision --link host:9092 --node ward-1 --node ward-2 --out kits[/bold]"
    "  ·  [bold]bouquet provision --out kits --revoke ward-2[/bold]"
)
def provision(
    out: Annotated[str, typer.Option("--out", help="Folder of all kits; it stays with you.")],
    link: Annotated[
        str, typer.Option("--link", help="HOST:PORT by which nodes reach the SuperLink; none = as before.")
    ] = "",
    node: Annotated[list[str] | None, typer.Option("--node", help="Name of a node; may be repeated.")] = None,
    revoke: Annotated[
        list[str] | None, typer.Option("--revoke", help="Node whose key is no longer good; may be repeated.")
    ] = None,
    days: Annotated[
        int, typer.Option("--days", help="Days that a new certificate of the SuperLink is good.")
    ] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate of the SuperLink, for the same key.")
    ] = False,
) -> None:
    """Make the start kits of a real deployment: certificates, keys, one folder per machine.

    Run it again to add nodes: no key is ever written over. Another --link is written into the kits, and
    another host gets a new certificate. A revoked name that is given as --node gets a new key.
    """
    from server_app.deploy.kits import provision_report as handout
    from server_app.deploy.kits.provision import provision as bring

    result = bring(out, link, node or (), revoke or (), days, renew)
    _console().print(handout.table(result))
    for remark in result.remarks:
        typer.echo(f"note: {remark}")
    for step in handout.next_steps(result):
        typer.echo(f"next: {step}")


@app.command(epilog="Examples: [bold]bouquet monitor runs[/bold]  ·  [bold]bouquet monitor kits/link[/bold]")
def monitor(
    folder: Annotated[Path, typer.Argument(help="The kit of a link, or a folder of result folders.")],
    host: Annotated[str, typer.Option(help="Address to listen on. The page has no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 8100,
) -> None:
    """Serve a local web page about runs and nodes; it reads files and changes nothing."""
    with _sigterm_is_ctrl_c():
        from server_app.deploy.monitor.server import serve

        serve(folder, host, port)


@app.command(
    epilog="Examples: [bold]bouquet node kits/ward-1 --data /srv/images[/bold]  ·  "
    "[bold]bouquet node kits/ward-1 --data /srv/images --max-memory 800M --threads 1 --bandwidth 2mbit[/bold]"
)
def node(
    kit: Annotated[Path, typer.Argument(help="The node's folder that `bouquet provision` made.")],
    data: Annotated[
        Path | None, typer.Option(help="This node's own data, a file or folder; checked at the start.")
    ] = None,
    partition: Annotated[
        str, typer.Option(help="I/N: without --data, which share of the run's partition is this node's.")
    ] = "",
    cold: Annotated[
        bool, typer.Option("--cold", help="Flower's own way: a fresh Python process per message.")
    ] = False,
    max_memory: Annotated[
        str,
        typer.Option(
            help="Most memory that the node may use, e.g. 800M; one that needs more ends and says how much."
        ),
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="Most threads of a task; 0 = no limit.")] = 0,
    bandwidth: Annotated[
        str, typer.Option(help="Most that passes to and from the SuperLink, each way, e.g. 2mbit.")
    ] = "",
    may_train: Annotated[
        str, typer.Option(help="Program that is asked before each training; exit code 0 = yes.")
    ] = "",
) -> None:
    """Run a node of a federation, with the kit that it was given, until it is stopped."""
    from server_app.deploy.kits.kit import read_node_kit
    from server_app.deploy.kits.parsing import read_size
    from server_app.deploy.node.resource_limits import read_rate
    from server_app.deploy.node.serve import Options, read_partition, run_node

    options = Options(
        data,
        read_partition(partition),
        cold,
        read_size(max_memory, "--max-memory") if max_memory else 0,
        threads,
        read_rate(bandwidth) if bandwidth else 0.0,
        str(Path(may_train).resolve()) if may_train else "",
    )
    with _sigterm_is_ctrl_c():
        try:
            run_node(read_node_kit(kit), options)
        except KeyboardInterrupt:
            typer.echo("node stopped", err=True)


def _check(keys: Mapping[str, object]) -> Config:
    """Read the keys; a bad one ends here, before anything is started."""
    from task.config.read import read_config

    return read_config(keys)


def _remove(checked: Config) -> None:
    """Delete the result folder that a run of this name left."""
    from server_app.run.naming import remove_run

    remove_run(Path(checked.output.runs_dir).expanduser(), checked.run_name)


def _list_keys() -> None:
    from rich.table import Table

    from task.config.read import knobs

    table = Table("key", "default", "meaning", title="run-config keys")
    for k in knobs():
        table.add_row(k.key, str(k.default), k.doc + (f" ({', '.join(k.choices)})" if k.choices else ""))
    _console().print(table)


def _console() -> Console:
    from server_app.terminal import Terminal

    return Terminal()


@contextmanager
def _importing() -> Iterator[None]:
    """Let no garbage collection run while modules are imported.

    Imports make many objects that stay; to look at them again and again takes a quarter of the time.
    Afterwards they are set aside, so that forked processes go on sharing them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that what it started is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Entry point: errors that were raised on purpose are one line, not a traceback."""
    os.umask(
        0o077
    )  # what Flower and other libraries write, here and in all that is started here, is private too
    code = 0
    try:
        # Without standalone mode typer returns the code of an exit; 130 is its word for Ctrl-C.
        code = app(standalone_mode=False) or 0
    except BouquetError as err:
        typer.secho(f"error: {plain(str(err))}", fg="red", err=True)
        code = 1 if isinstance(err, DataError) else 2
    except OSError as err:
        if err.filename is None:  # not about a file: a fault of the program
            raise
        typer.secho(f"error: {plain(str(err.filename))}: {err.strerror}", fg="red", err=True)
        code = 1
    except click.ClickException as err:
        err.show()
        code = err.exit_code
    except click.Abort:
        code = 130
    if code == 130:
        typer.secho("stopped by the user; `--resume` goes on from the last checkpoint", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

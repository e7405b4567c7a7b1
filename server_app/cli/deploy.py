"""Commands of a deployment: ``provision``, ``link``, ``node``, ``status``, ``connect``, ``monitor``."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import click
import typer

from server_app.cli import exits
from server_app.cli.common import console, formerly, sigterm_is_ctrl_c
from server_app.deploy.host.modules import module_command
from task.errors import ConfigError

app = typer.Typer()
T = TypeVar("T")


@app.command("link", epilog="Example: [bold]bouquet link kits/link[/bold]")
def run_link(
    kit: Annotated[Path, typer.Argument(help="The link's folder that `bouquet provision` made.")],
) -> None:
    """Run the SuperLink of a federation from its kit, until you stop it."""
    from server_app.deploy.kits.kit import read_link_kit
    from server_app.deploy.link.run_link import run_link as serve

    serve(read_link_kit(kit))


@app.command(epilog="Examples: [bold]bouquet status kits/link[/bold]  ·  [bold]... --json[/bold]")
def status(
    kit: Annotated[
        Path, typer.Argument(help="The link's or a submitter's folder that `bouquet provision` made.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show a link's nodes and runs, and whether it is green, yellow or red.

    Yellow: the link works, but some nodes or clients are missing; it names them and the reasons. Red exits
    with code 1, or with 69 if the link is not running.
    """
    from server_app.deploy.kits.kit import SubmitterKit, read_submitting_kit
    from server_app.deploy.link import status as statuses

    read = read_submitting_kit(kit)
    if isinstance(read, SubmitterKit):
        from server_app.deploy.link import remote

        found = remote.status(read)
    else:
        found = statuses.read_status(read)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        console().print(*statuses.tables(found), sep="\n")
    if found["state"] == statuses.RED:
        raise typer.Exit(exits.NO if found["running"] else exits.UNREACHABLE)


@app.command(
    cls=formerly(link="--address"),
    epilog="Examples: [bold]bouquet provision --address host:9092 --node ward-1 --node ward-2 "
    "--out kits[/bold]  ·  [bold]bouquet provision --out kits --revoke ward-2[/bold]",
)
def provision(
    out: Annotated[str, typer.Option("--out", help="Folder of all kits; keep it private.")],
    address: Annotated[
        str, typer.Option("--address", help="HOST:PORT where nodes reach the SuperLink; none = unchanged.")
    ] = "",
    node: Annotated[list[str] | None, typer.Option("--node", help="Name of a node; may be repeated.")] = None,
    submitter: Annotated[
        list[str] | None,
        typer.Option(
            "--submitter", help="Name of a person who may submit runs to the link; may be repeated."
        ),
    ] = None,
    revoke: Annotated[
        list[str] | None,
        typer.Option("--revoke", help="Node or submitter whose key becomes invalid; may be repeated."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", help="Validity of a new certificate of the SuperLink, in days.")
    ] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew the SuperLink's certificate, for the same key.")
    ] = False,
    he: Annotated[
        bool,
        typer.Option("--he", help="Make the key that nodes share for homomorphic encryption (he = true)."),
    ] = False,
    rotate_he: Annotated[
        bool, typer.Option("--rotate-he", help="Replace that key by a new one; --revoke does so, too.")
    ] = False,
) -> None:
    """Make the start kits of a real deployment: certificates, keys, one folder per machine or submitter.

    Run it again to add nodes or submitters: no key is ever overwritten. A new --address is written into the
    kits; a new host gets a new certificate. A revoked name gets a new key if it is given as --node or
    --submitter.
    """
    from server_app.deploy.kits import provision_report as handout
    from server_app.deploy.kits.provision import provision as bring

    result = bring(
        out,
        address,
        node or (),
        revoke or (),
        days,
        renew,
        he=he,
        rotate_he=rotate_he,
        submitters=submitter or (),
    )
    console().print(handout.table(result))
    for remark in result.remarks:
        typer.echo(f"note: {remark}")
    for step in handout.next_steps(result):
        typer.echo(f"next: {step}")


@app.command(epilog="Example: [bold]bouquet connect kits/link; flwr run . link; flwr ls link[/bold]")
def connect(
    kit: Annotated[
        Path, typer.Argument(help="The link's or a submitter's folder that `bouquet provision` made.")
    ],
    name: Annotated[
        str, typer.Option(help="Name of the connection for Flower; none = link, or the submitter's.")
    ] = "",
) -> None:
    """Let Flower's own commands reach a link: flwr run, ls, log, stop and supernode list.

    It adds a connection to Flower's configuration ($FLWR_HOME, ~/.flwr), and the kit's token to the file in
    which Flower has those of logins.
    """
    from server_app.deploy.flower.connection import connect as write
    from server_app.deploy.kits.kit import OWNER, SubmitterKit, read_submitting_kit

    read = read_submitting_kit(kit)
    name = name or (read.name if isinstance(read, SubmitterKit) else OWNER)
    config = write(read, name)
    typer.echo(f"{config} has the connection {name}. Try it: flwr supernode list {name}")


@app.command(epilog="Examples: [bold]bouquet monitor runs[/bold]  ·  [bold]bouquet monitor kits/link[/bold]")
def monitor(
    folder: Annotated[Path, typer.Argument(help="The kit of a link, or a folder of result folders.")],
    host: Annotated[str, typer.Option(help="Address to listen on. The page has no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8100,
) -> None:
    """Serve a local web page about runs and nodes; it only reads files."""
    with sigterm_is_ctrl_c():
        from server_app.extras.monitor.server import serve

        serve(folder, host, port)


@app.command(
    epilog="Examples: [bold]bouquet node kits/ward-1 --data /srv/images[/bold]  ·  "
    "[bold]bouquet node kits/ward-1 --data /srv/images --max-memory 800M --threads 1 --bandwidth 2mbit[/bold]"
    "  ·  [bold]bouquet node kits/ward-1 kits/ward-2 --data ward-1.csv --data ward-2.csv[/bold]"
)
def node(
    context: typer.Context,
    kits: Annotated[
        list[Path],
        typer.Argument(
            metavar="KIT...", help="The node's folder that `bouquet provision` made; may be repeated."
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="This node's own data, a file or folder; checked before the node starts. For several kits, "
            "one for each, in their order."
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="Without --data: this node's share of the run's clients, I/N with I from 0 to N - "
            "1, e.g. 0/3. For several kits, one for each, in their order."
        ),
    ] = None,
    max_memory: Annotated[
        str,
        typer.Option(
            help="Memory limit of the node, e.g. 800M; a node that needs more ends and says how much."
        ),
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="Thread limit of a task; 0 = no limit.")] = 0,
    bandwidth: Annotated[
        str, typer.Option(help="Bandwidth limit to and from the SuperLink, each way, e.g. 2mbit.")
    ] = "",
    may_train: Annotated[
        str, typer.Option(help="Program to run before each training; exit code 0 allows it.")
    ] = "",
    http: Annotated[
        bool,
        typer.Option(
            "--http",
            help="The kit's link speaks HTTP: a stock SuperLink, or a link's fleet-http.",
        ),
    ] = False,
    width: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Width of this node's model, one of width.levels; 0 = as the run assigns it."
        ),
    ] = 0.0,
    model: Annotated[
        str, typer.Option(help="This node's model, one of models.levels; none = as the run assigns it.")
    ] = "",
    initial_model: Annotated[
        Path | None,
        typer.Option(help="File with the frozen part of the runs' model, which then is not sent here."),
    ] = None,
    column_types: Annotated[
        str,
        typer.Option(
            help="Types of columns of a csv file, as its header could say, 'name:ignore, sex:category(f|m)'. "
            "No run can declare others for these columns."
        ),
    ] = "",
) -> None:
    """Run a node of a federation from its kit, until you stop it.

    With several kits it runs a node from each. Each is a process with its own key, data, policy and limits,
    and ends without the others, but they share memory: PyTorch is loaded once. They run as one user, who can
    read all of these kits, so use it only for nodes of one owner.
    """
    # gRPC reads it when it is imported. At INFO it writes a line every 2 s while TLS fails, after ours
    # that says why.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from server_app.deploy.host.resource_limits import read_rate
    from server_app.deploy.kits.kit import read_node_kit
    from server_app.deploy.kits.parsing import read_size
    from server_app.deploy.node.options import Options, check, read_partition, shared_environment

    owned: list[Path | None] = [*_each("--data", data, len(kits))] or [None] * len(kits)
    shares = _each("--partition", partition, len(kits)) or [""] * len(kits)
    options = [
        Options(
            own,
            read_partition(share),
            read_size(max_memory, "--max-memory") if max_memory else 0,
            threads,
            read_rate(bandwidth) if bandwidth else 0.0,
            str(Path(may_train).resolve()) if may_train else "",
            http,
            width,
            model,
            initial_model,
            column_types,
        )
        for own, share in zip(owned, shares, strict=True)
    ]
    found = [read_node_kit(kit) for kit in kits]
    if len(kits) == 1:
        from server_app.deploy.node.run_node import run_node
        from task.flower.names import untested

        with sigterm_is_ctrl_c():
            if warning := untested():
                typer.echo(warning, err=True)
            try:
                run_node(found[0], options[0])
            except KeyboardInterrupt:
                typer.echo("node stopped", err=True)
        return
    for each in options:
        check(each)
    given = [
        {"name": kit.name, "words": [str(kit.path), *_words(context, i)], "log": "", "ended": ""}
        for i, kit in enumerate(found)
    ]
    command = module_command("server_app.cli.nodes", json.dumps(given))
    os.execve(command[0], command, os.environ | shared_environment(options[0]))


def _each(option: str, values: list[T] | None, count: int) -> list[T]:
    """Return an option's values, one for each of so many kits; none if it was not given.

    Raises:
        ConfigError: It was given, but not once for each.
    """
    if values and len(values) != count:
        raise ConfigError(f"{option}: expected one for each kit, {count} in all; got {len(values)}")
    return values or []


def _words(context: typer.Context, place: int) -> Iterator[str]:
    """Yield the options that hold for the node at this place among several."""
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if isinstance(parameter, click.Option) and value and value != parameter.default:
            yield parameter.opts[0]
            if not parameter.is_flag:
                yield str(value[place] if isinstance(value, list | tuple) else value)

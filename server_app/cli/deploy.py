"""Commands of a deployment: ``provision``, ``link``, ``node``, ``status``, ``connect``, ``monitor``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from server_app.cli import exits
from server_app.cli.common import console, sigterm_is_ctrl_c

app = typer.Typer()


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
    epilog="Examples: [bold]bouquet provision --link host:9092 --node ward-1 --node ward-2 --out kits[/bold]"
    "  ·  [bold]bouquet provision --out kits --revoke ward-2[/bold]"
)
def provision(
    out: Annotated[str, typer.Option("--out", help="Folder of all kits; keep it private.")],
    link: Annotated[
        str, typer.Option("--link", help="HOST:PORT where nodes reach the SuperLink; none = unchanged.")
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

    Run it again to add nodes or submitters: no key is ever overwritten. A new --link is written into the
    kits; a new host gets a new certificate. A revoked name gets a new key if it is given as --node or
    --submitter.
    """
    from server_app.deploy.kits import provision_report as handout
    from server_app.deploy.kits.provision import provision as bring

    result = bring(
        out,
        link,
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
)
def node(
    kit: Annotated[Path, typer.Argument(help="The node's folder that `bouquet provision` made.")],
    data: Annotated[
        Path | None,
        typer.Option(help="This node's own data, a file or folder; checked before the node starts."),
    ] = None,
    partition: Annotated[
        str,
        typer.Option(
            help="Without --data: this node's share of the run's clients, I/N with I from 0 to N - "
            "1, e.g. 0/3."
        ),
    ] = "",
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
) -> None:
    """Run a node of a federation from its kit, until you stop it."""
    from server_app.deploy.host.resource_limits import read_rate
    from server_app.deploy.kits.kit import read_node_kit
    from server_app.deploy.kits.parsing import read_size
    from server_app.deploy.node.options import Options, read_partition
    from server_app.deploy.node.run_node import run_node

    options = Options(
        data,
        read_partition(partition),
        read_size(max_memory, "--max-memory") if max_memory else 0,
        threads,
        read_rate(bandwidth) if bandwidth else 0.0,
        str(Path(may_train).resolve()) if may_train else "",
        http,
        width,
        model,
    )
    with sigterm_is_ctrl_c():
        try:
            run_node(read_node_kit(kit), options)
        except KeyboardInterrupt:
            typer.echo("node stopped", err=True)

"""The report of a ``bouquet provision``: what it did, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from server_app.deploy.kits.kit import CONFIG
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.kits.templates import place

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Line:
    """What happened to one folder."""

    name: str  # the folder's name, below the provisioned one
    done: str  # "new", "kept", "revoked" ...
    key: str  # the fingerprint of a node's key, or the last day of a certificate
    changed: tuple[str, ...] = ()  # files and folders in it to copy to its machine again; "." = all of it
    kind: str = "node"  # of its kit: "link", "node" or "submitter"


@dataclass(frozen=True)
class Provisioned:
    """What a call of `provision` did."""

    out: Path
    link: str  # the SuperLink's address
    lines: tuple[Line, ...]  # one line per folder
    remarks: tuple[str, ...]  # for the person who provisions


def table(result: Provisioned) -> Table:
    """Return a table of what was done to each folder, and where it belongs."""
    from rich.table import Table

    made = Table(title=str(result.out))
    for header in ("folder", "done", "key or certificate", "belongs on"):
        made.add_column(header, overflow="fold")
    for line in result.lines:
        made.add_row(line.name, line.done, line.key, _place(result, line))
    return made


def next_steps(result: Provisioned) -> Iterator[str]:
    """Yield the commands that copy each changed kit to its machine and start it there, and the first run.

    Of a link on this machine the nodes are here, too, and nothing is copied.
    """
    yield from _starts(result)
    for line in result.lines:
        if line.kind == "link" and "." in line.changed:
            kit = shlex.quote(str(result.out / line.name)) if _is_local(result) else place(line.name)
            there = "" if _is_local(result) else "there, "
            command = f"bouquet run --link {kit} -c 'KEY=VALUE ...'"
            yield f"{line.name}: when the nodes are online, {there}{command}"


def _starts(result: Provisioned) -> Iterator[str]:
    local = _is_local(result)
    for line in result.lines:
        here, there, machine = result.out / line.name, place(line.name), _machine(result, line)
        kind = line.kind
        if kind == "submitter" and line.changed:
            yield f"{line.name}: give {shlex.quote(str(here))} to {line.name}, for bouquet run --link"
            continue
        if local:
            command = f"bouquet {kind} {shlex.quote(str(here))}{' --data PATH' if kind == 'node' else ''}"
            if "." in line.changed:
                yield f"{line.name}: {command}"
            elif line.changed:
                yield f"{line.name}: end it if it runs, and start it again: {command}"
            continue
        if "." in line.changed:
            yield f"{line.name}: rsync -a {shlex.quote(f'{here}/')} {machine}:{there}/"
            yield f"{line.name}: there, bouquet {kind} {there}{' --data PATH' if kind == 'node' else ''}"
            continue
        # The site may have edited its kit.toml, so it is not copied.
        if files := [shlex.quote(str(here / file)) for file in line.changed if file != CONFIG]:
            yield f"{line.name}: rsync -a {' '.join(files)} {machine}:{there}/"
        if CONFIG in line.changed:
            keys = "address and the port of fleet" if kind == "link" else "link"
            yield f"{line.name}: there, set {keys} in {there}/{CONFIG} to {result.link}"
        if {CONFIG, "server.crt"} & {*line.changed}:
            yield f"{line.name}: there, systemctl restart bouquet-{kind}"


def _is_local(result: Provisioned) -> bool:
    """Return whether only processes of this machine can reach the link."""
    host, _ = read_address(result.link, "link")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _machine(result: Provisioned, line: Line) -> str:
    if line.name != "link":
        return line.name
    host, _ = read_address(result.link, "link")
    return f"[{host}]" if ":" in host else host


def _place(result: Provisioned, line: Line) -> str:
    if line.name in ("ca", "he"):
        return "no machine: keep it safe"
    if line.done == "revoked":
        return "no machine: delete it there"
    if _is_local(result):
        return "this machine, where it is"
    if line.kind == "submitter":
        return f"a machine of {line.name}"
    return f"{_machine(result, line)}:{place(line.name)}"

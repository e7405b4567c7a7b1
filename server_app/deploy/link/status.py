"""``state/status.json`` of a link: the link writes it; ``bouquet status``, the monitor and others read it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from server_app.deploy.kits.kit import LinkKit
from server_app.results.folder import RunFolder
from server_app.results.lines import Row, last_rows
from task.errors import BouquetError
from task.storage.files import write_json

if TYPE_CHECKING:  # a health check reads a status every few seconds, and needs none of these
    from server_app.deploy.flower.control import NodeState
    from server_app.deploy.host.processes import Child
    from server_app.deploy.kits.certificates import Finding
    from server_app.deploy.link.jobs import Job, Jobs

OLD_S = 15.0  # a status that is older was written by a link that is no longer there
RED_S = 15.0  # without a good answer of the SuperLink
SHOWN_RUNS = 20
GREEN, YELLOW, RED = "green", "yellow", "red"
SHOWN_CLIENTS = 5  # of a round that went on without some


@dataclass
class Seen:
    """What the link knows of its SuperLink.

    Attributes:
        answered: When it last answered well, `time.monotonic()`; 0 = never.
        trouble: What it said, or did not, since then.
        nodes: Those that are registered.
        warnings: What somebody should look at.
        disk: What is wrong with the disk, "" if nothing is.
        certificates: Those that have expired or soon do.
    """

    answered: float = 0.0
    trouble: str = ""
    nodes: list[NodeState] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    disk: str = ""
    certificates: tuple[Finding, ...] = ()


def write_status(kit: LinkKit, seen: Seen, children: Sequence[Child], jobs: Jobs) -> None:
    """Replace the status file."""
    all_jobs = jobs.all()
    processes = [_process(child) for child in children]
    faults = [f"{row['name']} is not running" for row in processes if not row["running"]]
    if time.monotonic() - seen.answered > RED_S or not seen.answered:
        faults.append(f"the SuperLink does not answer well: {seen.trouble or 'it has just been started'}")
    if seen.disk:
        faults.append(seen.disk)
    faults += [finding.text for finding in seen.certificates if finding.fatal]
    soon = [finding.text for finding in seen.certificates if not finding.fatal]
    if seen.answered:
        faults += _too_few(len(seen.nodes), all_jobs)
    told, left_out = _told(kit, all_jobs), _left_out(kit, all_jobs)
    nodes = [
        _node(node, told.get(str(node.id), {}), left_out.get(str(node.id), ""))
        for node in sorted(seen.nodes, key=_by_name)
    ]
    warnings = [*soon, *node_lines(nodes), *_run_lines(kit, all_jobs), *seen.warnings]
    write_json(
        path(kit),
        {
            "written": time.time(),
            "pid": os.getpid(),
            "address": kit.address,
            "state": level(faults, warnings),
            "warnings": faults + warnings,
            "processes": processes,
            "nodes": nodes,
            "runs": [_run(kit, job) for job in reversed(all_jobs[-SHOWN_RUNS:])],
        },
    )


def level(faults: Sequence[str], warnings: Sequence[str]) -> str:
    """Return the state of a link, for all that show it.

    Args:
        faults: What keeps the link from its work: red.
        warnings: With what it works all the same, such as a node that is away: yellow.
    """
    return RED if faults else YELLOW if warnings else GREEN


def node_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each node of a status that the federation does without."""
    return [f"node {node['name']} {node['problem']}" for node in nodes if node.get("problem")]


def round_lines(run: str, row: Mapping[str, Any], least: object) -> list[str]:
    """Return what went wrong in a round, with the clients' names.

    Args:
        run: Its name.
        row: The round's line of rounds.jsonl.
        least: The run's ``min-replies``.
    """
    head, dropped = f"run {run}, round {row['round']}", row.get("quarantined") or []
    lines = [f"run {run} went on without a reply; {q['reason']}" for q in dropped[:SHOWN_CLIENTS]]
    if len(dropped) > SHOWN_CLIENTS:
        lines.append(f"{head} went on without {len(dropped) - SHOWN_CLIENTS} more clients")
    if row.get("skipped"):
        lines.append(
            f"{head} kept the model: expected {least} or more usable replies (run-config key "
            f'"min-replies"); got {row.get("answered")} of {row.get("asked")}'
        )
    return lines


def _too_few(registered: int, jobs: Sequence[Job]) -> list[str]:
    """Return what is wrong if fewer nodes may join than a run that has not ended needs, or than any run."""
    needs = {f"run {job.name} (min-nodes)": job.keys.get("min-nodes", 1) for job in jobs if not job.ended}
    needs |= {} if needs else {"a run": 1}
    return [
        f"expected at least {least} nodes that may join, for {what}; got {registered} whose keys are good. "
        "Enrol nodes: bouquet provision --out DIR --node NAME, then copy link/nodes"
        for what, least in needs.items()
        if isinstance(least, int) and registered < least
    ]


def path(kit: LinkKit) -> Path:
    """Return the status file of a link."""
    return kit.state / "status.json"


def read_status(kit: LinkKit) -> Row:
    """Return the status of a link; one that has none, or an old one, is red and says why."""
    row: Row = {"state": RED, "warnings": [], "processes": [], "nodes": [], "runs": []}
    try:
        row |= json.loads(path(kit).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        why = "it was never started" if isinstance(err, FileNotFoundError) else f"{path(kit)}: {err}"
        return row | {"warnings": [f"the link is not running: {why}. Start it: bouquet link {kit.path}"]}
    age_s = time.time() - row.get("written", 0)
    if age_s > OLD_S:
        text = f"the link is not running, or stands still: its last word is {age_s:.0f} s old"
        row |= {"state": RED, "warnings": [text, *row["warnings"]]}
        row["nodes"] = [node | {"online": False} for node in row["nodes"]]
    return row


def tables(status: Mapping[str, Any]) -> list[Table | Text]:
    """Return what a terminal shows of a status."""
    now = time.time()
    nodes = Table("node", "online", "last seen", "clients", "examples", "app", title="nodes")
    for node in status["nodes"]:
        online = Text("yes", "green") if node["online"] else Text("no", "red")
        seen = _ago(now - node["last_seen"]) if node["last_seen"] else "never"
        known = [_known(node[key]) for key in ("clients", "examples", "app_version")]
        nodes.add_row(node["name"], online, seen, *known)
    runs = Table("run", "state", "round", "attempts", "changed", "reason", title="runs")
    for run in status["runs"]:
        rounds = f"{run['round']}/{run['rounds']}" if run["rounds"] else str(run["round"])
        changed = _ago(now - run["updated"])
        runs.add_row(run["name"], run["state"], rounds, str(run["attempts"]), changed, run["reason"])
    colour = status["state"] if status["state"] in (GREEN, YELLOW) else RED
    head = Text.assemble((status["state"], colour), f"  {status.get('address', '')}")
    return [head, *(Text(warning, "yellow") for warning in status["warnings"]), nodes, runs]


def _by_name(node: NodeState) -> tuple[str, int]:
    return node.name, node.id


def _process(child: Child) -> Row:
    running = child.process is not None and child.process.poll() is None
    return {
        "name": child.name,
        "running": running,
        "pid": child.process.pid if child.process is not None and running else None,
        "restarts": max(child.starts - 1, 0),
        "uptime_s": round(child.uptime_s(), 1),
    }


def _node(node: NodeState, told: Row, left_out: str) -> Row:
    away = "is not online" + (
        f": its last sign of life was at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(node.last_seen))}"
        if node.last_seen
        else ", and never was"
    )
    return {
        "name": node.name,
        "id": str(node.id),
        "online": node.online,
        "last_seen": node.last_seen if node.last_seen is None else min(node.last_seen, time.time()),
        "clients": told.get("clients"),
        "examples": told.get("examples"),
        "app_version": told.get("version"),
        "problem": left_out if node.online else away,
    }


def _told(kit: LinkKit, jobs: Sequence[Job]) -> dict[str, Row]:
    """Return what the nodes last registered, by id."""
    rows: dict[str, Row] = {}
    for job in sorted(jobs, key=lambda j: j.updated)[-SHOWN_RUNS:]:
        try:
            rows |= {str(row.get("node")): row for row in RunFolder(kit.runs / job.name).nodes()}
        except (BouquetError, AttributeError, TypeError):  # a file that somebody changed
            continue
    return rows


def _left_out(kit: LinkKit, jobs: Sequence[Job]) -> dict[str, str]:
    """Return by id the nodes that the run that began last goes, or went, on without, and why."""
    begun = max((job for job in jobs if job.attempts), key=lambda j: j.created, default=None)
    if begun is None:
        return {}
    try:
        rows = RunFolder(kit.runs / begun.name).left_out()
        return {str(row["node"]): f"{row['reason']}: run {begun.name} goes on without it" for row in rows}
    except (BouquetError, KeyError, TypeError, AttributeError):  # a file that somebody changed
        return {}


def _run_lines(kit: LinkKit, jobs: Sequence[Job]) -> list[str]:
    """Return what went wrong in the last rounds of the runs that go on."""
    lines = []
    for job in jobs:
        if job.attempts and not job.ended:
            row = last_row(kit.runs / job.name / "rounds.jsonl")
            with suppress(KeyError, TypeError, AttributeError):  # a file that somebody changed
                lines += round_lines(job.name, row, job.keys.get("min-replies", 1)) if row else []
    return lines


def _run(kit: LinkKit, job: Job) -> Row:
    return {
        "name": job.name,
        "state": job.state,
        "round": last_round(kit.runs / job.name / "rounds.jsonl"),
        "rounds": job.keys.get("num-server-rounds"),
        "attempts": job.attempts,
        "reason": job.reason,
        "flwr_runs": [str(run) for run in job.runs],
        "created": job.created,
        "updated": job.updated,
    }


def last_round(rounds: Path) -> int:
    """Return the number of the last whole line of a run's rounds.jsonl; 0 if there is none."""
    try:
        return int(last_row(rounds)["round"])
    except (KeyError, TypeError, ValueError):
        return 0


def last_row(rounds: Path) -> Row:
    """Return the last whole line of a run's rounds.jsonl that can be read; {} if there is none."""
    return next(last_rows(rounds), {})


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _known(value: object) -> str:
    return "?" if value is None or value == "" else str(value)

"""A link's ``state/status.json``: the link writes it, ``bouquet status`` and the monitor read it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from server_app.deploy.host.app_integrity import APPS, LEFT_OUT, App, read_app
from server_app.deploy.kits.kit import OWNER, LinkKit
from server_app.deploy.link.jobs import Job, Jobs, waiting
from server_app.results.folder import RunFolder
from server_app.results.lines import Row, last_rows
from task import timing
from task.errors import BouquetError
from task.flower.names import untested
from task.population import some
from task.storage.files import write_json

if TYPE_CHECKING:  # a health check reads a status every few seconds, and needs none of these
    from server_app.deploy.calls.control import NodeState
    from server_app.deploy.host.processes import Child
    from server_app.deploy.kits.certificates import Finding

SHOWN_RUNS = 20
GREEN, YELLOW, RED = "green", "yellow", "red"
Column = Mapping[str, Any]  # how rich shows one
NAME: Column = {"overflow": "fold"}  # continues in a second line
WORD: Column = {"no_wrap": True}
NUMBER: Column = {"justify": "right", "no_wrap": True}
SHOWN_CLIENTS = 5  # that a round continued without


@dataclass
class Seen:
    """What the link knows of its SuperLink."""

    answered: float = 0.0  # time of its last valid answer, `time.monotonic()`; 0 = never
    trouble: str = ""  # its last error since then
    nodes: list[NodeState] = field(default_factory=list)  # the registered nodes
    warnings: list[str] = field(default_factory=list)  # for the operator
    flower: list[str] = field(default_factory=list)  # what is wrong with its version of Flower
    disk: str = ""  # problem of the disk, "" if there is none
    certificates: tuple[Finding, ...] = ()  # those that have expired or soon will
    app: App | None = None  # that the link's runs are of
    apps: dict[str, App] = field(default_factory=dict)  # that the nodes run, by id, as they last said


def write_status(kit: LinkKit, seen: Seen, children: Sequence[Child], jobs: Jobs) -> None:
    """Replace the status file."""
    all_jobs = jobs.all()
    processes = [_process(child) for child in children]
    faults = [f"{row['name']} is not running" for row in processes if not row["running"]]
    if time.monotonic() - seen.answered > timing.SUPERLINK_RED_S or not seen.answered:
        faults.append(f"the SuperLink does not answer correctly: {seen.trouble or 'it has not answered yet'}")
    if seen.disk:
        faults.append(seen.disk)
    faults += [finding.text for finding in seen.certificates if finding.fatal]
    soon = [finding.text for finding in seen.certificates if not finding.fatal]
    if seen.answered:
        faults += _too_few({node.name for node in seen.nodes}, all_jobs)
    registered, left_out = _registrations(kit, all_jobs), _left_out(kit, all_jobs, seen.nodes)
    nodes = [
        _node(
            node,
            registered.get(str(node.id), {}),
            left_out.get(str(node.id), ("", "")),
            seen.apps.get(str(node.id)),
            seen.app,
        )
        for node in sorted(seen.nodes, key=lambda node: (node.name, node.id))
    ]
    warnings = [*soon, *seen.flower, *node_lines(nodes), *_run_lines(kit, all_jobs), *seen.warnings]
    write_json(
        kit.status,
        {
            "written": time.time(),
            "pid": os.getpid(),
            "address": kit.address,
            **_app_row(seen.app, None),
            "state": level(faults, warnings),
            "warnings": faults + warnings,
            "flower": seen.flower,
            "processes": processes,
            "nodes": nodes,
            "runs": _runs(kit, all_jobs),
        },
    )


def write_ended(kit: LinkKit) -> None:
    """Note in the status file that the link has ended: nobody needs to wait until its status is old."""
    with suppress(OSError, ValueError):  # none was written
        row = json.loads(kit.status.read_text(encoding="utf-8"))
        write_json(kit.status, row | {"ended": time.time()})


def level(faults: Sequence[str], warnings: Sequence[str]) -> str:
    """Return the state of a link.

    A fault stops the link from working: red. A warning, such as of a node that is offline, does not: yellow.
    """
    return RED if faults else YELLOW if warnings else GREEN


def node_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each node that the federation continues without."""
    return [f"node {node['name']} {node['problem']}" for node in nodes if node.get("problem")]


def round_lines(run: str, row: Mapping[str, Any], least: object) -> list[str]:
    """Return what went wrong in a round, with the clients' names.

    `row` is the round's line of rounds.jsonl, `least` the run's ``min-replies``.
    """
    head, dropped = f"run {run}, round {row['round']}", row.get("quarantined") or []
    lines = [f"run {run} continued without a reply; {q['reason']}" for q in dropped[:SHOWN_CLIENTS]]
    if len(dropped) > SHOWN_CLIENTS:
        lines.append(f"{head} continued without {len(dropped) - SHOWN_CLIENTS} more clients")
    if row.get("skipped"):
        lines.append(
            f"{head} kept the model: expected {least} or more usable replies (run-config key "
            f'"min-replies"); got {row.get("answered")} of {row.get("asked")}'
        )
    return lines


def _too_few(registered: Set[str], jobs: Sequence[Job]) -> list[str]:
    """Return a fault if fewer nodes may join than a run needs: each that has not ended, else any."""
    needs = [
        (f"run {job.name} (min-nodes)", job.keys.get("min-nodes", 1), sum(map(job.runs_on, registered)))
        for job in jobs
        if not job.ended
    ]
    return [
        f"expected at least {least} nodes that may join, for {what}; got {there} with valid keys. "
        "Enrol nodes: bouquet provision --out DIR --node NAME, then copy link/nodes"
        for what, least, there in needs or [("a run", 1, len(registered))]
        if isinstance(least, int) and there < least
    ]


def read_status(kit: LinkKit) -> Row:
    """Return the status of a link; it is red and says why if there is none or it is old."""
    row: Row = {"state": RED, "warnings": [], "processes": [], "nodes": [], "runs": [], "running": False}
    try:
        row |= json.loads(kit.status.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        why = "it was never started" if isinstance(err, FileNotFoundError) else f"{kit.status}: {err}"
        text = f"the link is not running: {why}. Start it: bouquet link {kit.path}"
        return row | {"warnings": [text], "runs": _runs(kit, Jobs(kit.jobs, kit.runs).all())}
    age_s, ended, text = time.time() - row.get("written", 0), row.pop("ended", None), ""
    if ended is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended))
        text = f"the link is not running: it ended at {at}. Start it: bouquet link {kit.path}"
    elif age_s > timing.STATUS_OLD_S:
        text = f"the link is not running, or hangs: its status is {age_s:.0f} s old"
    if text:
        row |= {"state": RED, "warnings": [text, *row["warnings"]]}
        row["nodes"] = [node | {"online": False} for node in row["nodes"]]
        row["runs"] = _runs(kit, Jobs(kit.jobs, kit.runs).all())  # some may have been submitted since
    return row | {"running": not text}


def tables(status: Mapping[str, Any]) -> list[Table | Text]:
    """Return the tables of a status for a terminal of 80 columns or more; long names are wrapped."""
    now = time.time()
    app, flower = _app_words(status)
    columns = {
        "node": NAME,
        "online": WORD,
        "last seen": WORD,
        "clients": NUMBER,
        "examples": NUMBER,
        "app": NAME,
    }
    nodes = _table("nodes", columns)
    for node in status["nodes"]:
        online = Text("yes", "green") if node["online"] else Text("no", "red")
        seen = _ago(now - node["last_seen"]) if node["last_seen"] else "never"
        known = [_known(node[key]) for key in ("clients", "examples")]
        theirs, version = _app_words(node)
        differs = [theirs] * (theirs != app) + [f"Flower {version}"] * (version != flower)
        nodes.add_row(node["name"], online, seen, *known, ", ".join(differs) or "as the link")
    columns = {
        "run": NAME,
        "state": WORD,
        "nodes": NAME,
        "round": NUMBER,
        "attempts": NUMBER,
        "changed": WORD,
    }
    runs = _table("runs", columns)
    reasons = []
    for run in status["runs"]:
        rounds = f"{run['round']}/{run['rounds']}" if run["rounds"] else str(run["round"])
        changed, who = _ago(now - run["updated"]), run.get("submitter", OWNER)
        runs.add_row(
            run["name"] + (f" (by {who})" if who != OWNER else ""),
            run["state"],
            some(run.get("nodes", ())) or "all",
            rounds,
            str(run["attempts"]),
            changed,
        )
        if why := run.get("waits") or run["reason"]:
            reasons.append(Text(f"run {run['name']}, {run['state']}: {why}"))
    colour = status["state"] if status["state"] in (GREEN, YELLOW) else RED
    runs_of = f"  app {app}, Flower {flower}" if app != "?" else ""
    head = Text.assemble((status["state"], colour), f"  {status.get('address', '')}{runs_of}")
    return [head, *(Text(warning, "yellow") for warning in status["warnings"]), nodes, runs, *reasons]


def _table(title: str, columns: Mapping[str, Column]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    for name, how in columns.items():
        table.add_column(name, **how)
    return table


def _process(child: Child) -> Row:
    running = child.running
    return {
        "name": child.name,
        "running": running is not None,
        "pid": running and running.pid,
        "restarts": max(child.starts - 1, 0),
        "uptime_s": round(child.uptime_s(), 1),
    }


def node_apps(kit: LinkKit) -> dict[str, App]:
    """Return the apps that nodes run, by id, as they last reported to the SuperLink."""
    try:
        said = json.loads((kit.state / APPS).read_bytes())
        return {node: app for node, header in said.items() if (app := read_app(header))}
    except (OSError, ValueError, AttributeError):  # no reports yet, or a damaged file
        return {}


def flower_lines(kit: LinkKit) -> list[str]:
    """Return what a link does without on its version of Flower, and whether that is too new."""
    try:
        lines = [str(line) for line in json.loads((kit.state / LEFT_OUT).read_bytes())]
    except (OSError, ValueError, TypeError):  # its SuperLink has not started yet, or a damaged file
        lines = []
    return [*filter(None, [untested()]), *lines]


def _app_row(app: App | None, version: object) -> Row:
    """Return how a status describes an app; of an unnamed one, the version at most."""
    code, flower = (app.code, app.flower) if app else (None, None)
    return {"app_version": app.version if app else version, "app_code": code, "flower_version": flower}


def _app_words(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the app and the version of Flower in such a row as words."""
    code = row.get("app_code")
    app = _known(row.get("app_version")) + (f" ({code})" if code else "")
    return app, _known(row.get("flower_version"))


def _node(node: NodeState, known: Row, left_out: tuple[str, str], app: App | None, ours: App | None) -> Row:
    away = "is not online" + (
        f": it was last seen at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(node.last_seen))}"
        if node.last_seen
        else ", and never was"
    )
    other = ""
    if app and ours and app.code != ours.code:
        other = (
            f"runs app {app}, the link {ours}: install the same version on both; until then it "
            "does not take part"
        )
    return {
        "name": node.name,
        "id": str(node.id),
        "online": node.online,
        "last_seen": node.last_seen if node.last_seen is None else min(node.last_seen, time.time()),
        "clients": known.get("clients"),
        "examples": known.get("examples"),
        **_app_row(app, known.get("version")),
        "problem": other or (left_out[1] if node.online else away),
        "left_out_by": left_out[0] if node.online and not other else "",
    }


def _registrations(kit: LinkKit, jobs: Sequence[Job]) -> dict[str, Row]:
    """Return the nodes' last registrations by id."""
    rows: dict[str, Row] = {}
    for job in sorted(jobs, key=lambda j: j.updated)[-SHOWN_RUNS:]:
        try:
            rows |= {str(row.get("node")): row for row in RunFolder(kit.runs / job.name).nodes()}
        except (BouquetError, AttributeError, TypeError):  # a damaged file
            continue
    return rows


def _left_out(kit: LinkKit, jobs: Sequence[Job], nodes: Sequence[NodeState]) -> dict[str, tuple[str, str]]:
    """Return, by id, the nodes that the newest run on them continued without: that run, and why."""
    found, names = dict[str, tuple[str, str]](), {str(node.id): node.name for node in nodes}
    for job in reversed(jobs):
        mine = [node for node, name in names.items() if job.attempts and job.runs_on(name)]
        if not mine:
            continue
        for node in mine:
            del names[node]
        rows = left_out_of(kit, job)
        found |= {node: (job.name, rows[node]) for node in mine if node in rows}
    return found


def left_out_of(kit: LinkKit, job: Job) -> dict[str, str]:
    """Return, by id, the nodes that a run continued without, and why."""
    with suppress(BouquetError, KeyError, TypeError, AttributeError):  # a damaged file
        rows = RunFolder(kit.runs / job.name).left_out()
        end = f": run {job.name} continues without it"
        return {str(row["node"]): row["reason"].removesuffix(".") + end for row in rows}
    return {}


def _run_lines(kit: LinkKit, jobs: Sequence[Job]) -> list[str]:
    """Return what went wrong in the last rounds of the running jobs."""
    lines = []
    for job in jobs:
        if job.attempts and not job.ended:
            with suppress(KeyError, TypeError, AttributeError):  # a damaged file
                for row in islice(last_rows(kit.runs / job.name / "rounds.jsonl"), 1):
                    lines += round_lines(job.name, row, job.keys.get("min-replies", 1))
    return lines


def _runs(kit: LinkKit, jobs: Sequence[Job]) -> list[Row]:
    """Return what a status shows of the jobs: those that have not ended and the last others, newest first."""
    waits = waiting(jobs, kit.max_runs)
    shown = [job for i, job in enumerate(jobs, start=SHOWN_RUNS) if not job.ended or i >= len(jobs)]
    return [_run(kit, job, waits.get(job.id, "")) for job in reversed(shown)]


def _run(kit: LinkKit, job: Job, waits: str) -> Row:
    return {
        "name": job.name,
        "submitter": job.submitter,
        "state": job.state,
        "nodes": sorted(job.nodes),
        "waits": waits,
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
        return int(next(last_rows(rounds), {})["round"])
    except (KeyError, TypeError, ValueError):
        return 0


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _known(value: object) -> str:
    return "?" if value is None or value == "" else str(value)

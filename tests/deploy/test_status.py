"""The status file of a link, and what is shown of it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from server_app.deploy.calls.control import NodeState
from server_app.deploy.host.app_integrity import APPS, LEFT_OUT, App
from server_app.deploy.host.processes import Child
from server_app.deploy.kits.certificates import Finding
from server_app.deploy.kits.kit import LinkKit, read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import run_link
from server_app.deploy.link import status as module
from server_app.deploy.link.jobs import QUEUED, RUNNING, Jobs
from server_app.deploy.link.run_link import StatusWriter
from server_app.deploy.link.status import (
    GREEN,
    RED,
    SHOWN_RUNS,
    YELLOW,
    Seen,
    flower_lines,
    node_apps,
    read_status,
    tables,
    write_ended,
    write_status,
)
from server_app.results.folder import RunFolder
from server_app.run.terminal import Terminal
from task import timing
from task.storage.files import write_json


@pytest.fixture
def kit(tmp_path: Path) -> LinkKit:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward"])
    return read_link_kit(tmp_path / "kits" / "link")


@pytest.fixture
def child() -> Child:
    """A process that runs, and is this one."""
    made = Child("superlink", ["true"], starts=3)
    made.process = _Running()  # type: ignore[assignment]
    made.started = time.monotonic()
    return made


class _Running:
    pid = os.getpid()

    def poll(self) -> None:
        return None


def seen(**changes: object) -> Seen:
    node = NodeState(5, "ward", b"", True, True, time.time() - 3)
    return dataclasses.replace(Seen(answered=time.monotonic(), nodes=[node]), **changes)  # type: ignore[arg-type]


def shown(kit: LinkKit, width: int = 200) -> str:
    console = Terminal(width=width, record=True, file=io.StringIO())
    console.print(*tables(read_status(kit)))
    return console.export_text()


def test_a_healthy_link_is_green_and_names_its_nodes_runs_and_processes(kit: LinkKit, child: Child) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    job = jobs.submit("demo", {"num-server-rounds": 20})
    jobs.update(job, state=RUNNING, runs=(2**63,), attempts=2, reason="a node was lost")
    folder = RunFolder(kit.runs / "demo")
    folder.path.mkdir(parents=True)
    folder.write_nodes([{"node": "5", "clients": 2, "examples": 345, "version": "0.1.0"}])
    for number in (0, 1, 2):
        folder.append_round({"round": number})
    write_status(kit, seen(), [child], jobs)
    found = read_status(kit)
    assert (found["state"], found["warnings"]) == (GREEN, [])
    (node,), (process,), (run,) = found["nodes"], found["processes"], found["runs"]
    assert (node["name"], node["online"]) == ("ward", True)
    assert (node["clients"], node["examples"], node["app_version"]) == (2, 345, "0.1.0")
    assert 2 < time.time() - node["last_seen"] < 60
    assert (process["name"], process["running"], process["pid"], process["restarts"]) == (
        "superlink",
        True,
        os.getpid(),
        2,
    )
    assert (run["name"], run["state"], run["round"], run["rounds"]) == ("demo", RUNNING, 2, 20)
    assert run["flwr_runs"] == [str(2**63)]  # as text: no JSON number holds it
    text = shown(kit)
    for word in ("green", "ward", "345", "2/20", "a node was lost"):
        assert word in text


def test_it_fits_80_columns_and_no_name_is_cut(kit: LinkKit, child: Child) -> None:
    jobs, names = Jobs(kit.jobs, kit.runs), ["hospital-north-ward-1", "hospital-north-ward-2"]
    run, why = "fedavg-mnist-2nn-two-shards", 'run-config key "model": expected 2 outputs; got 10'
    job = jobs.submit(run, {"num-server-rounds": 1000, "node-names": ",".join(names)})
    jobs.update(job, state=RUNNING, attempts=12, reason=why)
    nodes = [NodeState(i, name, b"", True, True, time.time() - 3) for i, name in enumerate(names)]
    ours, old = App("0.1.0", "e3e8867b", "1.42.0"), App("0.1.0", "e3e8867b", "1.41.0")
    write_status(kit, seen(nodes=nodes, app=ours, apps={"0": ours, "1": old}), [child], jobs)
    text = shown(kit, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for whole in (*names, "as the link", "Flower 1.41.0", f"run {run}, running: run-config key"):
        assert whole in text


def test_what_is_wrong_makes_it_red_and_is_named(kit: LinkKit, child: Child) -> None:
    def state(known: Seen) -> tuple[str, str]:
        write_status(kit, known, [child], Jobs(kit.jobs, kit.runs))
        found = read_status(kit)
        return found["state"], "; ".join(found["warnings"])

    assert state(seen())[0] == GREEN
    assert state(seen(warnings=["look at this"])) == (YELLOW, "look at this")
    assert state(seen(disk="the disk is full")) == (RED, "the disk is full")
    assert state(seen(certificates=(Finding(False, "ends soon"),))) == (YELLOW, "ends soon")
    both = (Finding(False, "ends soon"), Finding(True, "has expired"))
    assert state(seen(certificates=both)) == (RED, "has expired; ends soon")
    silent = seen(answered=time.monotonic() - timing.SUPERLINK_RED_S - 1, trouble="database is locked")
    assert state(silent)[0] == RED
    assert "database is locked" in state(silent)[1]
    child.process = None
    assert state(seen()) == (RED, "superlink is not running")


def running(kit: LinkKit, name: str = "demo") -> tuple[Jobs, RunFolder]:
    jobs = Jobs(kit.jobs, kit.runs)
    jobs.update(jobs.submit(name, {"min-replies": 2}), state=RUNNING, attempts=1)
    folder = RunFolder(kit.runs / name)
    folder.path.mkdir(parents=True)
    return jobs, folder


def test_a_node_that_is_away_makes_it_yellow_and_is_named(kit: LinkKit, child: Child) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    at = time.mktime((2026, 3, 1, 14, 2, 11, 0, 0, -1))
    for last_seen, words in (
        (at, ": it was last seen at 2026-03-01 14:02:11"),
        (None, ", and never was"),
    ):
        write_status(kit, seen(nodes=[NodeState(5, "ward", b"", True, False, last_seen)]), [child], jobs)
        found = read_status(kit)
        assert found["state"] == YELLOW
        assert found["warnings"] == [f"node ward is not online{words}"]
    write_status(kit, seen(), [child], jobs)
    assert read_status(kit)["state"] == GREEN


def test_a_node_of_another_app_is_named_with_both_apps_and_what_to_do(kit: LinkKit, child: Child) -> None:
    kit.state.mkdir(exist_ok=True)
    jobs, ours = Jobs(kit.jobs, kit.runs), App("0.10.0", "77bc77bc", "1.42.0")
    for header, warnings in (
        ("0.9.0 3f2a3f2a 1.39.0", [
            "node ward runs app 0.9.0 (3f2a3f2a), the link 0.10.0 (77bc77bc): install the same "
            "version on both; "
            "until then it does not take part"
        ]),
        ("0.10.0 77bc77bc 1.39.0", []),
    ):  # fmt: skip
        write_json(kit.state / APPS, {"5": header, "6": "too few words", "7": ""})
        write_status(kit, seen(app=ours, apps=node_apps(kit)), [child], jobs)
        found = read_status(kit)
        assert (found["state"], found["warnings"]) == (YELLOW if warnings else GREEN, warnings)
        (node,) = found["nodes"]
        assert [node[k] for k in ("app_version", "app_code", "flower_version")] == header.split()
        assert [found[k] for k in ("app_version", "app_code", "flower_version")] == list(ours)
        text = shown(kit)
        version, code, flower = header.split()
        assert f"{version} ({code})" in text
        assert flower in text
        assert "app 0.10.0 (77bc77bc), Flower 1.42.0" in text
    write_json(kit.state / APPS, [1])
    assert node_apps(kit) == {}


def test_a_node_that_the_last_run_left_out_makes_it_yellow_until_another_run_takes_it(
    kit: LinkKit, child: Child
) -> None:
    jobs, folder = running(kit)
    folder.write_nodes([], [{"node": "5", "name": "ward", "reason": "cannot take part: policy: [b]no[/b]"}])
    write_status(kit, seen(), [child], jobs)
    found = read_status(kit)
    assert found["state"] == YELLOW
    assert found["warnings"] == [
        "node ward cannot take part: policy: [b]no[/b]: run demo continues without it"
    ]
    _, later = running(kit, "later")
    later.write_nodes([{"node": "5"}])
    write_status(kit, seen(), [child], jobs)
    assert read_status(kit)["state"] == GREEN


def test_the_status_says_on_which_nodes_runs_are_and_what_they_wait_for(kit: LinkKit, child: Child) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    jobs.update(jobs.submit("big", {"node-names": "ward,east"}), state=RUNNING, attempts=1)
    for i in range(SHOWN_RUNS):
        jobs.update(jobs.submit(f"old-{i}", {"node-names": "west"}), state="finished", attempts=1)
    jobs.submit("small", {"node-names": "ward", "min-nodes": 2})
    RunFolder(kit.runs / "old-0").path.mkdir(parents=True)
    RunFolder(kit.runs / "old-0").write_nodes([], [{"node": "5", "name": "ward", "reason": "was not of it"}])
    write_status(kit, seen(), [child], jobs)
    runs = {run["name"]: run for run in read_status(kit)["runs"]}
    assert runs["big"]["nodes"] == ["east", "ward"]  # though so many came later
    assert runs["small"]["waits"] == "waits for ward, where job big runs"
    (fault,) = read_status(kit)["warnings"]
    assert "expected at least 2 nodes that may join, for run small (min-nodes); got 1" in fault
    assert "east, ward" in shown(kit)
    assert "where job big runs" in shown(kit)


def test_a_round_that_goes_on_without_a_client_makes_it_yellow_while_the_run_goes_on(
    kit: LinkKit, child: Child
) -> None:
    jobs, folder = running(kit)
    dropped = [{"client": f"ward-{i}", "reason": f"round 1: client ward-{i}: no"} for i in range(7)]
    row = {"round": 1, "quarantined": dropped, "skipped": True, "asked": 8, "answered": 1}
    folder.append_round(row)
    write_status(kit, seen(), [child], jobs)
    found = read_status(kit)
    assert found["state"] == YELLOW
    assert found["warnings"][0] == "run demo continued without a reply; round 1: client ward-0: no"
    assert found["warnings"][-2] == "run demo, round 1 continued without 2 more clients"
    assert "kept the model: expected 2 or more usable replies" in found["warnings"][-1]
    assert "yellow" in shown(kit)
    job = jobs.read("demo")
    assert job is not None
    jobs.update(job, state="finished")
    write_status(kit, seen(), [child], jobs)
    assert read_status(kit)["state"] == GREEN


@pytest.mark.parametrize("row", ["[]", '{"quarantined": 7}', '{"round": 1, "quarantined": [7]}'])
def test_a_line_that_somebody_changed_does_not_end_the_link(kit: LinkKit, child: Child, row: str) -> None:
    jobs, folder = running(kit)
    (folder.path / "rounds.jsonl").write_text(row + "\n")
    (folder.path / "nodes.json").write_text('{"left_out": [7, {}]}')
    write_status(kit, seen(), [child], jobs)
    assert read_status(kit)["state"] == GREEN


def test_it_is_red_when_fewer_nodes_may_join_than_a_run_needs(kit: LinkKit, child: Child) -> None:
    jobs = Jobs(kit.jobs, kit.runs)

    def state(known: Seen) -> tuple[str, str]:
        write_status(kit, known, [child], jobs)
        found = read_status(kit)
        return found["state"], "; ".join(found["warnings"])

    assert state(seen())[0] == GREEN
    none = state(seen(nodes=[]))
    assert none[0] == RED
    assert "expected at least 1 nodes that may join, for a run; got 0" in none[1]
    job = jobs.submit("demo", {"min-nodes": 2})
    few = state(seen())
    assert few[0] == RED
    assert "expected at least 2 nodes that may join, for run demo (min-nodes); got 1" in few[1]
    away = NodeState(6, "b", b"", True, False, None)
    assert state(seen(nodes=[*seen().nodes, away]))[0] == YELLOW  # it may come
    jobs.update(job, state="failed")
    assert state(seen())[0] == GREEN
    assert "may join" not in state(Seen())[1]  # nobody has asked the SuperLink yet


def test_an_old_status_says_that_the_link_is_gone(kit: LinkKit, child: Child) -> None:
    write_status(kit, seen(), [child], Jobs(kit.jobs, kit.runs))
    path = kit.status
    old = json.loads(path.read_text()) | {"written": time.time() - 100}
    path.write_text(json.dumps(old))
    found = read_status(kit)
    assert found["state"] == RED
    assert "100 s old" in found["warnings"][0]
    assert not found["nodes"][0]["online"]


@pytest.mark.parametrize("content", [None, "", "{"])
def test_no_status_is_red(kit: LinkKit, content: str | None) -> None:
    if content is not None:
        kit.state.mkdir(parents=True)
        kit.status.write_text(content)
    assert read_status(kit)["state"] == RED
    assert "bouquet link" in " ".join(shown(kit).split())  # a long path breaks the line anywhere


def test_the_command_tells_by_its_exit_code(kit: LinkKit, child: Child) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        line = [str(Path(sys.executable).with_name("bouquet")), "status", str(kit.path), *more]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    assert run().returncode == 69
    write_status(kit, seen(), [child], Jobs(kit.jobs, kit.runs))
    done = run("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["nodes"][0]["name"] == "ward"
    write_status(kit, seen(warnings=["look at this"]), [child], Jobs(kit.jobs, kit.runs))
    done = run()
    assert (done.returncode, "yellow" in done.stdout) == (0, True)  # it does its work


@pytest.mark.parametrize(("known", "healthy"), [({"warnings": ["look"]}, True), ({"disk": "full"}, False)])
def test_the_container_of_a_yellow_link_is_healthy(
    kit: LinkKit, child: Child, known: dict[str, object], healthy: bool
) -> None:
    """An unhealthy one is restarted, which helps no node that is away."""
    write_status(kit, seen(**known), [child], Jobs(kit.jobs, kit.runs))
    script = Path(__file__).parents[2] / "docker" / "health.py"
    done = subprocess.run([sys.executable, script, kit.path], capture_output=True, timeout=60, check=False)
    assert (done.returncode == 0) == healthy, done.stderr


def test_the_last_round_is_that_of_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    assert module.last_round(path) == 0
    path.write_text('{"round": 0}\n{"round": 41}\n{"round": 4')
    assert module.last_round(path) == 41
    path.write_text("x" * 100_000 + '\n{"round": 7}\n')
    assert module.last_round(path) == 7


def test_the_link_says_in_its_status_that_its_certificate_ends_soon(kit: LinkKit, child: Child) -> None:
    provision(kit.path.parent, renew=True, days=20)
    keeper = SimpleNamespace(seen=seen(), jobs=Jobs(kit.jobs, kit.runs))
    kit.state.mkdir()
    kit.runs.mkdir(exist_ok=True)
    StatusWriter(kit, SimpleNamespace(children={"superlink": child}), keeper)()  # type: ignore[arg-type]
    found = read_status(kit)
    assert found["state"] == YELLOW
    (warning,) = found["warnings"]
    assert re.search(r"link/server.crt expires on \d{4}-\d\d-\d\d .* in (19|20) days. .*--renew", warning)
    assert "yellow" in shown(kit)


def test_what_a_link_does_without_on_its_flower_is_shown_and_is_yellow(kit: LinkKit) -> None:
    assert flower_lines(kit) == []
    line = "Flower 1.44.0 has another flwr.a.b, or none: each call costs more."
    write_json(kit.state / LEFT_OUT, [line])
    write_status(kit, seen(flower=flower_lines(kit)), [], Jobs(kit.jobs, kit.runs))
    status = read_status(kit)
    assert (status["state"], status["warnings"], status["flower"]) == ("yellow", [line], [line])
    assert line in shown(kit)
    (kit.state / LEFT_OUT).write_text("{")
    assert flower_lines(kit) == []


def test_a_link_that_ended_is_not_running_at_once(
    kit: LinkKit, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    write_status(kit, seen(), [child], jobs)
    assert read_status(kit)["running"]
    monkeypatch.setattr(run_link, "bundle", bytes)
    monkeypatch.setattr(run_link, "check_addresses", lambda kit: None)
    monkeypatch.setattr(run_link.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run_link.Keeper, "run", lambda *_: None)
    monkeypatch.setattr(run_link.Supervisor, "run", lambda *_: None)  # as at SIGTERM
    run_link.run_link(kit)
    found = read_status(kit)
    assert (found["state"], found["running"], found["nodes"][0]["online"]) == (RED, False, False)
    assert re.match(
        r"the link is not running: it ended at .*\. Start it: bouquet link ", found["warnings"][0]
    )
    assert "ended" not in found
    write_status(kit, seen(), [child], jobs)  # it was started again
    assert read_status(kit)["running"]


@pytest.mark.parametrize("before", ["never", "ended"])
def test_jobs_that_wait_for_a_link_that_is_not_running_are_shown(
    kit: LinkKit, child: Child, before: str
) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    if before == "ended":
        write_status(kit, seen(), [child], jobs)
        write_ended(kit)
    jobs.submit("early", {"num-server-rounds": 20})
    assert [(run["name"], run["state"]) for run in read_status(kit)["runs"]] == [("early", QUEUED)]
    assert "early" in shown(kit)

"""The link's own machine: local users, idle connections, what children and nodes say, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time

from flwr.proto import control_pb2

from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from task.storage.files import write_json
from tests.faults.case import NotCoveredError, Rig, case
from tests.faults.federation import DISK_MB
from tests.faults.machine import until
from tests.faults.runs import BOUQUET

IDLE = 1200


@case(
    "S13",
    "A local user with ca.crt at the Control API",
    "every method is refused without the kit's secret; all nodes may still join; with too few nodes the "
    "status is red",
    "every method of Control is called on the link's machine, without a proof and with guessed ones, "
    "during a run",
    tests=(
        "tests/deploy/test_gate.py",
        "tests/deploy/test_submit_port.py::test_a_caller_without_a_valid_token_is_refused",
        "tests/deploy/test_status.py::test_it_is_red_when_fewer_nodes_may_join_than_a_run_needs",
    ),
)
def local_user(rig: Rig) -> str:
    run = rig.submit(3)
    fed = run.fed
    run.wait_round(1)
    certificates = str(fed.kits / "link" / "ca.crt")
    found = fed.attack("outsider", fed.link_kit.control, certificates, local=True)
    (service,) = control_pb2.DESCRIPTOR.services_by_name.values()
    assert {m.name for m in service.methods} <= set(found), found
    assert {word for answers in found.values() for word in answers} == {"401"}, found
    run.wait_end()
    assert len([n for n in fed.status()["nodes"] if n["name"] in fed.wards]) == len(fed.wards)
    calls = sum(sum(answers.values()) for answers in found.values())
    return f"{calls} calls of {len(found)} methods: 401; {rig.same(run)}"


@case(
    "S15",
    f"{IDLE} idle connections to the Fleet API",
    "a run goes on, a new node can join, the idle ones are closed",
    "1200 silent TCP connections, before and while a run begins and a node joins",
    tests=(
        "tests/deploy/test_connections.py",
        "tests/deploy/test_fleet_relay.py::test_idle_connections_keep_nobody_out",
        "tests/deploy/test_fleet_relay.py::test_a_header_that_grpc_does_not_take_is_refused_without_a_traceback",
    ),
)
def idle_connections(rig: Rig) -> str:
    fed = rig.fed()
    attack = fed.begin_attack("idle", fed.address, str(IDLE), "100")
    assert attack.stderr is not None
    assert attack.stderr.readline().strip() == str(IDLE)
    began = time.monotonic()
    fed.restart_node("ward-1")
    seconds = time.monotonic() - began
    run = rig.submit(2)
    run.wait_end()
    found = json.loads(attack.communicate(timeout=120)[0])
    assert found["closed"] == IDLE, found
    return f"a node was back in {seconds:.1f} s; all closed after {found['seconds']:.0f} s; {rig.same(run)}"


@case(
    "S17",
    "A task's process sends its parent harmful records; a node's version contains markup",
    "nothing that a process writes is executed or grows without bound; `bouquet status` shows nodes' texts "
    "as plain text",
    "a status with markup, emoji codes and control characters in every text; pickles, floods and records out "
    "of order in the pipe of a task",
    tests=("tests/deploy/test_telling.py", "tests/server_app/test_terminal.py"),
)
def words_from_outside(rig: Rig) -> str:
    fields = ("address", "warning", "node", "app", "run", "state", "reason")
    nasty = {field: f"[red]{field}[/] [/nope] :smile:\x1b[2J\u202e" for field in fields}
    rig.folder.mkdir(parents=True, exist_ok=True)
    provision(rig.folder / "words", "127.0.0.1:9092", ["ward"])
    kit = read_link_kit(rig.folder / "words" / "link")
    node = {"name": nasty["node"], "id": "1", "online": True, "last_seen": None, "clients": 1, "examples": 2}
    run = {"name": nasty["run"], "state": nasty["state"], "round": 1, "rounds": 2, "attempts": 1}
    run |= {"reason": nasty["reason"], "updated": time.time()}
    row = {"state": "green", "address": nasty["address"], "written": time.time(), "processes": []}
    row |= {"warnings": [nasty["warning"]], "nodes": [node | {"app_version": nasty["app"]}], "runs": [run]}
    write_json(kit.status, row)
    command = [BOUQUET, "status", str(kit.path)]
    env = os.environ | {"COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shown = [f"[red]{field}[/] [/nope] :smile:?[2J?" in done.stdout for field in fields]
    assert all(shown), done.stdout
    assert "\x1b[2J" not in done.stdout
    return f"`bouquet status` shows {len(fields)} hostile texts as they are"


@case(
    "R24",
    "Disk full in runs/",
    "the health check is red within 30 s; the run goes on by itself when there is room; same final model",
    "a file fills the disk of the result folders, for two attempts at least",
    tests=(
        "tests/deploy/test_runner.py::test_a_full_disk_is_waited_for_however_long",
        "tests/server_app/test_app.py::test_a_full_disk_is_no_wrong_key_wherever_it_is_met",
    ),
)
def results_disk_full(rig: Rig) -> str:
    run = rig.submit(6)
    if rig.network is None:
        run.wait_end()
        raise NotCoveredError("a full disk needs root, for a disk of its own")
    run.wait_round(1)
    filler = run.fed.link_kit.runs / "filler"
    began = time.monotonic()
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                for _ in range(2 * DISK_MB):
                    file.write(b"\0" * size)
    try:
        until(lambda: run.fed.status()["state"] == "red", 30, "a red health check")
        red = time.monotonic() - began
        until(
            lambda: "No space left" in run.job().reason, 120, f"the full disk as reason; {run.job().reason}"
        )
        before = run.job().attempts
        until(lambda: run.job().attempts > before, 120, "another attempt")
        reason = run.job().reason
    finally:
        filler.unlink()
    freed = time.monotonic()
    run.wait_end()
    seconds = time.monotonic() - freed
    assert "No space left" in reason, reason
    seen = f"red after {red:.1f} s, {run.job().attempts} attempts, finished {seconds:.1f} s after it had room"
    return f"{seen}; {rig.same(run)}"

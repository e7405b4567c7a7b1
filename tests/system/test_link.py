"""``bouquet link``, nodes and ``bouquet run --link`` as processes: a run ends the same whoever is killed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from server_app.deploy.calls.control import Control
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.flower.connection import connect
from server_app.deploy.host.host import APP_DIR, free_port
from server_app.deploy.kits.kit import LinkKit, read_link_kit, read_submitting_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import Job, Jobs
from server_app.deploy.link.status import read_status
from server_app.run.confined import KIT
from server_app.run.run_lock import is_held
from task.config.read import read_recipe
from tests.support.federation import in_one_process, read_by

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
ROUNDS = 8
IID = 'partition="iid"'  # the recipe's own partition costs each process seconds of imports
KEYS = f"num-server-rounds={ROUNDS} client-evaluate-every=4"


@dataclass
class Place:
    """A link and two nodes on this machine."""

    folder: Path
    kit: LinkKit
    processes: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BOUQUET, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def start_link(self) -> None:
        self.start("link", "link", str(self.kit.path))
        self.until(lambda: self.status()["state"] != "red", 180)

    def start_node(self, name: str, share: str) -> None:
        self.start(name, "node", str(self.folder / "kits" / name), "--partition", share)

    def bouquet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BOUQUET, *arguments], capture_output=True, text=True, timeout=900, check=False)

    def run(self, name: str, *more: str, keys: str = KEYS) -> subprocess.CompletedProcess[str]:
        where = ("--link", str(self.kit.path), "--run-name", name)
        return self.bouquet("run", *where, "--recipe", "demo", "-c", f"{IID} {keys}", *more)

    def attach(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.bouquet("run", "--link", str(self.kit.path), "--attach", name)

    def job(self, name: str) -> Job:
        job = Jobs(self.kit.jobs, self.kit.runs).read(name)
        assert job is not None
        return job

    def status(self) -> dict[str, Any]:
        return read_status(self.kit)

    def rounds(self, name: str) -> list[dict[str, Any]]:
        path = self.kit.runs / name / "rounds.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def until(self, true: Callable[[], object], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def process(self, what: str) -> psutil.Process:
        """Return the process of this kit's link whose command line has these words."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(KIT) == str(self.kit.path) and what in " ".join(process.cmdline()):
                    found.append(process)
        assert found, self.logs()
        return min(found, key=lambda p: p.create_time())

    def logs(self) -> str:
        files = [*self.folder.glob("*.log"), *self.kit.logs.glob("*.log")]
        return "".join(f"\n== {p}\n{p.read_text(errors='replace')[-3000:]}" for p in files)

    def stop(self, name: str) -> float:
        """Stop a process politely; return how long it took, in seconds."""
        began = time.monotonic()
        self.processes[name].terminate()
        self.processes[name].wait(60)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("link")
    provision(folder / "kits", f"127.0.0.1:{free_port()}", ["a", "b"])
    config = folder / "kits" / "link" / "kit.toml"
    text = config.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{free_port()}")
    text = re.sub('# submit = ".*?"', f'submit = "127.0.0.1:{free_port()}"', text)
    config.write_text(text + f'fleet-http = "127.0.0.1:{free_port()}"\n')
    made = Place(folder, read_link_kit(folder / "kits" / "link"))
    try:
        made.start_link()
        made.start_node("a", "0/2")
        made.start_node("b", "1/2")
        yield made
    finally:
        for process in made.processes.values():
            process.terminate()
        for process in made.processes.values():
            process.wait(60)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the model that a run in one process ends with."""
    keys = read_recipe("demo") | {"num-server-rounds": ROUNDS, "client-evaluate-every": 4, "partition": "iid"}
    keys = read_by(keys | {"progress": "none", "run-name": "one"})
    return model(in_one_process(keys, tmp_path_factory.mktemp("one")))


def model(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_a_run_at_a_link_is_shown_and_ends_as_in_the_simulation(place: Place, undisturbed: str) -> None:
    done = place.run("plain")
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    for number in range(ROUNDS + 1):
        assert f"round {number}/{ROUNDS}" in done.stdout
    assert "Accuracy, final" in done.stdout
    assert model(place.kit.runs / "plain") == undisturbed
    assert place.job("plain").attempts == 1
    place.until(lambda: all(node["clients"] for node in place.status()["nodes"]), 30)
    nodes = {node["name"]: node for node in place.status()["nodes"]}
    assert sorted(nodes) == ["a", "b"]
    assert all(node["online"] and node["app_version"] for node in nodes.values())


def test_the_links_executor_is_killed_and_the_run_ends_with_the_same_model(
    place: Place, undisturbed: str
) -> None:
    """Other victims have cases of their own: R9, R10 and R12 of tests/faults."""
    assert place.run("kill-warm", "--detach").returncode == 0
    place.until(lambda: len(place.rounds("kill-warm")) >= 3)
    before = len(place.rounds("kill-warm"))
    place.process("server_app.deploy.flower.warm ").kill()
    began = time.monotonic()
    place.until(lambda: len(place.rounds("kill-warm")) > before, 300)
    assert time.monotonic() - began < 150, place.logs()
    done = place.attach("kill-warm")
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    assert [row["round"] for row in place.rounds("kill-warm")] == list(range(ROUNDS + 1))
    assert not any(row["quarantined"] for row in place.rounds("kill-warm"))
    assert model(place.kit.runs / "kill-warm") == undisturbed
    assert place.job("kill-warm").attempts == 2


ARRIVALS: dict[str, Any] = {
    "algorithm": "fedbuff", "order-of-arrival": "real", "dataset": "digits", "model": "mlp", "num-clients": 9,
    "fraction-train": 0.67, "fedbuff.buffer": 3, "num-server-rounds": 8, "learning-rate": 0.1,
    "progress": "none", "min-nodes": 2, "threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.mark.full
def test_a_run_of_real_arrivals_survives_its_server_and_replays_to_the_same_bytes(place: Place) -> None:
    """Its server is killed with SIGKILL after the second step."""
    follow.submit(place.kit, ARRIVALS | {"run-name": "real"})
    folder = place.kit.runs / "real"
    place.until(lambda: len(place.rounds("real")) >= 3)
    place.process("server_app.deploy.flower.warm ").children()[0].kill()
    place.until(lambda: place.job("real").ended)
    job = place.job("real")
    assert (job.state, job.attempts) == ("finished", 2), job.reason
    events = [json.loads(line) for line in (folder / "arrivals.jsonl").read_text().splitlines()]
    taken = [(e["client"], e["began"]) for e in events if e["event"] == "arrival"]
    assert len(taken) == len(set(taken)) == 3 * 8
    assert [e["round"] for e in events if e["event"] == "step"] == list(range(1, 9))
    done = place.bouquet("replay", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = place.rounds("real")
    last = lines[-1]["model_sha256"]
    assert f"the same model after each round; after the last one SHA-256 {last}" in done.stdout
    lines[4]["model_sha256"] = "0" * 64
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    other = place.bouquet("replay", str(folder))
    assert other.returncode == 1
    assert "differs: after round 4" in other.stderr


def test_a_configuration_error_is_final_and_says_why(place: Place) -> None:
    place.until(lambda: place.status()["state"] != "red", 120)
    folder = place.kit.runs / "somebodys" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "work").touch()
    done = place.run("somebodys")
    assert done.returncode == 78
    assert "holds an unfinished run" in done.stderr
    assert not (place.kit.jobs / "somebodys.json").exists()  # refused before it was submitted
    # What only the ServerApp can find out, here from the number of clients, ends the first attempt for good.
    few = place.run("few", keys='algorithm="krum" robust.byzantine=2.0')
    assert few.returncode == 70
    assert "krum needs at least" in few.stderr
    assert place.job("few").attempts == 1
    wrong = place.run("wrong", keys='algorithm="fedavgg"')
    assert wrong.returncode == 78
    assert 'Did you mean "fedavg"' in wrong.stderr
    assert not (place.kit.jobs / "wrong.json").exists()  # refused before it was submitted


def test_ctrl_c_detaches_and_stop_ends_a_job(place: Place) -> None:
    line = [BOUQUET, "run", "--link", str(place.kit.path), "--recipe", "demo", "--run-name", "long"]
    with subprocess.Popen(
        [*line, "-c", f"{IID} num-server-rounds=1000"], stderr=subprocess.PIPE, text=True
    ) as watch:
        place.until(lambda: len(place.rounds("long")) >= 2)
        watch.terminate()  # bouquet takes both for Ctrl-C
        _, said = watch.communicate(timeout=60)
    assert watch.returncode == 3
    assert "--attach long" in said
    count = len(place.rounds("long"))
    place.until(lambda: len(place.rounds("long")) > count)
    assert place.bouquet("run", "--link", str(place.kit.path), "--stop", "long").returncode == 0
    done = place.attach("long")
    assert done.returncode == 130
    assert f"stopped by the user; its results so far: {place.kit.runs / 'long'}; `bouquet run" in done.stderr
    place.until(lambda: not is_held(place.kit.runs / "long"), 60)  # its ServerApp has ended
    place.until(lambda: (place.kit.runs / "long" / "result.json").exists(), 40)
    assert json.loads((place.kit.runs / "long" / "result.json").read_text())["stopped"] == "by the user"


def test_the_port_of_the_nodes_serves_nothing_else(place: Place) -> None:
    host, _, port = place.kit.address.rpartition(":")
    with httpx.Client(verify=False, http2=False, timeout=10) as client:
        for path in ("/health", "/docs", "/v1/control/list-runs", "/v1/runtime/acquire-task"):
            with pytest.raises(httpx.HTTPError):
                client.post(f"https://{host}:{port}{path}").raise_for_status()
    address = int(place.kit.control.rpartition(":")[2])

    def listening() -> list[str]:
        open_ones = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
        return [c.laddr.ip for c in open_ones if c.laddr.port == address]

    found: list[str] = []
    # A busy machine's SuperLink may be starting again, and its table of sockets lacks some while it changes.
    place.until(lambda: found.extend(listening()) or found)
    assert set(found) == {"127.0.0.1"}


def test_the_key_fleet_http_opens_a_port_for_nodes_over_http(place: Place) -> None:
    calls = f"https://{place.kit.fleet_http}/v1/fleet"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(place.kit.ca_certificate))) as client:
        place.until(lambda: place.process("fleet_relay"))
        assert client.post(f"{calls}/nothing").status_code == 404
        # 503 while the SuperLink is starting again, on a busy machine; else nobody signed it
        place.until(lambda: client.post(f"{calls}/pull-messages", content=b"").status_code != 503)
        assert client.post(f"{calls}/pull-messages", content=b"").status_code == 401


def test_a_log_stream_does_not_hold_up_the_end_of_the_superlink(place: Place) -> None:
    control = Control(place.kit)
    assert place.run("streamed", "--detach", keys="num-server-rounds=1000").returncode == 0
    place.until(lambda: len(place.rounds("streamed")) >= 1)
    run = place.job("streamed").runs[-1]
    lines = []

    def listen() -> None:
        with suppress(LinkError):
            for line in control.calls.stream("StreamLogs", run_id=run):
                lines.append(line)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    place.until(lambda: lines, 60)
    superlink = place.process("server_app.deploy.flower.superlink ")
    began = time.monotonic()
    superlink.terminate()
    place.until(lambda: not superlink.is_running() or superlink.status() == psutil.STATUS_ZOMBIE, 60)
    assert time.monotonic() - began < 10
    place.bouquet("run", "--link", str(place.kit.path), "--stop", "streamed")
    place.until(lambda: place.job("streamed").ended, 120)


def flwr(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Flower's own commands in a Flower home."""
    line = [str(Path(sys.executable).with_name("flwr")), *arguments]
    env = os.environ | {"FLWR_HOME": str(home), "COLUMNS": "200"}
    return subprocess.run(
        line, env=env, cwd=APP_DIR, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.full
def test_flowers_own_commands_work_with_a_submitters_kit_until_it_is_revoked(
    place: Place, tmp_path: Path
) -> None:
    kits, home = place.folder / "kits", tmp_path / "home"
    provision(kits, submitters=["alice"])
    place.until(lambda: place.status()["state"] != "red", 120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(home))
        connect(read_submitting_kit(kits / "alice"), "at")

    nodes = flwr(home, "supernode", "list", "at")
    assert [nodes.stdout.count(f"│ {name} ") for name in "ab"] == [1, 1], nodes.stdout + nodes.stderr

    keys = 'run-name="flower" dataset="digits" num-clients=4 num-server-rounds=9999'
    run = flwr(home, "run", ".", "at", "-c", keys)
    assert run.returncode == 0, run.stdout + run.stderr + place.logs()
    job = place.job("flower")
    assert (job.submitter, job.keys["min-nodes"]) == ("alice", 2)  # as `bouquet run --link` submits it
    place.until(lambda: len(place.rounds("flower")) >= 2)
    config = json.loads((place.kit.runs / "flower" / "config.json").read_text())
    assert config["submitter"] == "alice"
    listed = flwr(home, "ls", "at", "--format", "json").stdout
    (row,) = json.loads(listed[listed.index("{") :])["runs"]
    assert (row["run-id"], row["status"], row["federation-id"]) == (
        str(job.number),
        "running",
        "@alice/flower",
    )

    assert flwr(home, "stop", row["run-id"], "at").returncode == 0
    log = flwr(home, "log", row["run-id"], "at").stdout  # ends as the run has ended
    assert re.search(r"round +1/9999 ", log), log
    assert log.strip().endswith("job flower is stopped: stopped by the user")

    provision(kits, revoke=["alice"])
    refused = flwr(home, "ls", "at")
    assert (refused.returncode != 0, "flower" in refused.stdout) == (True, False), refused.stdout
    did = [line.split(" ", 1)[1] for line in (place.kit.logs / "audit.log").read_text().splitlines()]
    assert [line for line in did if line.startswith("alice")] == [
        f"alice submitted run flower ({job.number})",
        "alice asked to stop run flower",
    ]


def test_a_superlink_that_stands_still_is_seen_and_restarted(place: Place) -> None:
    place.until(lambda: place.status()["state"] != "red", 120)
    superlink = place.process("server_app.deploy.flower.superlink ")
    superlink.suspend()
    began = time.monotonic()
    place.until(lambda: place.status()["state"] == "red", 30)
    assert place.bouquet("status", str(place.kit.path)).returncode == 1
    place.until(lambda: not superlink.is_running() or superlink.status() == psutil.STATUS_ZOMBIE, 60)
    assert time.monotonic() - began < 45
    place.until(lambda: place.status()["state"] != "red", 120)


def test_a_revoked_node_is_turned_out_of_a_running_link(place: Place) -> None:
    place.until(lambda: any(n["name"] == "b" and n["online"] for n in place.status()["nodes"]), 120)
    place.kit.revoked.mkdir(exist_ok=True)
    (place.kit.nodes / "b.pub").rename(place.kit.revoked / "b.pub")
    place.until(lambda: [n["name"] for n in place.status()["nodes"]] == ["a"], 30)
    log = place.kit.logs / "superlink.log"
    place.until(lambda: "the key is not registered, or revoked" in log.read_text(errors="replace"), 60)
    assert "revoked and may no longer join" in (place.folder / "link.log").read_text()


def test_a_link_ends_with_all_that_it_started(place: Place) -> None:
    children = [
        p
        for what in ("flower.superlink ", "flower.warm ")
        for p in [place.process(f"server_app.deploy.{what}")]
    ]
    assert place.stop("link") < 15
    assert not [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(ConnectionError):  # nobody listens any more
        socket.create_connection(("127.0.0.1", int(place.kit.control.rpartition(":")[2])), timeout=2)
    place.until(lambda: place.status()["state"] == "red", 60)

"""A node or a link is started with what cannot work: it says so at once, and starts what can."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from server_app.cli import exits
from server_app.deploy.host.host import free_port
from server_app.deploy.kits import certificates
from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.kitfiles import set_key
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.status import YELLOW, read_status
from server_app.results.folder import RunFolder
from tests.faults.case import NotCoveredError, Rig, case
from tests.faults.machine import STARTS_S, Machine, until
from tests.faults.runs import BOUQUET, write_ward
from tests.task.helpers import write_idx

SAID_S = 5.0  # from the first attempt to connect to the reason why it fails
REFUSED_S = 120.0  # for a command that refuses to start, on a busy machine


def kits(folder: Path) -> Path:
    """Provision a link and one node on loopback; return the folder of the kits."""
    out = folder / "kits"
    provision(out, f"127.0.0.1:{free_port()}", ["ward"])
    set_key(out / "link" / "kit.toml", "control", f"127.0.0.1:{free_port()}")
    return out


def refused(*arguments: str) -> tuple[int, str]:
    """Run a command that does not start; return its exit code and what it said."""
    done = subprocess.run(
        [BOUQUET, *arguments], capture_output=True, text=True, timeout=REFUSED_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[Machine]:
    """Run a link or a node for the block."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(arguments[0], [BOUQUET, *arguments], folder / f"{arguments[0]}.log")
    machine.log.unlink(missing_ok=True)
    with machine.log.open("ab") as log:
        machine.process = subprocess.Popen(
            machine.command, env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield machine
    finally:
        machine.stop()


def says(machine: Machine, pattern: str, within_s: float = STARTS_S) -> str:
    """Return the line that a machine says, once it does."""
    found = until(lambda: re.search(f"^.*{pattern}.*$", machine.said(), re.MULTILINE), within_s, pattern)
    return str(found[0])


@case(
    "R25",
    "A node starts with a broken data file, a wrong port, or while the link is down",
    "broken data end it before it connects, with line and column; otherwise it says within 5 s why it "
    "cannot connect, and connects when the link is there",
    "`bouquet node` with a word in place of a number; to a port without TLS; before its link, and then "
    "with it; with its kit moved away",
    tests=("tests/deploy/test_probe.py", "tests/task/test_own_data.py"),
)
def broken_starts(rig: Rig) -> str:
    folder = rig.folder / "starts"
    out, data = kits(folder), folder / "ward.csv"
    ward, config = str(out / "ward"), out / "ward" / "kit.toml"
    write_ward(data, seed=1, rows=60)
    good = data.read_text(encoding="utf-8")
    first, second, third, *_ = good.splitlines()
    data.write_text("\n".join((first, second, third.replace(third.split(",")[0], "hot", 1))) + "\n", "utf-8")
    code, said = refused("node", ward, "--data", str(data))
    assert code == exits.DATA, said
    assert "ward.csv, line 3, column " in said, said
    assert not list((out / "ward" / "logs").iterdir()), "a process was started"
    data.write_text(good, encoding="utf-8")
    told = [f"broken data: {said.partition(': ')[2].rpartition('/')[2][:50]}"]

    def reason(node: Machine, pattern: str) -> float:
        says(node, "connecting to")
        began = time.monotonic()
        line = says(node, pattern, SAID_S)
        assert f'the address is the key "link" of {config}' in line, line
        return time.monotonic() - began

    with socket.create_server(("127.0.0.1", 0)) as other:
        address = read_link_kit(out / "link").address
        set_key(config, "link", f"127.0.0.1:{other.getsockname()[1]}")
        with started(folder, "node", ward, "--data", str(data)) as node:
            told.append(f"no TLS: said after {reason(node, 'TLS handshake failed'):.1f} s")
        set_key(config, "link", address)
    with started(folder, "node", ward, "--data", str(data)) as node:
        told.append(f"no link: said after {reason(node, 'connection refused'):.1f} s")
        with started(folder, "link", str(out / "link")):
            says(node, "connected to")
            told.append("connected when the link was there")
            provision(out, revoke=["ward"])
            line = says(node, "moved or deleted")
            assert node.process is not None
            node.process.wait(timeout=REFUSED_S)
            assert "Traceback" not in node.said(), node.said()
            told.append(f"kit moved away: {line.rpartition('it was ')[2][:30]}")
    return "; ".join(told)


@case(
    "R30",
    "A kit on a read-only disk",
    "`bouquet node` and `bouquet link` end at once, with an exit code, and name the folder",
    "both kits are bind-mounted read-only (mount --bind -o ro): root may write despite file modes",
)
def read_only_kit(rig: Rig) -> str:
    out = kits(rig.folder / "read-only")
    told = []
    for name in ("ward", "link"):
        kit = str(out / name)
        try:
            subprocess.run(["mount", "--bind", kit, kit], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", kit], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as err:
            subprocess.run(["umount", kit], check=False, capture_output=True)
            raise NotCoveredError(f"it needs root, to mount a folder read-only: {err}") from None
        try:
            code, said = refused("node" if name == "ward" else "link", kit)
        finally:
            subprocess.run(["umount", kit], check=True)
        assert code in (exits.CONFIG, exits.FAILED, exits.FILES), (code, said)
        assert kit in said, said
        assert "Read-only file system" in said, said
        told.append(f"{name}: {said.strip().splitlines()[-1][:120]}")
    return "; ".join(told)


@case(
    "R32",
    "A link whose database a newer Flower has upgraded; a link of another app during a run",
    "`bouquet link` ends and says which Flower it needs; a run ends and says with which app it began, and "
    "goes on only with --resume",
    "a link's database gets the mark of an unknown version",
    tests=(
        "tests/deploy/test_superlink.py",
        "tests/deploy/test_runner.py::test_a_run_goes_on_with_the_app_that_it_began_with_only",
    ),
)
def newer_database(rig: Rig) -> str:
    folder = rig.folder / "newer"
    out = kits(folder)
    with started(folder, "link", str(out / "link")) as link:
        until(
            lambda: read_status(read_link_kit(out / "link"))["state"] == YELLOW, STARTS_S, "a link that works"
        )
        link.stop()
    with contextlib.closing(sqlite3.connect(out / "link" / "state" / "link.db")) as db, db:
        db.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    code, said = refused("link", str(out / "link"))
    assert code == exits.CONFIG, (code, said)
    assert re.search(r"cannot start: expected a database of flwr [\d.]+ or older; got a newer one's", said), (
        said
    )
    return said.strip().splitlines()[-1][:160]


@case(
    "R26",
    "Certificates that have expired or expire soon",
    "`bouquet link` refuses an expired one and says what to do; one that expires within 30 days makes the "
    "status yellow, with the date, and the node says it",
    "a SuperLink's certificate that ended a day ago, and one that ends in 20 days",
    tests=("tests/deploy/test_probe.py", "tests/deploy/test_provision.py", "tests/deploy/test_status.py"),
)
def certificates_end(rig: Rig) -> str:
    folder = rig.folder / "certificates"
    out = kits(folder)
    then = certificates.now() - dt.timedelta(days=40)
    with patch.object(certificates, "now", lambda: then):
        provision(out, renew=True, days=39)
    code, said = refused("link", str(out / "link"))
    assert code == exits.CONFIG, said
    assert re.search(r"server\.crt expired on 20.* UTC.*--renew", said), said
    provision(out, renew=True, days=20)
    command = [BOUQUET, "status", str(out / "link"), "--json"]

    def status() -> dict[str, object]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REFUSED_S, check=False)
        found: dict[str, object] = json.loads(done.stdout)
        return found if done.returncode == 0 else {}

    with started(folder, "link", str(out / "link")) as link:
        line = says(link, r"server\.crt expires on")
        found = until(status, STARTS_S, "a status that is not red")
        assert found["state"] == "yellow", found
        assert "server.crt expires on" in str(found["warnings"]), found
        with started(folder, "node", str(out / "ward")) as node:
            says(node, r"the link's certificate expires on")
            says(node, "connected to")
    return f"{said.strip().rpartition('/')[2][:60]}...; yellow: {line.rpartition('/')[2][:60]}..."


@case(
    "R34",
    "A node has too little memory for a run's data",
    "the run goes on with the other nodes and all clients; the node says what it needs and ends with exit "
    "code 78",
    "three nodes host a partition; one of them may use 70 MB more than at rest; the run's data are 94 MB",
    tests=(
        "tests/deploy/test_edge.py::test_what_an_error_says_of_memory",
        "tests/deploy/test_node.py::test_a_node_that_lacks_memory_for_a_runs_data_ends_and_says_so",
        "tests/strategies/test_client_registry.py::test_one_of_three_nodes_vetoes_no_run",
        "tests/system/test_node.py::test_a_node_with_too_little_memory_says_what_it_needs",
    ),
)
def too_little_memory(rig: Rig) -> str:
    folder, images, draw = rig.folder / "memory", 120_000, np.random.default_rng(0)
    out, names = folder / "kits", ("ward-1", "ward-2", "ward-3")
    provision(out, f"127.0.0.1:{free_port()}", list(names))
    set_key(out / "link" / "kit.toml", "control", f"127.0.0.1:{free_port()}")
    for part, count in (("train", images), ("t10k", 100)):
        raw = folder / "data" / "MNIST" / "raw"
        write_idx(raw / f"{part}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28), np.uint8))
        write_idx(raw / f"{part}-labels-idx1-ubyte", draw.integers(0, 10, count, np.uint8))
    keys = 'dataset="mnist" model="logistic" num-clients=6 num-server-rounds=1 progress="none"'
    with patch.dict(os.environ, {"BOUQUET_DATA": str(folder / "data")}), ExitStack() as running:
        running.enter_context(started(folder / "link", "link", str(out / "link")))
        for name in names[:2]:
            says(running.enter_context(started(folder / name, "node", str(out / name))), "connected to")
        small = str(out / names[2])
        with started(folder / "measured", "node", small, "--max-memory", "4G") as node:
            used = int(says(node, r"memory: \d+M of").partition("memory: ")[2].partition("M")[0])
        node = running.enter_context(
            started(folder / names[2], "node", small, "--max-memory", f"{used + 70}M")
        )
        says(node, "memory: ")
        done = subprocess.run(
            [BOUQUET, "run", "--link", str(out / "link"), "--run-name", "memory", "-c", keys],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said = says(node, rf"--max-memory {used + 70}M: this task needs at least \d+M")
        assert node.process is not None
        assert node.process.wait(timeout=REFUSED_S) == exits.CONFIG
    (row,) = RunFolder(out / "link" / "runs" / "memory").rounds()[1:]
    assert (row["answered"], row["asked"]) == (6, 6), row
    return f"6 of 6 clients; the node said: {said.partition(': ')[0][-18:]}: {said.partition(': ')[2][:40]}"


@case(
    "R36",
    "A node whose environment names a dead proxy",
    "within 5 s it names the variable and the proxy, without the password, and the way to bypass it; with "
    "that it connects",
    "`bouquet node` with https_proxy=http://USER:PASSWORD@127.0.0.1:9, then with no_proxy=127.0.0.1, too",
    tests=("tests/deploy/test_proxy.py",),
)
def dead_proxy(rig: Rig) -> str:
    folder = rig.folder / "proxy"
    out, data = kits(folder), folder / "ward.csv"
    write_ward(data, seed=1, rows=60)
    proxy = {"https_proxy": "http://joe:hush@127.0.0.1:9"}
    start = "node", str(out / "ward"), "--data", str(data)
    with started(folder, "link", str(out / "link")) as link:
        says(link, "nodes come to")
        with started(folder, *start, **proxy, no_proxy="", no_grpc_proxy="") as node:
            says(node, "connecting to")
            began = time.monotonic()
            line = says(node, r"https_proxy=http://\*\*\*@127\.0\.0\.1:9 .*cannot be reached", SAID_S)
            seconds = time.monotonic() - began
            assert "set no_grpc_proxy=127.0.0.1, or unset https_proxy" in line, line
            assert "hush" not in node.said(), node.said()
        with started(folder, *start, **proxy, no_grpc_proxy="127.0.0.1") as node:
            says(node, "connected to")
    return f"named after {seconds:.1f} s; connected with the exception"


@case(
    "R37",
    "A model whose replies exceed the link's limit",
    "the run ends before round 1, at its first attempt, with the figures and the key to set",
    'max-reply = "1M" in the link\'s kit, and `2nn` on digits: 1.8 MB a reply',
    tests=("tests/strategies/test_reply_size.py",),
)
def too_large_replies(rig: Rig) -> str:
    folder = rig.folder / "large"
    out = kits(folder)
    set_key(out / "link" / "kit.toml", "max-reply", "1M")
    run = ["run", "--link", str(out / "link"), "--run-name", "large", "-c"]
    with (
        started(folder, "link", str(out / "link")) as link,
        started(folder, "node", str(out / "ward")) as node,
    ):
        says(link, "nodes come to")
        says(node, "connected to")
        code, said = refused(*run, 'dataset="digits" model="2nn" num-clients=3 num-server-rounds=1')
    assert code == exits.FAILED, (code, said)
    line = said.strip().splitlines()[-1]
    assert re.search(r'key "max-reply": expected at least \dM for this run', line), said
    job = json.loads((out / "link" / "jobs" / "large.json").read_text())
    assert job["attempts"] == 1, job
    return line[-150:]

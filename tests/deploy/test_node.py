"""A node's options, what it says of its connection, and Flower's SuperNode as it is changed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.supernode import start_client_internal as main_loop

from server_app.deploy.flower import supernode
from server_app.deploy.host.processes import Supervisor
from server_app.deploy.kits.certificates import Finding
from server_app.deploy.kits.kit import MIN_EXAMPLES, NodeKit, Policy, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.node import own_data as owndata
from server_app.deploy.node import serve as node
from server_app.deploy.node.own_data import check_data
from server_app.deploy.node.probe import Found
from server_app.deploy.node.serve import Options, check, node_config, read_partition, run_node
from task import timing
from task.errors import BouquetError, ConfigError, DataError


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (Options(data=Path("/nowhere/at/all")), "--data: expected a file or folder; got none"),
        (Options(data=Path("/"), partition=(0, 2)), "--partition: a node with --data"),
        (Options(partition=(2, 2)), "I from 0 to N - 1; got 2/2"),
        (Options(may_train="/etc/passwd"), "--may-train: expected a program"),
        (Options(cold=True, max_memory=1), "--cold: Flower's own way"),
        (Options(cold=True, may_train="/bin/true"), "--cold: Flower's own way"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(options: Options, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check(options)


def test_data_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(Options(data=tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # who runs this may be root
    with pytest.raises(ConfigError, match="can read"):
        check(Options(data=tmp_path))


@pytest.fixture
def kit(tmp_path: Path) -> NodeKit:
    """A kit whose link does not run."""
    provision(tmp_path / "kits", "127.0.0.1:9", ["ward-1"])
    return read_node_kit(tmp_path / "kits" / "ward-1")


BROKEN = "x,label\n1,0\nhot,1\n"


def test_broken_data_end_a_node_before_it_connects(
    kit: NodeKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node._NodeProcesses, "start", lambda self: pytest.fail("it starts"))
    data = tmp_path / "ward.csv"
    data.write_text(BROKEN)
    with pytest.raises(DataError, match=r'--data: .*ward.csv, line 3, column 1 "x": expected a number'):
        run_node(kit, Options(data=data))
    assert not list(kit.logs.iterdir())  # no process was started


def test_the_command_ends_with_1_for_broken_data(kit: NodeKit, tmp_path: Path) -> None:
    data = tmp_path / "ward.csv"
    data.write_text(BROKEN)
    line = [str(Path(sys.executable).with_name("bouquet")), "node", str(kit.path), "--data", str(data)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "error: --data: " in done.stderr
    assert "Traceback" not in done.stderr


def test_good_data_are_read_into_the_cache_of_the_runs(tmp_path: Path) -> None:
    data, cache = tmp_path / "ward.csv", tmp_path / "cache"
    data.write_text("x,label\n1,0\n2,1\n")
    assert check_data(data, "ward-1", cache) == "csv, 2 training and 0 test examples of shape (1,)"
    assert len(list((cache / "datasets").iterdir())) == 1


def test_data_that_do_not_fit_into_the_memory_and_a_reader_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "ward.csv"
    data.write_text("x,label\n" + "1,0\n" * 400_000)
    with pytest.raises(ConfigError, match=r"--max-memory 60M: reading .*ward.csv takes more"):
        check_data(data, "ward-1", tmp_path / "cache", 60 * 2**20)
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(owndata.subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(BouquetError, match=r"reads .*ward.csv was killed by SIGKILL: .* too little memory"):
        check_data(data, "ward-1", tmp_path / "cache")


def test_what_another_app_reads_is_not_checked(
    kit: NodeKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kit allows any app, its data may be of any form."""
    (tmp_path / "ward.parquet").write_bytes(b"PAR1")
    started: list[str] = []
    monkeypatch.setattr(node._NodeProcesses, "start", lambda self: started.append(self.kit.name))
    monkeypatch.setattr(Supervisor, "run", lambda *_: None)
    with pytest.raises(DataError):
        run_node(kit, Options(data=tmp_path / "ward.parquet"))
    assert not started
    run_node(dataclasses.replace(kit, policy=Policy(apps="any")), Options(data=tmp_path / "ward.parquet"))
    assert started == ["ward-1"]


def test_a_node_says_who_it_is_only_with_data_of_its_own(tmp_path: Path) -> None:
    lax = Policy(min_examples=0)
    own = node_config("ward-1", Options(data=tmp_path), lax)
    assert own == f'client-name="ward-1" data-path="{tmp_path}"'
    assert node_config("ward-1", Options(partition=(1, 3)), lax) == "partition-id=1 num-partitions=3"
    assert node_config("ward-1", Options(), lax) == ""
    assert node_config("ward-1", Options(), Policy()) == f"min-examples={MIN_EXAMPLES}"
    strict = Policy(min_examples=7, min_steps=3, run_paths=True)
    assert node_config("ward-1", Options(), strict) == "min-examples=7 min-steps=3 run-paths=true"
    assert read_partition("1/3") == (1, 3)
    assert read_partition("") is None
    with pytest.raises(ConfigError, match="--partition: expected I/N"):
        read_partition("1 of 3")


class FakeSupervisor:
    """Holds the one child that a node looks at."""

    def __init__(self) -> None:
        self.up_s = 1000.0
        self.log = ""
        self.children = {node.SUPERNODE: SimpleNamespace(uptime_s=lambda: self.up_s, process=object())}

    def tail(self, name: str) -> str:
        """Return the log."""
        return self.log


class FakeProbe:
    """Finds what it is given, and counts the looks."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that the node says."""
    lines: list[str] = []
    monkeypatch.setattr(node, "say", lines.append)
    return lines


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """Make a node whose SuperLink is at a port."""

    def make(port: int) -> Any:
        kit = NodeKit(tmp_path, "ward-1", f"127.0.0.1:{port}")
        kit.state.mkdir()
        it = node._NodeProcesses(kit, Options(), FakeSupervisor())  # type: ignore[arg-type]
        it.probe = FakeProbe()
        return it

    return make


def quiet(it: Any, seconds: float) -> None:
    """Let the last exchange be so long ago."""
    it.kit.alive.touch()
    os.utime(it.kit.alive, (time.time() - seconds,) * 2)


def test_it_says_once_why_it_cannot_reach_the_superlink_and_that_a_certificate_ends(
    made: Callable[..., Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [1000.0]
    monkeypatch.setattr(node.time, "monotonic", lambda: clock_s[0])
    it = made(9)
    it.look()
    assert (said, it.probe.looks) == ([], 1)
    it.probe.found = Found(False, "connection refused. Is the link running?")
    for _ in range(4):
        clock_s[0] += 1
        it.look()
    assert it.probe.looks == 2  # one every 2 s
    it.probe.found = Found(False, "no such host.")
    it.look()
    tail = f' Trying again; the address is the key "link" of {it.kit.path}/kit.toml'
    assert said == [
        f"127.0.0.1:9: connection refused. Is the link running?{tail}",
        f"127.0.0.1:9: no such host.{tail}",
    ]
    said.clear()
    quiet(it, 1)
    it.probe.found = Found(True, "", (Finding(False, "it ends soon"),))
    for _ in range(5):
        clock_s[0] += 100
        it.look()
    assert said == ["connected to 127.0.0.1:9", "it ends soon"]
    looks = it.probe.looks
    clock_s[0] += timing.CERTIFICATE_LOOK_S
    it.look()
    assert it.probe.looks == looks + 1


def test_it_says_when_it_is_connected_lost_and_back(made: Callable[..., Any], said: list[str]) -> None:
    it = made(9)  # nobody listens there
    it.look()
    assert said == []
    quiet(it, 1)
    it.look()
    it.look()
    quiet(it, 31)
    it.look()
    it.look()
    quiet(it, 0)
    it.look()
    assert said == [
        "connected to 127.0.0.1:9",
        "lost the SuperLink since 31 s: trying again",
        "connected to 127.0.0.1:9",
    ]


def test_it_is_restarted_only_where_the_superlink_answers_and_it_does_not_ask(
    made: Callable[..., Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lost the SuperLink holds replies: it is left alone until the port has answered for 30 s."""
    clock_s = [1000.0]
    monkeypatch.setattr(node.time, "monotonic", lambda: clock_s[0])
    it = made(9)
    it.probe.found = Found(True)
    quiet(it, 20)
    it.look()
    assert it._health() == ""
    quiet(it, 50)
    it._answers_since = 0.0
    clock_s[0] += 10
    it.look()
    assert it._health() == ""  # the port answers only now
    clock_s[0] += timing.NODE_STALE_S + 1
    it.look()
    assert "no exchange with" in it._health()
    assert it._health() == ""  # once
    it.probe.found = Found(False, "connection refused.")
    clock_s[0] += 10
    it.look()
    clock_s[0] += 100
    assert it._health() == ""  # the port is closed


@pytest.mark.parametrize(
    ("log", "what"),
    [
        ("bouquet: this machine's clock, 12:00 UTC, differs ...", "clock, 12:00 UTC, differs"),
        ("... [code: 2004] Failed to activate SuperNode.", "was not let in by 127.0.0.1"),
        ("... CERTIFICATE_VERIFY_FAILED ...", "has no certificate for 127.0.0.1"),
        ("bouquet: connected to x as node 1", "ended with exit code 70"),
    ],
)
def test_it_says_why_the_supernode_ended(made: Callable[..., Any], log: str, what: str) -> None:
    assert what in made(9)._explain(70, log)


def test_a_key_that_is_not_let_in_for_long_is_not_accepted(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was killed is let in again after 60 s, so what takes longer has another reason."""
    it = made(9)
    log = "[code: 2004] Failed to activate SuperNode."
    assert "holds an earlier process" in it._explain(1, log)
    it.refused_since -= timing.NOT_LET_IN_S
    said = it._explain(1, log)
    assert "key not accepted. Ask whoever runs 127.0.0.1 to register ward-1" in said


def test_a_refused_time_is_explained() -> None:
    assert "Run NTP" in supernode._reason(Refusal("Invalid timestamp"))
    assert supernode._reason(Refusal("Unknown node")) == "the SuperLink says UNAUTHENTICATED: Unknown node"


class Refusal(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, words: str) -> None:
        self.words = words

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return self.words


def test_flowers_main_loop_is_as_expected_and_looks_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_loop, "time", main_loop.time)
    assert supernode.hasten()
    began = time.monotonic()
    main_loop.time.sleep(3)
    main_loop.time.sleep(0.5)
    assert 0.25 <= time.monotonic() - began < 2


def test_another_main_loop_keeps_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = main_loop.time
    monkeypatch.setattr(supernode, "SLEEPS", ["3"])
    assert not supernode.hasten()
    assert main_loop.time is before


def test_a_reply_whose_rest_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "REPLY_REST_S", 0.3)
    pace = supernode.Pace()

    def yield_object_contents(waits: int) -> None:
        tree = SimpleNamespace(object_id="part")
        assert tree
        for _ in range(waits):
            pace.sleep(0.5)

    yield_object_contents(3)
    pace.sleep(0.5)  # another wait begins
    with pytest.raises(TimeoutError, match="in the midst of its reply"):
        yield_object_contents(100)

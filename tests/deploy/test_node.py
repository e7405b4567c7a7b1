"""A node's options, and what it says and does of its connection."""

from __future__ import annotations

import dataclasses
import os
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.message_pb2 import Message
from flwr.proto.run_pb2 import Run

from server_app.deploy.calls.fleet_client import (
    TRIES,
    FleetClient,
    NotLetInError,
    RefusedMessageError,
    _is_answer,
)
from server_app.deploy.calls.fleet_transport import CallError, S
from server_app.deploy.host.host import APP_HEADER
from server_app.deploy.host.policy import Site
from server_app.deploy.host.processes import Supervisor
from server_app.deploy.host.tasks import Tasks
from server_app.deploy.kits.certificates import Finding
from server_app.deploy.kits.kit import MIN_EXAMPLES, NodeKit, Policy, read_link_kit, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.node import message_loop
from server_app.deploy.node import own_data as owndata
from server_app.deploy.node import run_node as node
from server_app.deploy.node.message_loop import MessageLoop
from server_app.deploy.node.options import Options, check, node_config, read_partition
from server_app.deploy.node.own_data import check_data
from server_app.deploy.node.probe import Found
from server_app.deploy.node.run_node import run_node
from task import timing
from task.errors import BouquetError, ConfigError, DataError


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (Options(data=Path("/nowhere/at/all")), "--data: expected a file or folder; got none"),
        (Options(data=Path("/"), partition=(0, 2)), "--partition: a node with --data"),
        (Options(partition=(2, 2)), "I from 0 to N - 1; got 2/2"),
        (Options(may_train="/etc/passwd"), "--may-train: expected a program"),
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
    monkeypatch.setattr(node._NodeProcess, "start", lambda self: pytest.fail("it starts"))
    data = tmp_path / "ward.csv"
    data.write_text(BROKEN)
    with pytest.raises(DataError, match=r'--data: .*ward.csv, line 3, column 1 "x": expected a number'):
        run_node(kit, Options(data=data))
    assert not list(kit.logs.iterdir())  # no process was started


def test_the_command_ends_with_the_code_of_data_for_broken_data(kit: NodeKit, tmp_path: Path) -> None:
    data = tmp_path / "ward.csv"
    data.write_text(BROKEN)
    line = [str(Path(sys.executable).with_name("bouquet")), "node", str(kit.path), "--data", str(data)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 65
    assert "error: --data: " in done.stderr
    assert "Traceback" not in done.stderr


def test_good_data_are_read_into_the_cache_of_the_runs(tmp_path: Path) -> None:
    data, cache = tmp_path / "ward.csv", tmp_path / "cache"
    data.write_text("x,label\n1,0\n2,1\n")
    assert check_data(data, "ward-1", cache) == "csv, 2 training and 0 test examples of shape (1,)"
    assert len(list((cache / "datasets").iterdir())) == 1
    data.write_text("x,name,label\n1,a,0\n2,b,1\n")
    assert check_data(data, "ward-1", cache).endswith('as in column-types="name:category(a|b)"')
    assert check_data(data, "ward-1", cache, 0, "name:ignore").endswith("examples of shape (1,)")
    with pytest.raises(DataError, match=r"--data: node config: key .column-types.: .* got 'named'"):
        check_data(data, "ward-1", cache, 0, "name:ignore, named:ignore")


def test_data_that_do_not_fit_into_the_memory_and_a_reader_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "ward.csv"
    data.write_text("x,label\n" + "1,0\n" * 400_000)
    with pytest.raises(ConfigError, match=r"--max-memory 60M: reading .*ward.csv needs more"):
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
    monkeypatch.setattr(node._NodeProcess, "start", lambda self: started.append(self.kit.name))
    monkeypatch.setattr(Supervisor, "run", lambda *_: None)
    with pytest.raises(DataError):
        run_node(kit, Options(data=tmp_path / "ward.parquet"))
    assert not started
    run_node(dataclasses.replace(kit, policy=Policy(apps="any")), Options(data=tmp_path / "ward.parquet"))
    assert started == ["ward-1"]


def test_a_node_says_who_it_is_only_with_data_of_its_own(tmp_path: Path) -> None:
    lax = Policy(min_examples=0)
    own = node_config("ward-1", Options(data=tmp_path), lax)
    assert own == {"client-name": "ward-1", "data-path": str(tmp_path)}
    assert node_config("ward-1", Options(data=tmp_path, width=0.5), lax) == own | {"width": 0.5}
    with pytest.raises(ConfigError, match="--width: expected with --data"):
        check(Options(width=0.5))
    declared = {"column_types": "name:ignore"}
    typed = node_config("ward-1", Options(data=tmp_path, **declared), lax)
    assert typed == own | {"column-types": "name:ignore"}
    with pytest.raises(ConfigError, match="--column-types: expected with --data"):
        check(Options(**declared))
    assert node_config("ward-1", Options(data=tmp_path, model="2nn"), lax) == own | {"model": "2nn"}
    with pytest.raises(ConfigError, match="--model: expected with --data"):
        check(Options(model="2nn"))
    dealt = node_config("ward-1", Options(partition=(1, 3)), lax)
    assert dealt == {"partition-id": 1, "num-partitions": 3}
    assert node_config("ward-1", Options(), lax) == {}
    assert node_config("ward-1", Options(), Policy()) == {"min-examples": MIN_EXAMPLES}
    limited = Policy(min_examples=0, max_epsilon=4.0)
    assert node_config("ward-1", Options(), limited) == {"max-epsilon": 4.0, "delta": 1e-5}
    strict = Policy(min_examples=7, min_steps=3, run_paths=True)
    assert node_config("ward-1", Options(), strict) == {"min-examples": 7, "min-steps": 3, "run-paths": True}
    assert read_partition("1/3") == (1, 3)
    assert read_partition("") is None
    with pytest.raises(ConfigError, match="--partition: expected I/N"):
        read_partition("1 of 3")


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
def made(kit: NodeKit) -> Any:
    """A node whose exchange does not run and whose link is at port 9."""
    kit.state.mkdir()
    it = node._NodeProcess(kit, Options(), SimpleNamespace(add=lambda child: None))  # type: ignore[arg-type]
    it.loop.client = SimpleNamespace(heard=0.0, redial=lambda: None)  # type: ignore[assignment]
    it.probe = FakeProbe()  # type: ignore[assignment]
    return it


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the node goes by."""
    clock_s = [time.monotonic()]
    monkeypatch.setattr(node.time, "monotonic", lambda: clock_s[0])
    return clock_s


def test_it_says_once_why_it_cannot_reach_the_superlink_and_that_a_certificate_ends(
    made: Any, said: list[str], clock: list[float]
) -> None:
    made.look()
    assert (said, made.probe.looks) == ([], 1)
    made.probe.found = Found(False, "connection refused. Is the link running?")
    for _ in range(4):
        clock[0] += 1
        made.look()
    assert made.probe.looks == 2  # one every 2 s
    made.probe.found = Found(False, "no such host.")
    made.look()
    tail = f' Trying again; the address is the key "link" of {made.kit.path}/kit.toml'
    assert said == [
        f"127.0.0.1:9: connection refused. Is the link running?{tail}",
        f"127.0.0.1:9: no such host.{tail}",
    ]
    said.clear()
    made.probe.found = Found(True, "", (Finding(False, "it ends soon"),))
    for _ in range(5):
        clock[0] += 100
        made.loop.client.heard = clock[0] - 1
        made.look()
    assert said == ["connected to 127.0.0.1:9", "it ends soon"]
    looks = made.probe.looks
    assert looks == 3  # once more when it is connected: the last look may have been before the link was up
    clock[0] += timing.CERTIFICATE_LOOK_S
    made.look()
    assert made.probe.looks == looks + 1


def test_it_says_when_it_is_connected_lost_and_back(made: Any, said: list[str], clock: list[float]) -> None:
    made.look()
    assert said == []
    assert not made.kit.alive.exists()
    made.loop.client.heard = clock[0]
    made.look()
    assert made.kit.alive.exists()
    made.kit.alive.unlink()
    made.look()
    assert not made.kit.alive.exists()  # nothing new was exchanged
    clock[0] += 31
    made.look()
    made.look()
    made.loop.client.heard = clock[0]
    made.look()
    assert said == [
        "connected to 127.0.0.1:9",
        "no contact with the SuperLink for 31 s: trying again",
        "connected to 127.0.0.1:9",
    ]


def test_a_connection_is_replaced_only_where_the_superlink_answers_and_nothing_comes(
    made: Any, said: list[str], clock: list[float]
) -> None:
    """What is lost is tried again anyway: only a port that has answered for 30 s shows a dead connection."""
    redialled = []
    made.loop.client.redial = lambda: redialled.append(1)
    made.probe.found = Found(True)
    made.loop.client.heard = clock[0]
    clock[0] += 50
    made.look()
    assert not redialled  # the port answers only now
    clock[0] += timing.NODE_STALE_S + 1
    made.look()
    assert len(redialled) == 1
    made.look()
    assert len(redialled) == 1  # once
    assert "though its port is open: reconnecting" in said[-1]
    made.probe.found = Found(False, "connection refused.")
    for _ in range(3):
        clock[0] += 100
        made.look()
    assert len(redialled) == 1  # the port is closed


def test_a_key_that_is_not_let_in_for_long_is_not_accepted(
    made: Any, said: list[str], clock: list[float]
) -> None:
    """A node that was killed is admitted again after 60 s, so what takes longer has another reason."""
    made.loop.refused, made.loop.held = "Failed to activate SuperNode.", True
    made.look()
    assert said == []  # at a first start the link may not have read its key yet
    clock[0] += timing.KEYS_READ_S + 1
    made.look()
    assert said[-1].startswith("waiting for 127.0.0.1 to let ward-1 in: a link that has just started")
    clock[0] += timing.NOT_LET_IN_S + 1
    made.look()
    assert "key not accepted. Ask the operator of 127.0.0.1 to register ward-1" in said[-1]


@pytest.mark.parametrize("asked", ["query.roll_call", "train"])
def test_a_node_that_lacks_memory_for_a_runs_data_ends_and_says_so(made: Any, asked: str) -> None:
    head = Message()
    head.error.reason = "was ended: --max-memory 100M: this task needs at least 120M"
    made.loop._note_memory(head, asked)
    if asked == "train":  # a run with less to train may come
        made.look()
    else:
        with pytest.raises(ConfigError, match=r"^--max-memory 100M: .* at least 120M\. Give the node"):
            made.look()


def test_a_refusal_is_said_with_its_reason(made: Any, said: list[str]) -> None:
    made.loop.refused = "this machine's clock, 12:00 UTC, differs"
    made.look()
    assert said == ["was refused by 127.0.0.1: this machine's clock, 12:00 UTC, differs"]


@pytest.mark.parametrize("app", ["", "1.0 01234567 1.42.0"])
def test_only_a_node_that_runs_no_other_app_fetches_less_of_one(
    app: str, kit: NodeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FleetClient(kit.link, kit.ca_certificate, kit.key, "here", app=app)
    said: list[Any] = []
    monkeypatch.setattr(
        client, "_call", lambda _, headers, **fields: said.append(headers) or GetFabResponse()
    )
    client.bundle(Run(fab_hash="0"))
    assert said == [{APP_HEADER: app} if app else {}]


def test_what_a_task_tells_the_operator_is_said_once_in_a_run_and_has_an_end(
    monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    told: list[str] = []
    monkeypatch.setattr(message_loop, "say", told.append)
    for run, keys in (1, {"run-name": "first"}), (2, None):
        made.loop._runs[run] = SimpleNamespace(keys=keys)
    made.loop._tell(1, "run first leaves this node out: it differs\nround 1: no disk\n")
    made.loop._tell(1, "round 2: no disk")
    made.loop._tell(2, "round 2: no disk")
    assert told == [
        "run first leaves this node out: it differs",
        "run first: round 1: no disk",
        "run 2: round 2: no disk",
    ]
    made.loop._tell(2, "\n".join("x" * i for i in range(1000)))
    assert len(told) == 2 + message_loop.MOST_REMARKS


@pytest.mark.parametrize("ended", [True, False])
def test_an_answer_to_a_run_that_was_stopped_is_no_error(
    monkeypatch: pytest.MonkeyPatch, made: Any, ended: bool
) -> None:
    told: list[str] = []
    monkeypatch.setattr(message_loop, "say", told.append)

    def refuse(*args: object) -> None:
        raise RefusedMessageError("the SuperLink says PERMISSION_DENIED: no")

    monkeypatch.setattr(made.loop, "_order", refuse)
    made.loop.client.has_ended = lambda run: ended
    made.loop._runs[1] = SimpleNamespace(keys={"run-name": "first"})
    head = Message()
    head.metadata.run_id, head.metadata.message_id = 1, "0123456789"
    made.loop._answer(head, None)
    said = "run first has ended or was stopped; it needs no answer"
    assert told == [said if ended else "message 01234567 of run 1: the SuperLink says PERMISSION_DENIED: no"]


def test_a_refused_time_is_explained() -> None:
    with pytest.raises(NotLetInError, match="Run NTP"):
        _is_answer(CallError(S.UNAUTHENTICATED, "Invalid timestamp"), "PullMessages", 0)
    with pytest.raises(NotLetInError, match="the SuperLink says: Unknown node"):
        _is_answer(CallError(S.UNAUTHENTICATED, "Unknown node"), "PullMessages", 0)


@pytest.mark.parametrize(
    ("code", "call", "tries", "what"),
    [
        (S.UNAVAILABLE, "PushMessages", 99, "away"),
        (S.DEADLINE_EXCEEDED, "PullMessages", 99, "away"),
        (S.RESOURCE_EXHAUSTED, "PullMessages", 99, "away"),
        (S.UNKNOWN, "PushObject", TRIES - 1, "answers"),
        (S.UNKNOWN, "PushObject", TRIES, "refused"),
        (S.RESOURCE_EXHAUSTED, "PushObject", 0, "refused"),
        (S.PERMISSION_DENIED, "GetRun", 0, "refused"),
        (S.FAILED_PRECONDITION, "ConfirmMessageReceived", 0, "refused"),
    ],
)
def test_what_is_tried_again(code: S, call: str, tries: int, what: str) -> None:
    err = CallError(code, '{"code": 2004, "public_message": "No."}')
    if what == "refused":
        with pytest.raises(RefusedMessageError, match=rf"the SuperLink says {code.name}: No\."):
            _is_answer(err, call, tries)
    else:
        assert _is_answer(err, call, tries) is (what == "answers")


class Https(BaseHTTPRequestHandler):
    """The Fleet API of a SuperLink over HTTP, as far as two calls go."""

    seen: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, dict(self.headers)))
        if self.path == "/v1/fleet/activate-node":
            assert ActivateNodeRequest.FromString(body).public_key
            self.answer(200, ActivateNodeResponse(node_id=7).SerializeToString())
        else:
            self.answer(403, b'{"code": 2006, "detail": "The run has ended."}')

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


def test_the_same_calls_go_over_http(tmp_path: Path) -> None:
    provision(tmp_path / "kits", "127.0.0.1:9", ["ward-1"])
    link = read_link_kit(tmp_path / "kits" / "link")
    kit = read_node_kit(tmp_path / "kits" / "ward-1")
    with HTTPServer(("127.0.0.1", 0), Https) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(link.server_certificate, link.server_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        client = FleetClient(address, kit.ca_certificate, kit.key, "here", transport="http")
        assert client.activate() == 7
        with pytest.raises(RefusedMessageError, match=r"PERMISSION_DENIED: The run has ended\."):
            client.run(1)
        assert client.has_ended(1)
        client._node["node_id"] = 0  # it is not there to be left
        client.close()
        server.shutdown()
    path, headers = Https.seen[-1]
    assert path == "/v1/fleet/get-run"
    public = load_pem_public_key(b64decode(headers["flwr-public-key"]))
    assert isinstance(public, EllipticCurvePublicKey)
    signature, stamp = b64decode(headers["flwr-signature"]), headers["flwr-timestamp"].encode()
    public.verify(signature, stamp, ECDSA(SHA256()))


def test_whether_a_run_has_ended_is_asked_as_briefly_as_a_heartbeat(
    kit: NodeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, waits = FleetClient(kit.link, kit.ca_certificate, kit.key, "here"), []

    def fail(name: str, *, timeout_s: float | None = None, **fields: object) -> None:
        waits.append(timeout_s)
        raise RefusedMessageError("the SuperLink says INTERNAL")

    monkeypatch.setattr(client, "_call", fail)
    assert not client.has_ended(1)  # a SuperLink in trouble says nothing of the run
    assert waits == [timing.BEAT_ANSWER_S]
    client.close()


def test_heartbeats_that_wait_behind_a_large_message_get_a_connection_of_their_own(kit: NodeKit) -> None:
    """Over a slow line the SuperLink would else take the node for lost, and send it the message again."""
    made: list[Way] = []

    class Way:
        def __init__(self) -> None:
            self.calls, self.silent, self.closed = list[str](), not made, False
            self.during: Callable[[], object] = list
            made.append(self)

        def call(self, name: str, request: object, headers: object, timeout_s: float | None) -> Any:
            self.calls.append(name)
            if timeout_s is None:
                self.during()
            if self.silent and timeout_s:
                raise CallError(S.DEADLINE_EXCEEDED, "no answer")
            return SimpleNamespace(success=True, messages_list=[], run=None)

        def close(self) -> None:
            self.closed = True

    client = FleetClient(kit.link, kit.ca_certificate, kit.key, "here")
    client._transport.close()
    client._dial = Way  # type: ignore[assignment]
    client.redial()
    first = made[0]
    first.during = lambda: [client.beat(), client.beat()]
    client.run(1)  # nothing limits how long it takes
    beats = made[1]
    assert first.calls == ["GetRun", "SendNodeHeartbeat"]
    assert beats.calls == ["SendNodeHeartbeat"] * 2
    first.silent = False
    client.beat()  # nothing large is under way: it tells whether this connection is dead
    assert first.calls[2:] == ["SendNodeHeartbeat"]
    client.redial()
    assert [way.closed for way in made] == [True, True, False]
    client.close()
    assert made[2].closed


def test_no_two_calls_are_signed_with_the_same_time(kit: NodeKit) -> None:
    client = FleetClient(kit.link, kit.ca_certificate, kit.key, "here")
    stamps = [client._signed()["flwr-timestamp"] for _ in range(300)]
    assert len(set(stamps)) == len(stamps)
    client.close()


def test_a_node_that_the_superlink_no_longer_knows_activates_itself_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls for messages still work; only the heartbeat says so."""
    activated = threading.Semaphore(0)

    class Link:
        beats = 0

        def activate(self) -> int:
            activated.release()
            return 7

        def beat(self) -> None:
            self.beats += 1
            if self.beats == 1:
                raise NotLetInError("the SuperLink no longer knows this node")

        def pull(self) -> None:
            time.sleep(0.01)

        def close(self) -> None:
            pass

    monkeypatch.setattr(timing, "BEAT_PAUSE_S", 0.05)
    monkeypatch.setattr(timing, "RETRY_FIRST_S", 0.05)
    loop = MessageLoop(Link(), {False: Tasks()}, Site(), {}, 0, tmp_path / "rounds.json")  # type: ignore[arg-type]
    loop.start()
    try:
        assert activated.acquire(timeout=10)
        assert activated.acquire(timeout=10)
    finally:
        loop.close()


@pytest.mark.parametrize(("slow", "at_once"), [(False, 2), (True, 1)])
def test_on_a_slow_line_parts_are_sent_one_after_the_other(
    kit: NodeKit, monkeypatch: pytest.MonkeyPatch, slow: bool, at_once: int
) -> None:
    """The time stamp of a call that waits behind the bytes of another would be too old when it comes."""
    monkeypatch.setattr(timing, "SLOW_PART_S", 0.0 if slow else 60.0)
    client, under_way, most = FleetClient(kit.link, kit.ca_certificate, kit.key, "here"), [0], [0]

    def send(item: int) -> int:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.05)
        under_way[0] -= 1
        return -item

    assert client._each(send, list(range(6))) == [0, -1, -2, -3, -4, -5]
    assert client._each(send, []) == []
    assert most[0] == at_once
    client.close()

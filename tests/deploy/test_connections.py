"""Connections on which nothing comes: they end, and keep no node out and no file from the SuperLink."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn

from server_app.deploy.calls.fleet_transport import OPTIONS
from server_app.deploy.calls.limits import OWN_FILES, Limits, connections, raise_files
from server_app.deploy.flower import superlink
from server_app.deploy.flower.task_calls import TaskCalls
from server_app.deploy.host.host import free_port
from server_app.deploy.host.resource_limits import SlowLink
from server_app.deploy.kits.kit import FILES
from task import timing
from task.errors import ConfigError
from tests.support.fleet import Served, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
IDLE = 1200
FEW_FILES = 600  # fewer than the idle connections need
# What a client of HTTP/2 sends first: its preface and empty settings.
BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A Fleet API of a process that may open few files, and which waits 2 s instead of 20 and 60."""
    raise_files()  # both ends of all connections are in this process
    monkeypatch.setattr(timing, "HANDSHAKE_S", 2.0)
    monkeypatch.setattr(timing, "CONNECTION_IDLE_S", 2.0)
    monkeypatch.setattr(superlink, "raise_files", lambda: FEW_FILES)
    with served(tmp_path, Limits(1_000_000, 600)) as link:
        yield link


@pytest.fixture
def idle(link: Served) -> Iterator[Callable[[int, bytes], list[socket.socket]]]:
    """Open connections to the link."""
    host, _, port = link.address.rpartition(":")
    held: list[socket.socket] = []

    def open_some(count: int, first: bytes) -> list[socket.socket]:
        made = [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]
        for connection in made:
            connection.setblocking(False)
            if first:
                connection.send(first)
        held.extend(made)
        return made

    yield open_some
    for connection in held:
        connection.close()


def closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def until(found: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_a_node_gets_in_past_more_idle_connections_than_there_are_files(link: Served, idle: Any) -> None:
    """Without the bounds they would stay for two minutes, and the node outside with them."""
    before = link.peer()
    held = idle(IDLE, b"")
    assert before.pull() == []  # a connection that works is not ended for others
    node = link.peer()
    assert node.pull() == []
    assert until(lambda: all(map(closed, held)), 15), f"{sum(map(closed, held))} of {IDLE} closed"


def test_a_connection_on_which_no_call_comes_is_closed(link: Served, idle: Any) -> None:
    held = idle(50, BEGIN)
    time.sleep(0.5)
    assert not any(map(closed, held))
    assert until(lambda: all(map(closed, held)), 15)
    node = link.peer()
    time.sleep(3)  # longer than a connection may idle: the node's library connects again
    assert node.pull() == []


@pytest.mark.parametrize(("up", "down"), [(80_000, 3), (3, 80_000)])
def test_a_message_takes_as_long_as_the_line_needs(up: int, down: int) -> None:
    """A ping's answer waits behind the message; here gRPC would wait for it 1 s, else a minute."""

    class Api(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda body, _: b"x" * down if len(body) == up else b""
            )

    patience = ("grpc.http2.ping_timeout_ms", 1000)  # of two equal options gRPC takes the first
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool, [Api()], options=[*connections(FILES), patience])
    line = SlowLink(("127.0.0.1", server.add_insecure_port("127.0.0.1:0")), 20_000.0)
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{line.port}", [*OPTIONS, patience]) as channel:
        began = time.monotonic()
        assert len(channel.unary_unary("/a/b")(b"y" * up, timeout=60)) == down
        assert time.monotonic() - began > 3.5
    server.stop(grace=0).wait()
    pool.shutdown()


def test_a_limit_of_the_files_is_raised_and_leaves_files_to_the_link() -> None:
    script = (
        "import resource; from server_app.deploy.calls.limits import raise_files; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 900)); "
        "print(raise_files(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "900 (900, 900)"
    for files in (100, 900, FILES):
        most = dict(connections(files))["grpc.max_allowed_incoming_connections"]
        assert 0 < most <= max(files - OWN_FILES, files // 2) < files
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_files() == (FILES if hard == resource.RLIM_INFINITY else min(hard, FILES))


def test_a_server_that_is_made_elsewhere_is_not_served_without_bounds(link: Served) -> None:
    with (
        pytest.raises(ConfigError, match="connections are not limited"),
        superlink.bounded(link.limiter),
    ):
        pass
    assert superlink.servers.grpc is grpc  # and nothing stays patched


def test_a_connection_to_the_http_port_on_which_no_request_comes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "FIRST_REQUEST_S", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    async def go() -> tuple[bytes, bytes, float]:
        port = free_port()
        config = uvicorn.Config(
            app, port=port, http=superlink._Http, ws="none", lifespan="off", log_level="error"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        silent, quiet = await asyncio.open_connection("127.0.0.1", port)
        asking, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: link\r\n\r\n")
        answer = await asking.readuntil(b"here")
        end = await asyncio.wait_for(silent.read(), 10)
        took = time.monotonic() - began
        server.should_exit = True
        for end_of in (quiet, writer):
            end_of.close()
            await end_of.wait_closed()
        await serving
        return answer, end, took

    answer, end, took = asyncio.run(go())
    assert (answer[-4:], end) == (b"here", b"")
    assert 0.4 < took < 5


def test_a_signal_ends_the_http_server_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    config = uvicorn.Config(app, port=free_port(), lifespan="off", log_level="error")
    server = superlink._Server(config)
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    assert until(lambda: server.started, 10)
    server.handle_exit(signal.SIGTERM, None)
    serving.join(10)
    assert not serving.is_alive()


@pytest.mark.parametrize(("kept_s", "connections"), [(30.0, 1), (0.1, 2)])
def test_the_warm_parents_calls_share_a_connection(
    kept_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "KEPT_S", kept_s)
    seen = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.add(self.client_address)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with closing(TaskCalls(f"127.0.0.1:{server.server_port}")) as calls:
            for _ in range(2):
                assert calls.acquire(b"secret") == ""
                time.sleep(0.3)
        server.shutdown()
    assert len(seen) == connections

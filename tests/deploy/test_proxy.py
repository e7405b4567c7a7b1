"""The proxy of the environment on a node's way to its link: whether gRPC uses it, and what is said."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from server_app.deploy.host.proxy import Proxy, proxy_for, without_proxies
from server_app.deploy.node.probe import look
from task import timing

LINK = "10.9.8.7"
URL = "http://127.0.0.1:9"
CASES: list[tuple[dict[str, str], str, bool]] = [
    ({}, LINK, False),
    ({"grpc_proxy": URL}, LINK, True),
    ({"https_proxy": URL}, LINK, True),
    ({"http_proxy": URL}, LINK, True),
    ({"HTTPS_PROXY": URL}, LINK, False),
    ({"https_proxy": "", "http_proxy": URL}, LINK, False),
    ({"https_proxy": "https://127.0.0.1:9"}, LINK, False),
    ({"https_proxy": "127.0.0.1:9"}, LINK, False),
    ({"https_proxy": URL, "no_proxy": f"a, {LINK}"}, LINK, False),
    ({"https_proxy": URL, "NO_PROXY": LINK}, LINK, True),
    ({"https_proxy": URL, "no_proxy": "10.0.0.0/8"}, LINK, False),
    ({"https_proxy": URL, "no_proxy": "*"}, LINK, True),
    ({"https_proxy": URL, "no_proxy": LINK, "no_grpc_proxy": ""}, LINK, True),
    ({"https_proxy": URL, "no_grpc_proxy": LINK}, LINK, False),
    ({"https_proxy": URL, "no_proxy": ".Example.invalid"}, "fl.example.invalid", False),
    ({"https_proxy": URL, "no_proxy": "ple.invalid"}, "fl.example.invalid", True),
    ({"https_proxy": URL, "no_proxy": "127.0.0.0/8"}, "localhost", True),
]
DIAL = """
import sys, grpc
channel = grpc.secure_channel(sys.argv[1] + ":9092", grpc.ssl_channel_credentials())
try:
    grpc.channel_ready_future(channel).result(timeout=float(sys.argv[2]))
except grpc.FutureTimeoutError:
    pass
"""


def bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}


class Server:
    """A proxy that gives one answer; `heard` is what came."""

    def __init__(self, answer: bytes) -> None:
        self.heard: list[bytes] = []
        self._answer, self._socket = answer, socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with ExitStack() as held:  # a call that gets no answer stays open without a word
            while True:
                try:
                    call, _ = self._socket.accept()
                except OSError:
                    return
                held.enter_context(call)
                with suppress(OSError):
                    self.heard.append(call.recv(1000))
                    call.sendall(self._answer)
                if self._answer:
                    call.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()


@pytest.fixture(params=[b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found = Server(request.param)
    yield found
    found.close()


@pytest.mark.parametrize(("environment", "host", "through"), CASES)
def test_which_proxy_is_on_the_way(environment: dict[str, str], host: str, through: bool) -> None:
    assert (proxy_for(host, environment) is not None) == through


@pytest.mark.parametrize("case", [2, 4, 5, 8, 9, 12])
def test_grpc_itself_goes_that_way(case: int, server: Server) -> None:
    environment, host, through = CASES[case]
    ours = {
        name: value.replace(URL, f"http://127.0.0.1:{server.port}") for name, value in environment.items()
    }
    call = subprocess.Popen(
        [sys.executable, "-c", DIAL, host, "30" if through else "2"],
        env=bare() | ours,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        if server.heard or call.poll() is not None:
            break
        threading.Event().wait(0.05)
    call.kill()
    call.wait()
    assert bool(server.heard) == through


def test_the_password_of_a_proxy_is_used_and_never_said(server: Server, tmp_path: Path) -> None:
    proxy = proxy_for(LINK, {"https_proxy": f"http://joe:s%40cret@127.0.0.1:{server.port}"})
    assert proxy is not None
    found = look((LINK, 9092), tmp_path / "ca.crt", proxy=proxy)
    assert found.trouble.startswith(
        f"through the proxy https_proxy=http://***@127.0.0.1:{server.port} of the environment"
    )
    assert f"set no_proxy={LINK}" in found.trouble
    assert "or unset https_proxy" in found.trouble
    assert "the proxy refuses: HTTP/1.1 407" in found.trouble
    assert not any(secret in found.trouble for secret in ("joe", "cret", proxy.login))
    assert b"CONNECT 10.9.8.7:9092 HTTP/1.1\r\n" in server.heard[0]
    assert b"Proxy-Authorization: Basic am9lOnNAY3JldA==\r\n" in server.heard[0]


def test_a_dead_and_a_silent_proxy_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PROBE_S", 0.5)
    silent = Server(b"")
    dead = look((LINK, 9092), tmp_path / "ca.crt", proxy=Proxy("http_proxy", "127.0.0.1", 9))
    assert "http_proxy=http://127.0.0.1:9 " in dead.trouble
    assert "cannot be reached: connection refused" in dead.trouble
    found = look((LINK, 9092), tmp_path / "ca.crt", proxy=Proxy("http_proxy", "127.0.0.1", silent.port))
    assert "the proxy does not answer: timed out" in found.trouble
    silent.close()


@pytest.mark.parametrize("more", [{}, {"no_proxy": "a.b"}, {"no_grpc_proxy": "a.b"}, {"NO_PROXY": "a.b"}])
def test_a_machines_calls_to_itself_use_none(more: dict[str, str]) -> None:
    environment = {"https_proxy": URL, **more}
    kept = environment | without_proxies(environment)
    assert all(proxy_for(host, kept) is None for host in ("127.0.0.1", "localhost", "::1"))
    assert proxy_for(LINK, kept) is not None
    assert all("a.b" in kept[name] for name in more)

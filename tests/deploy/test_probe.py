"""Why a SuperLink cannot be reached: every cause, with a server that has it."""

from __future__ import annotations

import datetime as dt
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server_app.deploy.host.host import free_port
from server_app.deploy.kits import certificates
from server_app.deploy.kits.provision import provision
from server_app.deploy.node import probe
from server_app.deploy.node.probe import Found, Probe
from task import timing


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "kits"
    provision(out, "127.0.0.1:9092", ["ward"])
    return out


@contextmanager
def served(link: Path, protocol: str = "h2") -> Iterator[int]:
    """Serve TLS with a link's certificate, as gRPC does, or without a protocol of its own; give the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(link / "server.crt", link / "server.key")
    if protocol:
        context.set_alpn_protocols([protocol])

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
                with context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=5)


def look(port: int, kits: Path, host: str = "127.0.0.1") -> Found:
    return probe.look((host, port), kits / "ward" / "ca.crt")


def test_a_link_that_is_well_gives_no_trouble(kits: Path) -> None:
    with served(kits / "link") as port:
        assert look(port, kits) == Found(True)


def test_a_port_where_nobody_listens(kits: Path) -> None:
    found = look(free_port(), kits)
    assert not found.answers
    assert found.trouble.startswith(
        "connection refused. Is the link running, or still starting? Is the port right?"
    )


def test_a_host_that_nobody_knows(kits: Path) -> None:
    found = look(9092, kits, "nobody.invalid")
    assert not found.answers
    assert found.trouble.startswith('no such host: the name "nobody.invalid" cannot be resolved')


def test_a_host_that_answers_nothing(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog: the kernel drops what comes then, as a firewall does."""
    monkeypatch.setattr(timing, "PROBE_S", 0.5)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        found = look(address[1], kits)
        for one in waiting:
            one.close()
    assert found == Found(False, probe.SILENT)


def test_what_listens_and_says_nothing_and_what_speaks_no_tls(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "PROBE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = look(silent.getsockname()[1], kits)
        assert found.answers
        assert found.trouble.startswith("TLS handshake failed: timeout")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=speak, daemon=True).start()
        found = look(other.getsockname()[1], kits)
        assert found.answers
        assert found.trouble.startswith(
            "TLS handshake failed: the program that listens there does not speak TLS"
        )


def test_a_certificate_of_another_federation_and_one_of_another_host(kits: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", "127.0.0.1:9092", ["ward"])
    with served(tmp_path / "other" / "link") as port:
        trouble = look(port, kits).trouble
    assert "ward/ca.crt did not sign the link's certificate" in trouble
    with served(kits / "link") as port:
        other_name = Found(True, f"TLS handshake failed: {NOT_FOR}")
        assert (
            probe._shake_hands(
                socket.create_connection(("127.0.0.1", port)),
                ("other.host", port),
                kits / "ward" / "ca.crt",
                "grpc",
            )
            == other_name
        )


NOT_FOR = "the link's certificate is not for other.host: use the address that it was issued for."


@pytest.mark.parametrize(
    ("made_days_ago", "days", "fails", "says"),
    [
        (
            40,
            39,
            True,
            r"TLS handshake failed: the link's certificate expired on 20\d\d-.* UTC: ask the operator",
        ),
        (
            -5,
            9,
            True,
            r"TLS handshake failed: the link's certificate is not valid yet by this machine's clock",
        ),
        (0, 20, False, r"the link's certificate expires on 20\d\d-.* UTC, in (19|20) days"),
    ],
)
def test_certificates_that_have_expired_soon_do_or_are_of_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_days_ago: int, days: int, fails: bool, says: str
) -> None:
    kits = tmp_path / "kits"
    provision(kits, "127.0.0.1:9092", ["ward"])
    then = certificates.now() - dt.timedelta(days=made_days_ago)
    monkeypatch.setattr(certificates, "now", lambda: then)
    provision(kits, renew=True, days=days)
    monkeypatch.undo()
    with served(kits / "link") as port:
        found = look(port, kits)
    said = found.trouble if fails else found.findings[0].text
    assert re.match(says, said), said
    assert bool(found.trouble) is fails


def test_a_look_that_takes_long_is_trouble_before_it_ends(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that for a name does, which has no time limit."""
    over = threading.Event()
    monkeypatch.setattr(probe, "look", lambda *_: Found(True) if over.wait(30) else Found(False))
    monkeypatch.setattr(timing, "PROBE_SLOW_S", 0.2)
    slow = Probe(("host", 1), kits / "ward" / "ca.crt")
    slow.look()
    assert slow.found is None
    time.sleep(0.3)
    slow.look()  # no second one
    assert slow.found == Found(False, probe.SILENT)
    over.set()
    until = time.monotonic() + 10
    while slow.found != Found(True):
        assert time.monotonic() < until, slow.found
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("port_speaks", "node_speaks"), [("h2", "http"), ("", "grpc"), ("", "http"), ("h2", "grpc")]
)
def test_a_port_of_the_other_transport_is_named(kits: Path, port_speaks: str, node_speaks: str) -> None:
    with served(kits / "link", port_speaks) as port:
        found = probe.look(("127.0.0.1", port), kits / "ward" / "ca.crt", node_speaks)
    fits = (node_speaks == "grpc") == (port_speaks == "h2")
    assert found.trouble == ("" if fits else probe.OTHER_TRANSPORT[node_speaks])

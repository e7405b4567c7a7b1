"""The link's Fleet API over HTTP, with TLS: what the way over HTTP refuses, bounds and passes on."""

from __future__ import annotations

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message

from server_app.deploy.calls import fleet_relay as relaying
from server_app.deploy.calls import inbox
from server_app.deploy.calls.limits import FRAME_BYTES, SMALL_BYTES, Limits
from server_app.deploy.host.host import HOLD_HEADER
from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from task import timing
from task.errors import ConfigError
from tests.support.fleet import Peer, Served, arrays, over_http, served

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MAX_RATE = 4  # replies a minute
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(timing, "SLOWED_S", 0.2)
    with served(tmp_path, Limits(2 * FRAME_BYTES, MAX_RATE)) as link, over_http(link, tmp_path):
        yield link


def signed(peer: Peer, at: str = "", **more: str) -> dict[str, str]:
    """Return the headers of a call of the peer's."""
    stamp = at or now().isoformat()
    return {
        "flwr-public-key": b64encode(peer.key).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(sign_message(peer.keys[0], stamp.encode())).decode(),
        **more,
    }


def post(link: Served, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    assert link.http is not None
    return link.http._client.post(path, content=body, headers=headers)


def opened(link: Served) -> ssl.SSLSocket:
    """Return a connection on which nothing was said."""
    host, port = link.http_address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=20))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer(connection: ssl.SSLSocket) -> bytes:
    """Return what comes until the other end closes."""
    found = b""
    try:
        while some := connection.recv(65536):
            found += some
    except (ConnectionError, ssl.SSLError):
        pass
    return found


def head(headers: dict[str, str], length: int, path: str = PUSH) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: it", f"content-length: {length}"]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def test_a_call_is_that_of_flowers_own_http_client(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    got = post(link, PULL, PullMessagesRequest(node=node.node).SerializeToString(), signed(node))
    assert (got.status_code, got.headers["content-type"]) == (200, "application/protobuf")
    (message,) = PullMessagesResponse.FromString(got.content).messages_list
    assert message.metadata.message_id == order


def test_refusals_are_those_of_flowers_own_http_api(link: Served, caplog: pytest.LogCaptureFixture) -> None:
    node, stranger = link.peer(), link.peer(registered=False)
    body = PullMessagesRequest(node=node.node).SerializeToString()

    def refused(status: int, text: str, headers: dict[str, str], path: str = PULL) -> dict[str, Any]:
        got = post(link, path, body, headers)
        table = json.loads(got.content)
        assert got.status_code == status, got.text
        assert text in table["detail"]
        return table

    refused(
        401, "Invalid signature", signed(node) | {"flwr-signature": signed(link.peer())["flwr-signature"]}
    )
    assert "PullMessages refused: key or time not accepted" in caplog.text
    refused(401, "Missing authentication metadata", {})
    refused(401, "Invalid timestamp", signed(node, "2020-01-01T00:00:00+00:00"))
    refused(401, "not registered", signed(stranger))
    refused(401, "base64", signed(node) | {"flwr-signature": "?"})
    # In bytes it would be another's word than the one in base64.
    refused(401, "Missing authentication metadata", {"flwr-public-key-bin": "x", "flwr-signature-bin": "y"})
    headers = signed(node)
    assert post(link, PULL, body, headers).status_code == 200
    refused(503, "sent again", headers)
    refused(404, "Fleet API", signed(node), "/v1/fleet/no-such-call")
    refused(404, "Fleet API", signed(node), "/v1/control/list-runs")
    with pytest.raises(grpc.RpcError) as caught:
        stranger.activate()
    told = json.loads(str(caught.value))
    assert (caught.value.code().name, told["code"]) == ("FAILED_PRECONDITION", 2004)
    assert "activate" in told["detail"]


def test_a_call_that_is_too_large_is_refused_before_it_is_sent(link: Served) -> None:
    node = link.peer()
    with opened(link) as connection:
        connection.sendall(head(signed(node), FRAME_BYTES + 1))
        assert b" 413 " in (got := answer(connection))
        assert f"at most {FRAME_BYTES} bytes".encode() in got
    with opened(link) as connection:
        connection.sendall(head(signed(node), 0).replace(b"content-length: 0", b"transfer-encoding: chunked"))
        assert b" 411 " in answer(connection)


def test_a_large_body_is_read_only_from_a_node_that_is_here_and_signed_it(link: Served) -> None:
    node, stranger = link.peer(), link.peer(registered=False)
    with opened(link) as connection:
        connection.sendall(head(signed(stranger), SMALL_BYTES + 1))
        assert b" 503 " in answer(connection)
    with opened(link) as connection:
        forged = signed(node) | {"flwr-signature": signed(stranger)["flwr-signature"]}
        connection.sendall(head(forged, SMALL_BYTES + 1))
        assert b" 503 " in answer(connection)
    order = link.order(node.id)
    node.push(node.pull()[0], arrays(4 * SMALL_BYTES))
    assert not link.replies(order)[0].HasField("error")


def test_a_node_holds_a_few_large_bodies_at_a_time(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "CONCURRENT", 1)
    node = link.peer()
    with opened(link) as first, opened(link) as second:
        first.sendall(head(signed(node) | {"expect": "100-continue"}, SMALL_BYTES + 1))
        assert b" 100 " in first.recv(65536)  # its body is waited for
        second.sendall(head(signed(node), SMALL_BYTES + 1))
        assert b"at most 1 at a time" in answer(second)
    link.order(node.id)
    message = node.pull()[0]

    def pushed() -> bool:
        try:
            node.push(message, arrays(2 * SMALL_BYTES))
        except grpc.RpcError:
            return False
        return True

    until(pushed)  # the place is free again


def test_who_sends_slowly_is_cut_off(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "FIRST_REQUEST_S", 0.6)
    node = link.peer()
    with opened(link) as silent, opened(link) as headers, opened(link) as body:
        body.sendall(head(signed(node), 100))
        began = time.monotonic()
        for letter in head({}, 100)[:12]:  # one byte after the other is not enough
            try:
                headers.sendall(bytes([letter]))
            except OSError:
                break
            time.sleep(0.1)
        assert b" 408 " in answer(body)
        assert (answer(headers), answer(silent)) == (b"", b"")
        assert time.monotonic() - began < 5


def test_headers_without_end_are_cut_off(link: Served) -> None:
    with opened(link) as connection:
        try:
            for _ in range(100):
                connection.sendall(b"GET / HTTP/1.1\r\n" if not _ else b"a: " + 1000 * b"x" + b"\r\n")
        except OSError:
            pass
        assert b"200" not in answer(connection)[:20]


@pytest.mark.parametrize("handshake", [False, True])
def test_idle_connections_keep_nobody_out(
    handshake: bool, link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there is room for: the oldest idle ones end, and a held call does not."""
    listener, node, other = link.http_listener, link.peer(), link.peer()
    monkeypatch.setattr(listener, "most", 6)
    body = PullMessagesRequest(node=node.node).SerializeToString()
    with opened(link) as held:
        held.sendall(head(signed(node, **{HOLD_HEADER: "30"}), len(body), PULL) + body)
        until(lambda: bool(listener.serving))
        host, port = link.http_address.split(":")
        others = []
        for _ in range(15):
            others.append(opened(link) if handshake else socket.create_connection((host, int(port)), 20))
        with httpx.Client(verify=False, base_url=f"https://{link.http_address}") as client:
            asked = PullMessagesRequest(node=other.node).SerializeToString()

            def answered() -> bool:
                try:
                    return client.post(PULL, content=asked, headers=signed(other)).status_code == 200
                except httpx.TransportError:  # the listener took one of the others after it; nodes try again
                    return False

            until(answered)
        assert len([one for one in listener._open.values() if one.fileno() >= 0]) <= 6
        assert listener.serving  # the held one
        for one in others:
            one.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flwr-timestamp", b"2020\x7f"),
        ("flwr-timestamp", b"2020\t1"),
        ("bouquet-app", "ä".encode("latin-1")),
        ("flwr-public-key", b"\x7f"),
        ("flwr-a!b", b"x"),
        ("bouquet-#", b"x"),
        ("bouquet-~|", b"\x7f"),
    ],
)
def test_a_header_that_grpc_does_not_take_is_refused_without_a_traceback(
    name: str, value: bytes, link: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    node = link.peer()
    body = PullMessagesRequest(node=node.node).SerializeToString()
    given = {k: v for k, v in signed(node).items() if k != name}
    with opened(link) as connection:
        start = head(given, len(body), PULL).removesuffix(b"\r\n")
        connection.sendall(start + name.encode() + b": " + value + b"\r\n\r\n" + body)
        said = answer(connection)
    assert said.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400")), said[:100]
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_a_held_call_is_held_and_ends_with_its_connection(link: Served) -> None:
    node = link.peer()

    def held() -> int:
        return inbox.HELD_CALLS - link.delivery.arrivals._free

    call = node.hold(20)
    until(lambda: held() == 1)
    order = link.order(node.id)
    (message,) = call.result().messages_list
    assert message.metadata.message_id == order
    node.push(message, arrays(100))
    body = PullMessagesRequest(node=node.node).SerializeToString()
    with opened(link) as connection:
        connection.sendall(head(signed(node, **{HOLD_HEADER: "20"}), len(body), PULL) + body)
        until(lambda: held() == 1)
    until(lambda: held() == 0)


def test_a_flood_of_replies_is_refused(link: Served) -> None:
    node = link.peer()
    for _ in range(MAX_RATE):
        link.order(node.id)
        node.push(node.pull()[0], arrays(100))
    link.order(node.id)
    (got,) = node.pull()
    with pytest.raises(grpc.RpcError, match="4 replies a minute") as caught:
        node.push(got, arrays(100))
    assert caught.value.code().name == "RESOURCE_EXHAUSTED"


def test_a_kit_names_a_port_of_its_own_for_http(tmp_path: Path) -> None:
    provision(tmp_path, "host.example:9092", ["ward-1"])
    assert read_link_kit(tmp_path / "link").fleet_http == ""
    config = tmp_path / "link" / "kit.toml"
    text = config.read_text()
    config.write_text(text.replace("# fleet-http", "fleet-http"))
    assert read_link_kit(tmp_path / "link").fleet_http == "0.0.0.0:9095"
    for port, what in ((9092, "no other key names"), (8000, "no other key names"), ("x", "HOST:PORT")):
        config.write_text(text + f'fleet-http = "0.0.0.0:{port}"\n')
        with pytest.raises(ConfigError, match=f"fleet-http.*{what}"):
            read_link_kit(tmp_path / "link")

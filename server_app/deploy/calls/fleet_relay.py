"""The link's Fleet API over HTTP: ``python -m server_app.deploy.calls.fleet_relay KIT``.

Stock SuperNodes speak HTTP only from Flower 1.40 on. This process makes each of their calls one of the link's
gRPC Fleet API, with the key, the time stamp and the signature of the node: so all checks, limits and long
polls are there, once. What HTTP adds is bounded here, before anything is kept in memory:

* headers of `HEADER_BYTES` at most, within `timing.FIRST_REQUEST_S` of the connection;
* a body of `FRAME_BYTES` at most, as its length says, at `SLOWEST` or faster. One of more than `SMALL_BYTES`
  is read only from a key that signed this call and whose earlier calls the SuperLink accepted, `CONCURRENT`
  at a time; to others the answer is "try again", since this process may be younger than the node;
* `CONNECTIONS` at a time; one whose other end takes nothing for `timing.CONNECTION_IDLE_S` ends. A further
  one takes the place of the oldest on which no call is being served, whether its TLS handshake is over or
  not: idle connections cannot keep nodes out.
"""

import asyncio
import json
import re
import resource
import socket
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import grpc
import h11
import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from server_app.deploy.calls.fleet_transport import NAME, OPTIONS, STATUSES, TYPE, S
from server_app.deploy.calls.limits import CONCURRENT, FRAME_BYTES, SMALL_BYTES
from server_app.deploy.calls.protocol import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    is_signed,
    read_public_key,
)
from server_app.deploy.host.processes import end_with_parent
from server_app.deploy.kits.kit import LinkKit, read_link_kit
from server_app.deploy.kits.parsing import read_address
from task import timing
from task.flower.services import FLEET
from task.text import plain

HEADER_BYTES = 16 * 1024
CONNECTIONS = 1000
SLOWEST = 8 * 1024  # bytes/s of a body
OWN_FILES = 256  # in addition; half of them are for connections that are being closed
HTTP_STATUSES = {status: number for number, status in STATUSES.items()}
HTTP_STATUSES |= dict.fromkeys((S.UNAVAILABLE, S.CANCELLED, S.ABORTED), 503)
IN_BASE64 = {name.removesuffix("-bin"): name for name in (PUBLIC_KEY_HEADER, SIGNATURE_HEADER)}
IN_GRPC = re.compile("[a-z0-9_.-]+", re.ASCII)  # names that gRPC accepts
PREFIXES = ("flwr-", "bouquet-")  # of the forwarded headers


Address = tuple[Any, ...]  # of a connection's other end


class _Listener(socket.socket):
    """A listening socket with room for a newcomer: see the module.

    `serving` has the addresses of connections on which a call is being served.
    """

    def __init__(self, listening: socket.socket, most: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.most, self.serving = most, set[Address]()
        self._open: dict[Address, socket.socket] = {}  # the oldest first
        self._ending: list[socket.socket] = []  # shut down, and to be closed by the event loop

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if there are too many, another one ends.

        Raises:
            BlockingIOError: None is there, or many wait to be closed.
        """
        self._ending = [one for one in self._ending if one.fileno() >= 0]
        if len(self._ending) >= OWN_FILES // 2:
            raise BlockingIOError
        made, address = super().accept()
        if len(self._open) >= self.most:
            self._open = {at: one for at, one in self._open.items() if one.fileno() >= 0}
        if len(self._open) >= self.most:
            idle = next((at for at in self._open if at not in self.serving), None)
            ending = made if idle is None else self._open.pop(idle)
            with suppress(OSError):  # the other end is gone
                ending.shutdown(socket.SHUT_RDWR)
            self._ending.append(ending)
        if made.fileno() >= 0 and made not in self._ending:
            self._open[address[:2]] = made
        return made, address


class AnswerError(Exception):
    """A call that is answered with an error: HTTP's status, and Flower's ``code`` and ``extra``, if any."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        self.answer = JSONResponse({"detail": text, **more}, status, {"connection": "close"})


class Served(Protocol):
    """An application on such a port."""

    serving: set[Address]  # connections on which a call is being served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""


class Relay:
    """Serves the Fleet API over HTTP.

    Args:
        channel: To the gRPC Fleet API.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._calls = {FLEET.http_path(n): channel.unary_unary(FLEET.grpc_path(n)) for n in FLEET.calls}
        self._accepted: set[object] = set()  # keys
        self._large: Counter[object] = Counter()  # bodies that are here, by key
        self.serving: set[Address] = set()  # connections on which a call is being served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        try:
            answer: Response = Response(await self._serve(scope, receive), media_type=TYPE)
        except AnswerError as err:
            answer = err.answer
        await answer(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive) -> bytes:
        call = self._calls.get(scope["path"])
        if call is None or scope["method"] != "POST":
            raise AnswerError(404, "expected a POST of a call of the Fleet API, /v1/fleet/...; got another")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in scope["headers"]}
        metadata = _metadata(headers)
        key = metadata.get(PUBLIC_KEY_HEADER)
        with self._room(size := _size(headers), key, metadata):
            body = await read_body(receive, size)
            self.serving.add(client := tuple(scope["client"]))
            try:
                answer = await _unless_gone(call(body, metadata=list(metadata.items())), receive)
            except grpc.aio.AioRpcError as err:
                if err.code() == S.UNAUTHENTICATED:
                    self._accepted.discard(key)
                raise _refusal(err) from err
            finally:
                self.serving.discard(client)
        self._accepted.add(key)
        return answer

    @contextmanager
    def _room(self, size: int, key: object, metadata: dict[str, str | bytes]) -> Iterator[None]:
        """Make room for a body, while its call lasts."""
        if size <= SMALL_BYTES:
            yield
            return
        if key not in self._accepted or not _is_signed(metadata) or self._large[key] >= CONCURRENT:
            raise AnswerError(
                503,
                f"expected at most {SMALL_BYTES} bytes, or a signed call of a connected node, at "
                f"most {CONCURRENT} at a time; got {size} bytes. Try again",
            )
        self._large[key] += 1
        try:
            yield
        finally:
            self._large[key] -= 1


def _metadata(headers: dict[str, str]) -> dict[str, str | bytes]:
    """Return the headers of a call as gRPC has them."""
    found: dict[str, str | bytes] = {}
    try:
        for name, value in headers.items():
            if name in IN_BASE64:
                found[IN_BASE64[name]] = b64decode(value, validate=True)
            elif name.startswith(PREFIXES) and not name.endswith("-bin"):
                if not (IN_GRPC.fullmatch(name) and value.isascii() and value.isprintable()):
                    raise ValueError
                found[name] = value
    except ValueError:
        raise AnswerError(
            401,
            f"header {plain(name)}: expected letters, digits and -_. in the name and printable ASCII in the "
            "value, of a key or signature base64",
        ) from None
    return found


def _size(headers: dict[str, str]) -> int:
    size = int(headers.get("content-length", -1))
    if size < 0:
        raise AnswerError(411, "expected the header Content-Length; got none")
    if size > FRAME_BYTES:
        raise AnswerError(413, f"expected at most {FRAME_BYTES} bytes of a call; got {size}")
    return size


def _is_signed(metadata: dict[str, Any]) -> bool:
    stamp, signature = metadata.get(TIMESTAMP_HEADER), metadata.get(SIGNATURE_HEADER)
    if not stamp or not signature:
        return False
    return is_signed(read_public_key(metadata[PUBLIC_KEY_HEADER]), stamp.encode("ascii"), signature)


async def read_body(receive: Receive, size: int) -> bytes:
    """Return the body of a call.

    Raises:
        AnswerError: It comes too slowly, or not at all.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(timing.FIRST_REQUEST_S + size / SLOWEST):
            while len(body) < size:
                message = await receive()
                if message["type"] != "http.request":
                    raise AnswerError(408, "the connection ended")
                body += message["body"]
    except TimeoutError:
        raise AnswerError(408, f"expected {SLOWEST} bytes/s or more of a call; got fewer") from None
    return bytes(body)


async def _unless_gone(call: Any, receive: Receive) -> bytes:
    """Return the answer of a call; it is cancelled if the connection ends before."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        call.cancel()

    watch = asyncio.create_task(gone())
    try:
        return bytes(await call)
    except asyncio.CancelledError:
        if not watch.done():
            raise
        raise AnswerError(408, "the connection ended") from None
    finally:
        watch.cancel()
        call.cancel()


def _refusal(err: grpc.aio.AioRpcError) -> AnswerError:
    """Return an error as Flower's own HTTP Fleet API would have answered it."""
    text = str(err.details())
    try:
        flowers = json.loads(text)
        text, more = flowers["public_message"], {"code": flowers["code"]}
        if flowers.get("public_details"):
            more["extra"] = flowers["public_details"]
    except (ValueError, KeyError, TypeError):
        more = {}
    return AnswerError(HTTP_STATUSES.get(err.code(), 500), text, **more)


class FirstRequest:
    """Of a protocol of uvicorn: a connection is closed if no request comes on it soon."""

    loop: asyncio.AbstractEventLoop
    timeout_keep_alive_handler: Any
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request as uvicorn waits for a further one."""
        super().connection_made(transport)  # type: ignore[misc]
        self.timeout_keep_alive_task = self.loop.call_later(
            timing.FIRST_REQUEST_S, self.timeout_keep_alive_handler
        )


class _Connection(FirstRequest, H11Protocol):
    """A connection that is closed unless the headers of its next request are here in time."""

    def _unset_keepalive_if_required(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the first bytes of the headers are not enough
            super()._unset_keepalive_if_required()


def serve(relay: Served, address: str, **more: Any) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server that is yet to be run, and its socket.

    Args:
        relay: What it serves.
        address: HOST:PORT that it listens on.
        more: Options of uvicorn: certificate and key.
    """
    host, port = read_address(address, "address")
    config = uvicorn.Config(
        relay, host, port, http=_Connection, ws="none", lifespan="off", loop="asyncio", access_log=False,
        log_level="error", server_header=False, timeout_keep_alive=int(timing.CONNECTION_IDLE_S),
        timeout_graceful_shutdown=1, h11_max_incomplete_event_size=HEADER_BYTES, **more,
    )  # fmt: skip
    listener = _Listener(config.bind_socket(), CONNECTIONS)
    relay.serving = listener.serving
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * timing.CONNECTION_IDLE_S))
    return uvicorn.Server(config), listener


async def run(kit: LinkKit) -> None:
    """Serve a link's nodes until a signal ends it."""
    host, port = read_address(kit.fleet, "fleet")
    target = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, kit.fleet.rsplit(":", 1)[0])
    options = [*OPTIONS, (NAME, read_address(kit.address, "address")[0])]
    credentials = grpc.ssl_channel_credentials(kit.ca_certificate.read_bytes())
    async with grpc.aio.secure_channel(f"{target}:{port}", credentials, options) as channel:
        await serve_link(Relay(channel), kit, kit.fleet_http)


async def serve_link(served: Served, kit: LinkKit, address: str) -> None:
    """Serve an application with a link's certificate until a signal ends it."""
    certificate, key = str(kit.server_certificate), str(kit.server_key)
    server, listener = serve(served, address, ssl_certfile=certificate, ssl_keyfile=key)
    await server.serve([listener])


def main(run: Callable[[LinkKit], Coroutine[Any, Any, None]]) -> None:
    """Run a port of the link whose kit the command line names, with room for its connections."""
    end_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = CONNECTIONS + OWN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if most < 0 else min(files, most), most))
    asyncio.run(run(read_link_kit(sys.argv[1])))


if __name__ == "__main__":
    main(run)

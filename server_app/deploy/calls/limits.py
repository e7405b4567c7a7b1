"""Limits on the Fleet API, applied before a request is decoded.

Flower checks a signature on each call's time stamp and that the key belongs to the node id of the request.
It has no limit on size, count or rate. `RateLimiter` stands before its check of the node and counts by key:

* a frame is at most `FRAME_BYTES` (gRPC refuses a larger one while it arrives);
* the frames of one reply add up to at most ``max-reply`` bytes; a reply that grows larger is dropped and an
  error that says so is put in its place, so that the round does not wait for the rest of it;
* replies come at most ``max-rate`` times a minute, other calls at `CALLS_PER_S`: a faster caller is delayed,
and refused if that is not enough, or if `SLOWED_CALLS` wait already;
* at most `CONCURRENT` calls of one node are served at a time, one of them held (`fleet.Fleet.PullMessages`);
* a captured call that is sent again is refused as long as its time stamp would be accepted.

Connections need no key, so `connections` bounds them: the number of file descriptors, each with a
timeout for its handshake and for idleness. A call lasts as long as its bytes flow: one that sends nothing is
ended by the kernel once what was sent to it is not acknowledged, and by gRPC's keepalive.

`Fleet`, the servicer behind it, refuses replies in another node's name, replies of too many objects, and the
activation of a node by anyone who does not hold its key.
"""

import json
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from server_app.deploy.calls.protocol import (
    PUBLIC_KEY_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    header,
    read_public_key,
)
from server_app.deploy.host.host import PLACE_HEADER
from server_app.deploy.kits.certificates import node_fingerprint
from server_app.deploy.kits.kit import FILES
from task import timing
from task.storage.files import write_json

logger = logging.getLogger("flwr")

FRAME_BYTES = 16 * 1024**2  # Flower cuts arrays into objects of 5 MB; each is a frame
SMALL_BYTES = 64 * 1024  # of a frame from an unregistered sender
MAX_OBJECTS = 20_000  # in one reply: records, arrays and their parts
PLACE_LETTERS = 64
CONCURRENT = 8
SLOWED_CALLS = 200  # waiting at a time, of the thousand threads of Flower's gRPC server
CALLS_PER_S = 100.0
NEVER_MS = 2**31 - 1  # gRPC's largest number, which means "without limit"
STALE_S = TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE + 5  # no older time stamp is accepted
OWN_FILES = 256  # of them for everything but the nodes' connections: database, logs, HTTP

PUSH_MESSAGES, PUSH_OBJECT, ACTIVATE = "PushMessages", "PushObject", "ActivateNode"


@dataclass(frozen=True)
class Limits:
    """What one node may send.

    Attributes:
        max_reply: Bytes of a reply.
        max_rate: Replies in a minute.
    """

    max_reply: int
    max_rate: int


@dataclass
class _CallBucket:
    """Tokens that come at a steady rate and are taken one by each call."""

    rate: float  # tokens/s
    size: float
    tokens: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tokens = self.size

    def take(self) -> float:
        """Take a token; return in how many seconds it is available."""
        now = time.monotonic()
        self.tokens = min(self.size, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1 - timing.SLOWED_S * self.rate:
            return timing.SLOWED_S + 1  # refused calls cost none
        self.tokens -= 1
        return max(0.0, -self.tokens / self.rate)


class Sender:
    """What is known of one registered key: its calls, and the reply that it is uploading."""

    def __init__(self, key: bytes, name: str, limits: Limits, heard: float) -> None:
        self.fingerprint = fingerprint(key)
        self.name = name
        self.lock = threading.Lock()
        self.calls = 0
        self.replies = _CallBucket(limits.max_rate / 60, max(limits.max_rate, 1))
        self.others = _CallBucket(CALLS_PER_S, 10 * CALLS_PER_S)
        self.left = limits.max_reply  # bytes that may still come; its upload may be older than this process
        self.seen: dict[str, float] = {}  # time stamps of its calls, and when they came
        self.heard = heard  # when its last call came; before the first, when this process began
        self.place = ""  # where its last call came from, as it said

    def __str__(self) -> str:
        """Return how the log calls it."""
        return f"node {self.name} (key {self.fingerprint})"

    def is_replay(self, timestamp: str) -> bool:
        """Return whether a call with this time stamp came before, and remember it."""
        now = time.monotonic()
        with self.lock:
            while self.seen and now - next(iter(self.seen.values())) > STALE_S:
                del self.seen[next(iter(self.seen))]
            if timestamp in self.seen:
                return True
            self.seen[timestamp] = now
            return False


class NodeNotes:
    """The nodes' last reports of themselves, a word each; on the disk, to survive a kill.

    Args:
        path: JSON file; None = nothing is kept. One that cannot be read or written costs no more than that a
            node which is killed together with the SuperLink waits for `timing.DEAD_NODE_S`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._of: dict[str, str] = {}
        if path is not None and path.exists():
            try:
                self._of = {str(key): str(place) for key, place in json.loads(path.read_bytes()).items()}
            except (OSError, ValueError, AttributeError) as err:
                logger.warning("%s: expected the nodes' reports, in JSON: %s; replacing the file", path, err)

    def of(self, key: str) -> str:
        """Return what a node said, "" if nothing is known."""
        return self._of.get(key, "")

    def all(self) -> list[tuple[str, str]]:
        """Return each node and what it said."""
        return list(self._of.items())

    def keep(self, key: str, place: str) -> None:
        """Write down what a node says."""
        with self._lock:
            self._of[key] = place
            if self._path is not None:
                try:
                    write_json(self._path, self._of)
                except OSError as err:
                    logger.warning("%s cannot be written: %s", self._path, err)


class RefusedCallError(Exception):
    """A call that is not served; the node gets the status and the text."""

    def __init__(self, text: str, status: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED) -> None:
        super().__init__(text)
        self.status = status


class RateLimiter(grpc.ServerInterceptor):  # type: ignore[misc]
    """Counts and limits calls by key. It must stand before Flower's authentication.

    Args:
        limits: Of each node.
        node_of: Returns the id of the node with a public key, None if there is none.
        name_of: Returns the name of a node.
        too_large: Called with node id and text when a reply outgrew its limit.
        places: What nodes said before of where they are; None = nothing is, nor is kept.
    """

    def __init__(
        self,
        limits: Limits,
        node_of: Callable[[bytes], int | None],
        name_of: Callable[[int], str] = str,
        too_large: Callable[[int, str], None] = lambda node, text: None,
        places: NodeNotes | None = None,
    ) -> None:
        self.limits = limits
        self.too_large = too_large
        self._node_of, self._name_of = node_of, name_of
        self._senders: dict[int, Sender] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._slowed = 0
        self._said: dict[tuple[str, str], float] = {}
        self._places = places or NodeNotes()

    def sender(self, node: int, key: bytes = b"") -> Sender:
        """Return what is known of a registered node."""
        with self._lock:
            if node not in self._senders:
                self._senders[node] = Sender(key, self._name_of(node), self.limits, self._began)
                self._senders[node].place = self._places.of(self._senders[node].fingerprint)
            return self._senders[node]

    def say(self, node: int, text: str) -> None:
        """Log what a node did, but not the same all the time."""
        self._say(str(self.sender(node)), text)

    def begin_reply(self, node: int) -> None:
        """Let a node upload the objects of a reply that was accepted."""
        sender = self.sender(node)
        with sender.lock:
            sender.left = self.limits.max_reply

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, with the checks before it."""
        handler = continuation(handler_call_details)
        method = str(handler_call_details.method).rpartition("/")[2]
        if handler is None:
            return None
        metadata = handler_call_details.invocation_metadata
        key = header(metadata, PUBLIC_KEY_HEADER, bytes) or b""
        stamp = header(metadata, TIMESTAMP_HEADER, str) or ""
        place = header(metadata, PLACE_HEADER, str) or ""
        if handler.request_deserializer is None:  # Flower has not accepted the signature
            self._say(fingerprint(key) if key else "none", f"{method} refused: key or time not accepted")
            return handler

        def serve(raw: bytes, context: grpc.ServicerContext) -> Any:
            try:
                with self._checked(method, key, stamp, len(raw), place):
                    return handler.unary_unary(handler.request_deserializer(raw), context)
            except RefusedCallError as err:
                context.abort(err.status, str(err))

        # Without a deserializer the call comes as bytes.
        return grpc.unary_unary_rpc_method_handler(serve, response_serializer=handler.response_serializer)

    @contextmanager
    def _checked(self, method: str, key: bytes, stamp: str, size: int, place: str) -> Iterator[None]:
        node = self._node_of(key)
        if node is None:
            self._say(fingerprint(key), f"{method} refused: the key is not registered, or revoked")
            if method != ACTIVATE or size > SMALL_BYTES:
                raise RefusedCallError("this key is not registered", grpc.StatusCode.UNAUTHENTICATED)
            yield  # Flower's own refusal has a code that nodes know
            return
        sender, came = self.sender(node, key), time.monotonic()
        if sender.is_replay(stamp):
            self._say(str(sender), f"{method} refused: the same call was received before")
            raise RefusedCallError(
                "a call is accepted once; this one was sent again", grpc.StatusCode.ABORTED
            )
        with sender.lock:
            wait_s = (sender.replies if method == PUSH_MESSAGES else sender.others).take()
            busy = sender.calls >= CONCURRENT
            if wait_s <= timing.SLOWED_S and not busy:
                sender.calls += 1
        if busy:
            self._say(str(sender), f"{method} refused: more than {CONCURRENT} calls at a time")
            raise RefusedCallError(f"expected at most {CONCURRENT} calls at a time; got more")
        rate = f"{self.limits.max_rate} replies a minute, {CALLS_PER_S:g} other calls a second"
        if wait_s > timing.SLOWED_S:
            self._say(str(sender), f"{method} refused: more than {rate}")
            raise RefusedCallError(f"expected at most {rate}; got more")
        try:
            if wait_s:
                self._say(str(sender), f"slowed down: more than {rate}")
                self._slow_down(sender, method, wait_s)
            if method == PUSH_OBJECT:
                self._count(node, sender, size)
            yield
            sender.heard = max(sender.heard, came)  # a long poll says nothing about the time since then
            if sender.place != (place := place[:PLACE_LETTERS]):
                sender.place = place
                self._places.keep(sender.fingerprint, place)
        finally:
            with sender.lock:
                sender.calls -= 1

    def _slow_down(self, sender: Sender, method: str, wait_s: float) -> None:
        """Let a call wait, if not too many wait already: others need the threads."""
        with self._lock:
            may = self._slowed < SLOWED_CALLS
            self._slowed += may
        if not may:
            self._say(str(sender), f"{method} refused: {SLOWED_CALLS} calls wait already")
            raise RefusedCallError("too many calls wait already")
        try:
            time.sleep(wait_s)
        finally:
            with self._lock:
                self._slowed -= 1

    def _count(self, node: int, sender: Sender, size: int) -> None:
        """Count the bytes of a reply, and end it if they are too many."""
        with sender.lock:
            before = sender.left
            sender.left = before - size
        if sender.left >= 0:
            return
        most = self.limits.max_reply
        text = f"expected at most {most} bytes of a reply (link kit, max-reply); got more"
        if before >= 0:  # once a reply
            logger.warning("%s: reply refused: %s", sender, text)
            self.too_large(node, text)
        raise RefusedCallError(text)

    def _say(self, who: str, text: str) -> None:
        """Log a line, but repeat it rarely: a refused caller could fill the log."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get((who, text), -timing.SAME_LINE_S) < timing.SAME_LINE_S:
                return
            if len(self._said) > 1000:
                self._said.clear()
            self._said[who, text] = now
        logger.warning("fleet: %s: %s", who, text)


def raise_files() -> int:
    """Raise this process's limit of open files to `FILES`, or the system's maximum; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def connections(files: int) -> list[tuple[str, int]]:
    """Return the options of a gRPC server that bound its connections.

    Args:
        files: How many files its process may open.
    """
    return [
        ("grpc.max_allowed_incoming_connections", max(files - OWN_FILES, files // 2)),
        ("grpc.server_handshake_timeout_ms", int(1000 * timing.HANDSHAKE_S)),
        ("grpc.max_connection_idle_ms", int(1000 * timing.CONNECTION_IDLE_S)),
        # gRPC pings the sender of a message, to measure the line's capacity. The answer waits behind
        # that message: on a slow line for longer than the minute after which gRPC ends the connection.
        ("grpc.http2.ping_timeout_ms", NEVER_MS),
    ]


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key, PEM as a call carries it; "unreadable" if it is none."""
    try:
        public = read_public_key(key)
        return node_fingerprint(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    except ValueError:
        return "unreadable"

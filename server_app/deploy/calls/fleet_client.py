"""A node's calls to the Fleet API: signed protobufs, retried while the SuperLink is unavailable.

The messages are Flower's, but not their handling: no object is opened here, and nothing is stored.
"""

import datetime
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
)
from google.protobuf.message import DecodeError

from server_app.deploy.calls.fleet_transport import TRANSPORTS, CallError, S, Transport
from server_app.deploy.calls.protocol import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    object_ids,
    write_public_key,
)
from server_app.deploy.host.host import APP_HEADER, HOLD_HEADER, PLACE_HEADER
from task import timing
from task.errors import ConfigError
from task.flower.services import FLEET, Protobuf
from task.wire.parts import PARTS_HEADER, batches, pack, unpack

WRONG_TIME = "Invalid timestamp"  # how a SuperLink refuses a time that a node signed
BEAT = "SendNodeHeartbeat"
AT_ONCE = 2  # objects that are fetched or sent at a time
TRIES = 5  # of a call to a SuperLink that answers with an error of its own
K = TypeVar("K")
T = TypeVar("T")


class NotLetInError(Exception):
    """The SuperLink refuses this node: for its key, its clock, or another process of the same node."""

    def __init__(self, text: str, *, held: bool = False) -> None:
        super().__init__(text)
        self.held = held  # whether it may believe that another process of this node is online


class RefusedMessageError(Exception):
    """The SuperLink no longer accepts or sends a message, such as one of a run that has ended."""


class FleetClient:
    """The Fleet API of one SuperLink, for one node; its methods may be called by several threads.

    Args:
        address: HOST:PORT.
        authority: Certificate file of the authority that vouches for the SuperLink.
        key: File of the node's private key.
        place: Said with each call: a SuperLink lets a process in at once that takes the place of one that
            was killed there.
        name: That the SuperLink's certificate must have; "" = the address.
        transport: "grpc", or "http" for a SuperLink of Flower 1.40 or later without gRPC.
        app: Which app the node runs, if it runs no other; a link that has another turns it away.

    Raises:
        ConfigError: The key cannot be read.
    """

    def __init__(
        self,
        address: str,
        authority: Path,
        key: Path,
        place: str,
        name: str = "",
        transport: str = "grpc",
        app: str = "",
    ) -> None:
        self._place, self._app = place, {APP_HEADER: app} if app else {}
        self._dial = partial(TRANSPORTS[transport], address, authority.read_bytes(), name)
        self._key = _read_key(key)
        self._public = write_public_key(self._key.public_key())
        self._node = {"node_id": 0}
        self._lock = threading.Lock()
        self._stamped = datetime.datetime.min.replace(tzinfo=datetime.UTC)
        self._has_parts = False  # whether the SuperLink takes and gives several objects in one call
        self.heard = 0.0  # time.monotonic() of the last good answer
        self._closed = threading.Event()
        self._transport: Transport = self._dial()
        self._beats: Transport | None = None  # of the heartbeats, once one was delayed by a large message
        self._large: list[str] = []  # calls under way whose messages may be large

    def redial(self) -> None:
        """Replace the connections by a new one; waiting calls are repeated on it."""
        old, self._transport, self._beats = [self._transport, self._beats], self._dial(), None
        for transport in filter(None, old):
            transport.close()

    def close(self) -> None:
        """Deactivate this node at the SuperLink, and end all calls."""
        self._closed.set()
        if self._node["node_id"]:
            try:
                request = FLEET.request("DeactivateNode", node_id=self._node["node_id"])
                self._transport.call("DeactivateNode", request, self._signed(), timing.RECONNECT_S)
            except CallError:
                pass  # it is unavailable, and will notice that this node is silent
        for transport in filter(None, [self._transport, self._beats]):
            transport.close()

    def activate(self) -> int:
        """Activate this node; return its id at the SuperLink.

        Raises:
            NotLetInError: It is refused.
        """
        interval, key = timing.BEAT_INTERVAL_S, self._public
        try:
            answer = self._call(
                "ActivateNode", headers=self._app, public_key=key, heartbeat_interval=interval
            )
            self._node = {"node_id": answer.node_id}
        except RefusedMessageError as err:
            raise NotLetInError(str(err), held=S.FAILED_PRECONDITION.name in str(err)) from err
        return self._node["node_id"]

    def beat(self) -> None:
        """Send a heartbeat.

        Behind a large message over a slow line it may wait until the SuperLink believes that this node is
        lost. So after one without an answer, those during large messages have a connection of their own.

        Raises:
            NotLetInError: The SuperLink no longer knows this node.
        """
        node, interval = self._node, timing.BEAT_INTERVAL_S
        if not self._call(
            BEAT, timeout_s=timing.BEAT_ANSWER_S, node=node, heartbeat_interval=interval
        ).success:
            raise NotLetInError("the SuperLink no longer knows this node")

    def pull(self) -> tuple[Protobuf, Protobuf] | None:
        """Return a message without its content; None if there is none, at once or after a long poll.

        At a Bouquet link this is a long poll of at most `timing.HOLD_S`.

        Raises:
            NotLetInError: See `beat`.
        """
        hold = {HOLD_HEADER: f"{timing.HOLD_S:g}"}
        answer = self._call("PullMessages", headers=hold, timeout_s=timing.HELD_ANSWER_S, node=self._node)
        if not answer.messages_list:
            return None
        return answer.messages_list[0], answer.message_object_trees[0]

    def run(self, run: int, timeout_s: float | None = None) -> Protobuf:
        """Return the description of a run."""
        return self._call("GetRun", timeout_s=timeout_s, node=self._node, run_id=run).run

    def has_ended(self, run: int) -> bool:
        """Return whether a run has ended, so that its messages need no answer.

        The heartbeats wait for this, so it waits no longer for an answer than they do.
        """
        try:
            self.run(run, timing.BEAT_ANSWER_S)
        except RefusedMessageError as err:
            return S.PERMISSION_DENIED.name in str(err)
        return False

    def bundle(self, run: Protobuf) -> bytes:
        """Return the app of a run as protobuf `Fab`, or only the part that a node with its own app needs."""
        which = {"hash_str": run.fab_hash, "run_id": run.run_id}
        answer = self._call("GetFab", headers=self._app, node=self._node, **which)
        return bytes(answer.fab.SerializeToString())

    def objects(self, run: int, tree: Protobuf) -> list[tuple[str, bytes]]:
        """Return the content of a message: ids and contents.

        Raises:
            RefusedMessageError: One is not there.
        """
        names = object_ids(tree)
        first = self._object(run, tree.object_id, {PARTS_HEADER: "1"})
        found = unpack(first)
        self._has_parts = found is not None
        found = {tree.object_id: first} if found is None else found
        left = [name for name in names if name not in found]
        found |= zip(left, self._each(lambda name: self._object(run, name), left), strict=True)
        return [(name, found[name]) for name in names]

    def _object(self, run: int, name: str, headers: Mapping[str, str] | None = None) -> bytes:
        until = time.monotonic() + timing.PARTS_S
        while True:
            answer = self._call("PullObject", headers=headers, node=self._node, run_id=run, object_id=name)
            if answer.object_found and answer.object_available:
                return bytes(answer.object_content)
            if not answer.object_found or time.monotonic() > until:
                raise RefusedMessageError(f"object {name[:8]} of the message is not at the SuperLink")
            self._closed.wait(timing.PART_FIRST_S)

    def confirm(self, run: int, name: str) -> None:
        """Confirm that a message has arrived completely; a Bouquet link keeps it until it is answered."""
        if self._has_parts:
            return
        self._call("ConfirmMessageReceived", node=self._node, run_id=run, message_object_id=name)

    def push(self, head: Protobuf, tree: Protobuf, contents: Callable[[str], bytes], took_s: float) -> None:
        """Send a reply, with the seconds that the app took.

        Raises:
            RefusedMessageError: The SuperLink does not want it.
        """
        answer = self._call(
            "PushMessages", node=self._node, messages_list=[head], message_object_trees=[tree],
            clientapp_runtime_list=[took_s],
        )  # fmt: skip

        def send(batch: list[tuple[str, bytes]]) -> None:
            (name, content), headers = batch[0], {}
            if len(batch) > 1:
                content, headers = pack(batch), {PARTS_HEADER: "1"}
            stored = self._call(
                "PushObject", headers=headers, node=self._node, run_id=head.metadata.run_id, object_id=name,
                object_content=content, session_id=answer.session_id,
            ).stored  # fmt: skip
            if not stored:
                raise RefusedMessageError("the SuperLink did not store a part of the reply")

        wanted = set(answer.objects_to_push)
        parts = ((name, contents(name)) for name in object_ids(tree) if name in wanted)
        self._each(send, list(batches(parts)) if self._has_parts else [[part] for part in parts])

    def _each(self, call: Callable[[K], T], items: list[K]) -> list[T]:
        """Call for each item, for several at a time if the line is fast: else time stamps arrive too late."""
        began = time.monotonic()
        first = [call(item) for item in items[:1]]
        if time.monotonic() - began > timing.SLOW_PART_S:
            return first + [call(item) for item in items[1:]]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return first + list(pool.map(call, items[1:]))

    def _signed(self, **more: str) -> dict[str, str | bytes]:
        """Return the headers of a call; no two have the same time, as each is accepted once."""
        with self._lock:
            now = datetime.datetime.now(tz=datetime.UTC)
            self._stamped = max(now, self._stamped + datetime.timedelta(microseconds=1))
            if self._stamped - now > datetime.timedelta(seconds=1):
                self._stamped = now  # the clock was set back
            stamp = self._stamped.isoformat()
        return {
            PUBLIC_KEY_HEADER: self._public, TIMESTAMP_HEADER: stamp, PLACE_HEADER: self._place, **more,
            SIGNATURE_HEADER: self._key.sign(stamp.encode("ascii"), ECDSA(hashes.SHA256())),
        }  # fmt: skip

    def _call(
        self,
        name: str,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Protobuf:
        """Call the SuperLink with these fields of the request; retry while it is unavailable."""
        request = FLEET.request(name, **fields)
        tries, pause_s = 0, float(timing.RETRY_FIRST_S)
        while True:
            transport = (self._beats if name == BEAT and self._large else None) or self._transport
            if timeout_s is None:
                self._large.append(name)
            try:
                answer = transport.call(name, request, self._signed(**(headers or {})), timeout_s)
            except CallError as err:
                if self._closed.is_set():
                    raise RefusedMessageError("this node ends") from err
                if name == BEAT and err.status == S.DEADLINE_EXCEEDED:
                    self._beats = self._beats or self._dial()
                tries += _is_answer(err, name, tries)
            else:
                self.heard = time.monotonic()
                return answer
            finally:
                if timeout_s is None:
                    self._large.remove(name)
            self._closed.wait(pause_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, timing.RETRY_LONGEST_S)


def _is_answer(err: CallError, name: str, tries: int) -> bool:
    """Return whether the SuperLink itself failed, and not only the way to it.

    Raises:
        NotLetInError: It refuses this node.
        RefusedMessageError: It refuses this call, or has failed too often.
    """
    if err.status == S.UNAUTHENTICATED:
        raise NotLetInError(_reason(str(err))) from err
    if err.status in (S.UNAVAILABLE, S.DEADLINE_EXCEEDED, S.CANCELLED, S.ABORTED):
        return False
    if err.status == S.RESOURCE_EXHAUSTED and not name.startswith("Push"):
        return False
    if err.status in (S.UNKNOWN, S.INTERNAL, S.DATA_LOSS) and tries < TRIES:
        return True
    raise RefusedMessageError(f"the SuperLink says {err.status.name}: {_plain(str(err))}") from err


def _plain(details: str) -> str:
    """Return the text of an error, which may be in JSON."""
    try:
        table = json.loads(details)
        return str(table.get("public_message") or table["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return details


def _reason(details: str) -> str:
    if details != WRONG_TIME:
        return f"the SuperLink says: {_plain(details)}"
    return (
        f"this machine's clock, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC, differs from the "
        f"SuperLink's: it may be at most {SYSTEM_TIME_TOLERANCE} s ahead and {TIMESTAMP_TOLERANCE} s behind. "
        "Set it right. Run NTP"
    )


def read_reply(
    head: bytes, tree: bytes, objects: Collection[str], order: Protobuf
) -> tuple[Protobuf, Protobuf]:
    """Return head and tree of a reply, as the process of a task wrote them.

    Raises:
        ValueError: They are no reply to this order, or some of its objects are missing.
    """
    what = "the ClientApp's process wrote something that is not a reply"
    try:
        read = FLEET.request("PushMessages")
        (reply := read.messages_list.add()).ParseFromString(head)
        (parts := read.message_object_trees.add()).ParseFromString(tree)
    except DecodeError as err:
        raise ValueError(f"{what}: {err}") from None
    asked, given = order.metadata, reply.metadata
    expected = (asked.run_id, asked.dst_node_id, asked.src_node_id, asked.message_id, parts.object_id)
    got = (given.run_id, given.src_node_id, given.dst_node_id, given.reply_to_message_id, given.message_id)
    if got != expected:
        raise ValueError(f"{what}: expected run, from, to, message and object {expected}; got {got}")
    if missing := set(object_ids(parts)).difference(objects):
        raise ValueError(f"{what}: {len(missing)} parts of it are missing")
    return reply, parts


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm) as err:
        raise ConfigError(f"{path}: expected a private key in OpenSSH's format: {err}") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected a key of an elliptic curve; got {type(key).__name__}")
    return key

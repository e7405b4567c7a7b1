"""A node that speaks the Fleet API itself, so that it can say what no SuperNode would."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.grpc import create_channel
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

CALL_S = 30.0
BEAT_S = 30.0
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


def read_keys(path: str | Path) -> Keys:
    """Return private and public key of a node's kit."""
    private = load_ssh_private_key(Path(path).read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return private, private.public_key()


def new_keys() -> Keys:
    """Return a new pair of keys, which nobody has registered."""
    private = ec.generate_private_key(ec.SECP384R1())
    return private, private.public_key()


class Signer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Signs calls as a node does, or otherwise.

    Attributes:
        shift_s: Added to the time that is signed.
        again: Metadata of an earlier call, sent instead of new ones.
        last: Metadata of the last call.
        without: Headers to leave out.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.shift_s = 0.0
        self.again: list[Any] | None = None
        self.last: list[Any] = []
        self.without: set[str] = set()
        self.signature: bytes | None = None

    def intercept_unary_unary(
        self, continuation: Callable[..., grpc.Call], client_call_details: Any, request: object
    ) -> grpc.Call:
        """Add key, time and signature to a call."""
        stamp = (now() + datetime.timedelta(seconds=self.shift_s)).isoformat()
        signature = self.signature or sign_message(self.keys[0], stamp.encode("ascii"))
        mine = [
            (PUBLIC_KEY_HEADER, public_key_to_bytes(self.keys[1])),
            (TIMESTAMP_HEADER, stamp),
            (SIGNATURE_HEADER, signature),
        ]
        signed = self.again or [(name, value) for name, value in mine if name not in self.without]
        self.last = signed
        metadata = [*(client_call_details.metadata or []), *signed]
        return continuation(client_call_details._replace(metadata=metadata), request)


class RawNode:
    """A connection to the Fleet API with a key.

    Args:
        address: HOST:PORT.
        certificates: File of the root certificates; "" = plaintext.
        keys: Private and public key.
    """

    def __init__(self, address: str, certificates: str, keys: Keys) -> None:
        self.signer = Signer(keys)
        roots = Path(certificates).read_bytes() if certificates else None
        version = RuntimeVersionClientInterceptor(component_name="SuperNode")
        self.channel = create_channel(address, roots is None, roots, interceptors=[version, self.signer])
        self.stub = FleetStub(self.channel)
        self.public = public_key_to_bytes(keys[1])
        self.node = Node()

    def activate(self, public: bytes = b"") -> int:
        """Say that the node is here; return its number."""
        request = ActivateNodeRequest(public_key=public or self.public, heartbeat_interval=BEAT_S)
        self.node = Node(node_id=self.stub.ActivateNode(request, timeout=CALL_S).node_id)
        return int(self.node.node_id)

    def register(self) -> None:
        """Enrol itself, as a node does where keys need not be registered."""
        self.stub.RegisterNode(RegisterNodeFleetRequest(public_key=self.public), timeout=CALL_S)

    def look(self, node: Node | None = None) -> None:
        """Ask for orders and take none."""
        self.stub.PullMessages(PullMessagesRequest(node=node or self.node), timeout=CALL_S)

    def deactivate(self) -> None:
        """Say that it leaves."""
        self.stub.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id), timeout=CALL_S)

    def beat(self) -> None:
        """Say that it is still there."""
        self.stub.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=BEAT_S), timeout=CALL_S
        )

    def pull(self) -> Message | None:
        """Return the next order with its content; None if there is none."""
        response = self.stub.PullMessages(PullMessagesRequest(node=self.node), timeout=CALL_S)
        if not response.messages_list:
            return None
        head, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        objects = {}
        for part in dict.fromkeys(t.object_id for t in iterate_object_tree(tree)):
            request = PullObjectRequest(node=self.node, run_id=head.metadata.run_id, object_id=part)
            while not (found := self.stub.PullObject(request, timeout=CALL_S)).object_available:
                if not found.object_found:
                    return None  # given up since
                time.sleep(0.05)  # the ServerApp pushes a message before its parts
            objects[part] = found.object_content
        order = inflate_object_from_contents(tree.object_id, objects)
        assert isinstance(order, Message)
        order.metadata.__dict__["_message_id"] = head.metadata.message_id
        return order

    def push(self, reply: Message, *, head: Message | None = None, most_bytes: int = 0) -> int:
        """Send a reply as a SuperNode does; return how many bytes were sent.

        Args:
            reply: What to send.
            head: Sent as its head in its place.
            most_bytes: Stop after so many; 0 = send all.
        """
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        wanted, session = self.push_head(head or remove_content_from_message(reply), tree)
        parts = get_all_nested_objects(reply)
        contents = ((i, parts[i].deflate()) for i in parts if i in wanted)
        return self.push_parts(reply.metadata.run_id, session, contents, most_bytes)

    def push_head(self, head: Message, tree: ObjectTree) -> tuple[set[str], str]:
        """Send the head of a reply; return which parts are wanted, and the session."""
        request = PushMessagesRequest(
            node=self.node, messages_list=[message_to_proto(head)], message_object_trees=[tree],
            clientapp_runtime_list=[0.1],
        )  # fmt: skip
        response = self.stub.PushMessages(request, timeout=CALL_S)
        return set(response.objects_to_push), response.session_id

    def push_parts(
        self, run: int, session: str, contents: Iterable[tuple[str, bytes]], most_bytes: int = 0
    ) -> int:
        """Send parts of a reply; return how many bytes were sent."""
        sent = 0
        for part, content in contents:
            if most_bytes and sent >= most_bytes:
                break
            self.stub.PushObject(
                PushObjectRequest(
                    node=self.node, run_id=run, object_id=part, object_content=content, session_id=session
                ),
                timeout=CALL_S,
            )
            sent += len(content)
        return sent


def outcome(call: Callable[[], Any]) -> str:
    """Return how a call ended: "ok", or the status and what was said."""
    try:
        call()
    except grpc.RpcError as err:
        return f"{err.code().name}: {err.details()}"
    return "ok"

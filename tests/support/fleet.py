"""A Fleet API as the link serves it, in this process, with nodes that do what a test says."""

from __future__ import annotations

import atexit
import importlib
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from socket import socket
from typing import Any
from unittest.mock import patch

import grpc
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.runtime import runtime_handlers
from uvicorn import Server

from server_app.deploy.calls.cache import Tally
from server_app.deploy.calls.fleet_relay import Relay, serve
from server_app.deploy.calls.fleet_transport import CallError, HttpTransport
from server_app.deploy.calls.limits import Limits, NodeNotes, RateLimiter
from server_app.deploy.flower.delivery import Delivery
from server_app.deploy.flower.economy import economise
from server_app.deploy.flower.fleet import CheckedFleet
from server_app.deploy.flower.fleet_delivery import Fleet
from server_app.deploy.flower.objects import economise_trees
from server_app.deploy.flower.records import Records
from server_app.deploy.flower.replies import confirm_reply, pull_replies
from server_app.deploy.flower.superlink import bounded
from server_app.deploy.host.host import APP_HEADER, HOLD_HEADER, PLACE_HEADER, free_port
from server_app.deploy.kits.certificates import (
    make_authority,
    make_key,
    make_server_certificate,
    private_pem,
)
from tests.faults.rawnode import Signer
from tests.support.asgi import listening

stock: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")


@dataclass
class Peer:
    """Somebody with a key who talks to a Fleet API."""

    stub: Any
    key: bytes
    keys: Any = None  # private and public
    id: int = 0
    sent: list[Any] = field(default_factory=list)  # the calls, with their metadata

    @property
    def node(self) -> Node:
        return Node(node_id=self.id)

    def activate(self, key: bytes | None = None, place: str = "", app: str = "") -> int:
        request = ActivateNodeRequest(public_key=key or self.key, heartbeat_interval=30)
        metadata = [(name, text) for name, text in ((PLACE_HEADER, place), (APP_HEADER, app)) if text] or None
        self.id = int(self.stub.ActivateNode(request, metadata=metadata).node_id)
        return self.id

    def pull(self) -> list[Any]:
        """Return the messages that the node is given."""
        return list(self.stub.PullMessages(PullMessagesRequest(node=self.node)).messages_list)

    def hold(self, seconds: float | str) -> Any:
        """Ask for messages, and let the link hold the call; return its future."""
        metadata = [(HOLD_HEADER, str(seconds))]
        return self.stub.PullMessages.future(PullMessagesRequest(node=self.node), metadata=metadata)

    def pull_object(self, run: int, object_id: str) -> bytes | None:
        """Return an object, None if there is none for the node."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=object_id)
        found = self.stub.PullObject(request)
        return bytes(found.object_content) if found.object_found else None

    def confirm(self, order: Any) -> None:
        self.stub.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.node,
                run_id=order.metadata.run_id,
                message_object_id=order.metadata.message_id,
            )
        )

    def push(
        self, order: Any, content: RecordDict, *, src: int | None = None, parts: int | None = None
    ) -> Any:
        """Answer an order, with the first `parts` of the objects; return what the head was answered."""
        reply, objects = answer_to(order, content, src or self.id)
        head = self.push_head(reply)
        for object_id in list(head.objects_to_push)[:parts]:
            self.push_object(order.metadata.run_id, head.session_id, object_id, objects[object_id])
        return head

    def push_head(self, reply: Message) -> Any:
        """Push a reply without its objects; return what is answered."""
        with no_object_id_recompute():
            return self.stub.PushMessages(
                PushMessagesRequest(
                    node=self.node, messages_list=[bare(reply)], message_object_trees=[get_object_tree(reply)]
                )
            )

    def push_object(self, run: int, session: str, object_id: str, content: bytes) -> bool:
        request = PushObjectRequest(
            node=self.node, run_id=run, session_id=session, object_id=object_id, object_content=content
        )
        return bool(self.stub.PushObject(request).stored)


def answer_to(order: Any, content: RecordDict, src: int) -> tuple[Message, dict[str, bytes]]:
    """Return a reply, and its objects."""
    given = order.metadata
    metadata = Metadata(
        run_id=given.run_id, message_id="", src_node_id=src, dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=given.message_id, group_id=given.group_id, created_at=now().timestamp(),
        ttl=given.created_at + given.ttl - now().timestamp(), message_type=given.message_type,
    )  # fmt: skip
    reply = make_message(metadata=metadata, content=content)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        return reply, {i: o.deflate() for i, o in get_all_nested_objects(reply).items()}


def bare(message: Message) -> Any:
    """Return a message without its content, as it is pushed."""
    head = make_message(metadata=message.metadata, error=Error(0)) if message.has_error() else message
    proto = message_to_proto(make_message(metadata=head.metadata, content=RecordDict()))
    proto.metadata.message_id = message.metadata.message_id
    return proto


@dataclass
class Served:
    """A running Fleet API."""

    state: SqlLinkState
    delivery: Delivery
    limiter: RateLimiter
    address: str
    run: int
    task: Any
    token: str
    http: HttpTransport | None = None  # by which peers call; None = over gRPC
    http_address: str = ""
    http_listener: Any = None
    sums: tuple[Tally, ...] = ()
    _rest: list[tuple[str, str, bytes]] = field(default_factory=list)

    def peer(self, *, registered: bool = True, name: str = "ward") -> Peer:
        """Return somebody with a new key; a registered one is activated."""
        private, public = generate_key_pairs()
        key = public_key_to_bytes(public)
        if registered:
            self.state.create_node(NOOP_FLWR_AID, "", key, 30, name=name)
        sent: list[Any] = []
        steps = [Signer((private, public)), _Recorder(sent), *([_OverHttp(self.http)] if self.http else [])]
        any_size = [("grpc.max_receive_message_length", -1)]  # as Flower's nodes: the app is above 4 MiB
        channel = grpc.intercept_channel(grpc.insecure_channel(self.address, any_size), *steps)
        peer = Peer(FleetStub(channel), key, (private, public), sent=sent)
        if registered:
            peer.activate()
        return peer

    def order(
        self, node: int, content: RecordDict | None = None, ttl: float = 600.0, held_back: int = 0
    ) -> str:
        """Send a message to a node, as the ServerApp does; return its id.

        Args:
            node: To which.
            content: Its content; without one, some of its own.
            ttl: Seconds that it is good for.
            held_back: How many of its objects `rest` is to send.
        """
        content = content or RecordDict({"config": ConfigRecord({"n": now().timestamp()})})
        metadata = Metadata(
            run_id=self.run, message_id="", src_node_id=SUPERLINK_NODE_ID, dst_node_id=node,
            reply_to_message_id="", group_id="1", created_at=now().timestamp(), ttl=ttl, message_type="train",
        )  # fmt: skip
        message = make_message(metadata=metadata, content=content)
        message.metadata.__dict__["_message_id"] = message.object_id
        session = self.state.start_session(self.run)
        with no_object_id_recompute():
            stored, missing = self.state.store_message_and_object_tree(
                message, get_object_tree(message), session
            )
            assert stored
            objects = get_all_nested_objects(message)
            parts = [(object_id, objects[object_id].deflate()) for object_id in missing]
        sent = len(parts) - held_back
        self._rest = [(session, *part) for part in parts[sent:]]
        for object_id, part in parts[:sent]:
            assert self.state.store_object(self.run, session, object_id, part)
        return message.metadata.message_id

    def rest(self) -> None:
        """Send the objects of the last order that were held back."""
        for session, object_id, part in self._rest:
            assert self.state.store_object(self.run, session, object_id, part)

    def replies(self, *orders: str) -> list[Any]:
        """Return the replies that the ServerApp gets."""
        pull = runtime_handlers.pull_messages
        if isinstance(self.delivery, Delivery):
            pull = pull_replies(self.delivery, pull)
        return list(pull(PullAppMessagesRequest(message_ids=orders), self.state, self.task).messages_list)

    def confirm(self, reply: Any) -> None:
        """Tell that the ServerApp has all of a reply."""
        confirm = confirm_reply(self.delivery, runtime_handlers.confirm_message_received)
        request = ConfirmMessageReceivedRequest(message_object_id=reply.metadata.message_id)
        confirm(request, self.state, self.task)
        self.delivery.forget_confirmed()


class _Recorder(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Notes the metadata of the calls, as somebody who listens would."""

    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self._sent.append(details)
        return continuation(details, request)


class _OverHttp(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Makes the calls over HTTP."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._threads = ThreadPoolExecutor(20)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Future[Any]:
        return self._threads.submit(self._call, details, request)

    def _call(self, details: Any, request: Any) -> Any:
        try:
            return self._transport.call(
                details.method.rpartition("/")[2], request, dict(details.metadata), 30.0
            )
        except CallError as err:
            raise _RpcError(err) from err


class _RpcError(grpc.RpcError):  # type: ignore[misc]
    """An error of a call over HTTP, as gRPC would have raised it."""

    def __init__(self, err: CallError) -> None:
        super().__init__(str(err))
        self.code, self.details = lambda: err.status, lambda: str(err)

    def result(self) -> Any:
        raise self


@contextmanager
def over_http(link: Served, folder: Path) -> Iterator[None]:
    """Serve the Fleet API over HTTP as well, with TLS; new peers call that."""
    ca_key, ca = make_authority(2)
    key = private_pem(make_key())
    files = {"ssl_keyfile": key, "ssl_certfile": make_server_certificate(ca_key, ca, key, "127.0.0.1", 1)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    link.http_address = f"127.0.0.1:{free_port()}"

    @asynccontextmanager
    async def relay() -> AsyncIterator[tuple[Server, socket]]:
        async with grpc.aio.insecure_channel(link.address) as channel:
            paths = {name: str(folder / name) for name in files}
            yield serve(Relay(channel), link.http_address, **paths)

    with listening(relay) as link.http_listener:
        link.http = HttpTransport(link.http_address, ca)
        try:
            yield
        finally:
            link.http.close()


@cache
def empty_database() -> Path:
    """Return a database of a SuperLink that was just set up, which takes a while."""
    database = Path(tempfile.mkdtemp(prefix="bouquet-")) / "link.db"
    atexit.register(shutil.rmtree, database.parent, ignore_errors=True)
    LinkStateFactory(str(database), NoOpFederationManager(), ObjectStoreFactory(str(database))).state()
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return database


@contextmanager
def served(
    folder: Path, limits: Limits, code: str = "", fab: bytes = b"fab", *, delivers: bool = True
) -> Iterator[Served]:
    """Serve a Fleet API on loopback, with a run that runs, of the app `fab`; of an app with this code.

    Without `delivers` it has the checks alone, as on a Flower where the other patches do not fit.
    """
    database = str(folder / "link.db")
    shutil.copyfile(empty_database(), database)
    factory = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database))
    with patch("flwr.supercore.sql_mixin.run_migrations"):  # the copy has had them
        state = factory.state()
    assert isinstance(state, SqlLinkState)
    run = state.create_run(
        "a/b",
        "1",
        state.store_fab(Fab("", fab, {})),
        {},
        NOOP_FEDERATION_ID,
        None,
        NOOP_FLWR_AID,
        TaskType.SERVER_APP,
    )
    task_id = state.get_run_info(run_ids=[run])[0].primary_task_id
    assert task_id is not None
    token = state.claim_task(task_id)
    assert token
    assert state.activate_task(task_id)
    delivery: Any = Records(state)
    sums: tuple[Tally, ...] = ()
    if delivers:
        sums = economise(state)
        economise_trees(state)
        delivery = Delivery(state)
    limiter = RateLimiter(
        limits,
        state.get_node_id_by_public_key,
        lambda node: f"n{node % 97}",
        delivery.refuse,
        NodeNotes(folder / "places.json"),
    )
    address = f"127.0.0.1:{free_port()}"
    theirs = stock.FleetServicer
    apps = NodeNotes(folder / "apps.json")
    stock.FleetServicer = partial(
        Fleet if delivers else CheckedFleet, limiter=limiter, records=delivery, apps=apps, code=code
    )
    try:
        with bounded(limiter):
            server = stock._run_fleet_api_grpc_rere(
                address=address, state_factory=factory, objectstore_factory=factory.objectstore_factory,
                enable_supernode_auth=True, certificates=None,
                interceptors=[NodeAuthServerInterceptor(factory)],
            )  # fmt: skip
    finally:
        stock.FleetServicer = theirs
    try:
        task = state.get_tasks(task_ids=[task_id])[0]
        yield Served(state, delivery, limiter, address, run, task, token, sums=sums)
    finally:
        server.stop(grace=0).wait()


def arrays(size: int) -> RecordDict:
    """Return a content of about so many bytes."""
    import numpy as np

    return RecordDict({"arrays": ArrayRecord([np.random.default_rng(size).random(size // 8)])})

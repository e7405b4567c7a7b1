"""Small objects of a message go in one call between a node and a link of ours, over a real Fleet API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from server_app.deploy.calls.fleet_client import FleetClient
from server_app.deploy.calls.limits import Limits
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.kits.provision import provision
from task.wire import parts
from task.wire.parts import HEAD, MAGIC, PARTS_HEADER, batches, pack, unpack
from tests.support.fleet import Peer, Served, answer_to, arrays, bare, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library of Flower's database
NAMES = ["a" * 64, "b" * 64]


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, Limits(3_000_000, 600)) as link:
        yield link


class Way:
    """A node's transport: a peer's calls; with `stock`, to a link that knows no parts."""

    def __init__(self, peer: Peer, *, stock: bool = False) -> None:
        self.peer, self.stock = peer, stock
        self.made: list[str] = []

    def call(self, name: str, request: Any, headers: dict[str, Any], timeout_s: float | None) -> Any:
        self.made.append(name)
        more = [(k, headers[k]) for k in (PARTS_HEADER,) if k in headers and not self.stock]
        return getattr(self.peer.stub, name)(request, metadata=more)

    def close(self) -> None:
        pass


def client_of(peer: Peer, folder: Path, *, stock: bool = False) -> tuple[FleetClient, Way]:
    provision(folder / "kits", "127.0.0.1:9", ["ward"])
    kit = read_node_kit(folder / "kits" / "ward")
    client = FleetClient(kit.link, kit.ca_certificate, kit.key, "here")
    way = Way(peer, stock=stock)
    client._transport = way  # type: ignore[assignment]
    client._node = peer.node
    return client, way


@pytest.mark.parametrize("stock", [False, True])
def test_a_message_and_its_reply_go_in_a_call_each_where_the_link_knows_parts(
    link: Served, tmp_path: Path, stock: bool
) -> None:
    peer = link.peer()
    client, way = client_of(peer, tmp_path, stock=stock)
    order = link.order(peer.id, arrays(20_000))
    found = client.pull()
    assert found is not None
    message, tree = found
    given = dict(client.objects(message.metadata.run_id, tree))
    assert list(given)[-1] == order
    assert len(given) > 3
    client.confirm(message.metadata.run_id, order)
    reply, objects = answer_to(message, arrays(30_000), peer.id)
    client.push(bare(reply), get_object_tree(reply), objects.__getitem__, 0.1)
    counts = {name: way.made.count(name) for name in ("PullObject", "PushObject", "ConfirmMessageReceived")}
    assert counts == {
        "PullObject": len(given) if stock else 1,
        "PushObject": len(objects) if stock else 1,
        "ConfirmMessageReceived": int(stock),
    }
    (answer,) = link.replies(order)
    assert answer.metadata.message_id == reply.metadata.message_id


def test_what_does_not_fit_into_one_call_goes_alone(
    link: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST", 1000)
    monkeypatch.setattr("server_app.deploy.flower.fleet_delivery.MOST", 1000)
    peer = link.peer()
    client, way = client_of(peer, tmp_path)
    order = link.order(peer.id, arrays(20_000))
    message, tree = client.pull() or pytest.fail("no message")
    given = client.objects(message.metadata.run_id, tree)
    assert max(len(content) for _, content in given) > 20_000
    assert way.made.count("PullObject") == 2
    reply, objects = answer_to(message, arrays(30_000), peer.id)
    client.push(bare(reply), get_object_tree(reply), objects.__getitem__, 0.1)
    assert 1 < way.made.count("PushObject") < len(objects)
    assert link.replies(order)


def test_the_head_of_a_message_comes_first_though_nothing_else_fits(
    link: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = link.peer()
    client, way = client_of(peer, tmp_path)
    order = link.order(peer.id, arrays(20_000))
    message, tree = client.pull() or pytest.fail("no message")
    root = peer.pull_object(message.metadata.run_id, order) or b""
    monkeypatch.setattr("server_app.deploy.flower.fleet_delivery.MOST", len(root))
    given = dict(client.objects(message.metadata.run_id, tree))
    assert given[order] == root
    assert way.made.count("PullObject") == len(given)


@pytest.mark.parametrize(
    "content", [MAGIC + b"x", MAGIC + HEAD.pack(b"a" * 64, 9) + b"short"], ids=["no head", "cut"]
)
def test_a_call_that_cannot_be_taken_apart_is_refused(link: Served, content: bytes) -> None:
    peer = link.peer()
    link.order(peer.id)
    (message,) = peer.pull()
    head = peer.push(message, arrays(100), parts=0)
    with pytest.raises(grpc.RpcError) as info:
        push(peer, message.metadata.run_id, head.session_id, content)
    assert info.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_no_part_of_the_reply_is_not_stored(link: Served) -> None:
    peer = link.peer()
    order = link.order(peer.id)
    (message,) = peer.pull()
    head = peer.push(message, RecordDict({"c": ConfigRecord({"n": 1})}), parts=0)
    run = message.metadata.run_id
    assert not push(peer, run, head.session_id, pack([("f" * 64, b"foreign")])).stored
    assert not link.delivery.has("f" * 64)
    assert not link.replies(order)


def push(peer: Peer, run: int, session: str, content: bytes) -> Any:
    request = PushObjectRequest(
        node=peer.node, run_id=run, session_id=session, object_id="x", object_content=content
    )
    return peer.stub.PushObject(request, metadata=[(PARTS_HEADER, "1")])


def test_parts_come_out_as_they_went_in() -> None:
    both = list(zip(NAMES, (b"", b"content" * 9), strict=True))
    assert unpack(pack(both)) == dict(both)
    assert unpack(pack([])) == {}
    assert unpack(b"Message  0\0") is None


def test_batches_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST", 10)
    sizes = [4, 4, 4, 99, 1, 1]
    made = [[len(data) for _, data in batch] for batch in batches((str(n), b"x" * n) for n in sizes)]
    assert made == [[4, 4], [4], [99], [1, 1]]
    assert list(batches([])) == []

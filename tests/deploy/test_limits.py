"""What a node may send, over a real Fleet API: size, rate, number, name, replay; and that nothing is lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.date import now

from server_app.deploy.calls import limits as limiting
from server_app.deploy.calls.limits import FRAME_BYTES, Limits
from server_app.deploy.flower import delivery as delivering
from server_app.deploy.flower import fleet as fleets
from server_app.deploy.host.app_integrity import HEADER_LETTERS
from task import timing
from tests.support.fleet import Peer, Served, answer_to, arrays, over_http, served
from tests.support.waits import set_clock

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MAX_REPLY, MAX_RATE = 300_000, 600


@pytest.fixture
def link(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with ExitStack() as running:
        link = running.enter_context(served(tmp_path, Limits(MAX_REPLY, MAX_RATE)))
        if getattr(request, "param", "") == "http":
            running.enter_context(over_http(link, tmp_path))
        yield link


both = pytest.mark.parametrize("link", ["grpc", "http"], indirect=True)


def refused(status: grpc.StatusCode, call: Any, text: str = "") -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == status, caught.value
    assert text in caught.value.details()


def small() -> RecordDict:
    return RecordDict({"config": ConfigRecord({"n": 1})})


@both
def test_a_reply_goes_through_and_leaves_nothing_behind(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id, arrays(20_000))
    (got,) = node.pull()
    node.confirm(got)
    node.push(got, arrays(10_000))
    (reply,) = link.replies(order)
    assert reply.metadata.src_node_id == node.id
    link.confirm(reply)
    assert (link.state.num_message_ins(), link.state.num_message_res()) == (0, 0)
    link.state.object_store.delete(reply.metadata.message_id)
    assert len(link.state.object_store) == 0


@both
def test_a_reply_that_is_too_large_is_dropped_and_answered_in_its_place(
    link: Served, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = link.peer(), link.peer()
    order, others = link.order(node.id), link.order(other.id)
    two = RecordDict({"a": arrays(MAX_REPLY)["arrays"], "b": arrays(90_000)["arrays"]})
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: node.push(node.pull()[0], two), "max-reply")
    (reply,) = link.replies(order)
    assert f"at most {MAX_REPLY} bytes" in reply.error.reason
    assert sum("reply refused" in line for line in caplog.messages) == 1
    assert link.limiter.sender(node.id).fingerprint in caplog.text
    # Neither the other nodes nor the next reply suffer from it.
    other.push(other.pull()[0], arrays(MAX_REPLY // 2))
    assert not link.replies(others)[0].HasField("error")
    again = link.order(node.id)
    node.push(node.pull()[0], arrays(MAX_REPLY // 2))
    assert not link.replies(again)[0].HasField("error")


def test_a_head_that_is_sent_again_buys_no_more_bytes(link: Served) -> None:
    node, victim = link.peer(), link.peer()
    order, others = link.order(node.id), link.order(victim.id)
    (got,), (foreign,) = node.pull(), victim.pull()
    two = RecordDict({"a": arrays(MAX_REPLY - 9000)["arrays"], "b": arrays(90_000)["arrays"]})
    reply, objects = answer_to(got, two, node.id)
    head = node.push_head(reply)
    first, *rest = sorted(head.objects_to_push, key=lambda i: -len(objects[i]))
    assert node.push_object(link.run, head.session_id, first, objects[first])
    again = node.push_head(reply)
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: node.push(foreign, small()))
    refused(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        lambda: node.push_object(link.run, again.session_id, rest[0], objects[rest[0]]),
        "max-reply",
    )
    assert "max-reply" in link.replies(order)[0].error.reason
    assert link.replies(others) == []


def test_a_frame_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.fleet.stock.GRPC_MAX_MESSAGE_LENGTH", FRAME_BYTES)
    with served(tmp_path, Limits(10 * FRAME_BYTES, MAX_RATE)) as link:
        node = link.peer()
        link.order(node.id)
        head = node.push(node.pull()[0], small(), parts=0)
        refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            lambda: node.push_object(link.run, head.session_id, head.objects_to_push[0], bytes(FRAME_BYTES)),
            "larger than max",
        )
        assert len(node.pull()) == 1  # still served: the order whose upload it gave up


@both
def test_a_reply_in_another_nodes_name_is_refused(link: Served, caplog: pytest.LogCaptureFixture) -> None:
    node, victim = link.peer(), link.peer()
    order = link.order(victim.id)
    (got,) = victim.pull()
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: node.push(got, small(), src=victim.id), "whose key")
    assert "expected a reply of its own" in caplog.text
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: node.push(got, small()), "to another")
    assert f"it answers a message to node {victim.id}" in caplog.text
    assert link.replies(order) == []
    victim.push(got, small())
    assert link.replies(order)[0].metadata.src_node_id == victim.id


@both
def test_parts_of_another_nodes_reply_are_not_taken(link: Served) -> None:
    node, victim = link.peer(), link.peer()
    order = link.order(victim.id)
    (got,) = victim.pull()
    head = victim.push(got, small(), parts=0)
    # The same content gives the same object; it is the uploader that is wrong.
    _, objects = answer_to(got, small(), victim.id)
    one = head.objects_to_push[0]
    node_push = node.push_object(link.run, head.session_id, one, objects.get(one, b""))
    assert not node_push
    assert link.replies(order) == []


@both
def test_too_many_objects_are_refused(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "MAX_OBJECTS", 3)
    node = link.peer()
    order = link.order(node.id)
    (got,) = node.pull()
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: node.push(got, arrays(100)), "at most 3 objects")
    assert "at most 3 objects" in link.replies(order)[0].error.reason


def test_a_deep_tree_does_not_hurt(link: Served) -> None:
    tree = ObjectTree(object_id="0" * 64)
    for _ in range(90):  # protobuf itself takes no more than 100 levels
        tree = ObjectTree(object_id="0" * 64, children=[tree])
    assert not fleets._more_than(91, [tree])
    assert fleets._more_than(90, [tree])


def test_a_captured_call_is_good_once(link: Served) -> None:
    node = link.peer()
    node.pull()
    stub = FleetStub(grpc.insecure_channel(link.address))
    metadata = [(k, v) for k, v in node.sent[-1].metadata]
    refused(
        grpc.StatusCode.ABORTED,
        lambda: stub.PullMessages(PullMessagesRequest(node=node.node), metadata=metadata),
        "sent again",
    )


@both
def test_an_unknown_and_a_revoked_key_get_nothing(link: Served, caplog: pytest.LogCaptureFixture) -> None:
    stranger, node = link.peer(registered=False), link.peer()
    with pytest.raises(grpc.RpcError, match="2004"):
        stranger.activate()
    assert limiting.fingerprint(stranger.key) in caplog.text
    stranger.id = node.id
    refused(grpc.StatusCode.UNAUTHENTICATED, stranger.pull)
    assert node.pull() == []
    link.state.delete_node(NOOP_FLWR_AID, node.id)
    refused(grpc.StatusCode.UNAUTHENTICATED, node.pull)
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate()


@both
def test_nobody_activates_a_node_without_its_key(link: Served) -> None:
    victim, other = link.peer(), link.peer()
    link.state.deactivate_node(victim.id)
    refused(grpc.StatusCode.UNAUTHENTICATED, lambda: other.activate(victim.key), "signed this call")
    assert link.state.get_node_info(node_ids=[victim.id])[0].status == "offline"


def test_a_node_that_was_killed_is_let_in_when_it_has_been_silent(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.peer()
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate()
    monkeypatch.setattr(timing, "DEAD_NODE_S", 0.3)
    time.sleep(0.5)
    assert node.activate() == node.id


@both
def test_a_node_that_was_killed_is_let_in_at_once_where_it_was(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.peer()
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate(place="here")  # nobody said before where the node is
    monkeypatch.setattr(timing, "DEAD_NODE_S", 0.3)
    time.sleep(0.5)
    node.activate(place="here")
    monkeypatch.undo()
    assert node.activate(place="here") == node.id
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate(place="elsewhere")
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate()
    assert node.activate(place="here") == node.id  # a refused call says nothing about where the node is


def test_a_superlink_that_was_killed_with_a_node_still_knows_where_it_was(
    link: Served, tmp_path: Path
) -> None:
    node = link.peer()
    link.state.deactivate_node(node.id)
    node.activate(place="here")
    link.limiter._senders.clear()
    link.limiter._places = limiting.NodeNotes(tmp_path / "places.json")
    with pytest.raises(grpc.RpcError, match="2004"):
        node.activate(place="elsewhere")
    assert node.activate(place="here") == node.id


def test_places_that_cannot_be_read_or_written_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "places.json"
    for text in ("{", "[]", "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        caplog.clear()
        assert limiting.NodeNotes(path).of("key") == ""
        assert f"{path}: expected the nodes' reports" in caplog.text
    places = limiting.NodeNotes(path / "places.json")  # a file is no folder
    places.keep("key", "here")
    assert places.of("key") == "here"
    assert "cannot be written" in caplog.text


def test_a_node_of_another_app_is_turned_away_until_it_has_the_links(tmp_path: Path) -> None:
    with served(tmp_path, Limits(MAX_REPLY, 60), "77bc77bc") as link:
        node = link.peer()  # says nothing of its app, as a stock SuperNode
        link.state.deactivate_node(node.id)
        for said in ("0.9.0 3f2a3f2a 1.39.0", "0.10.0 3f2a3f2a 1.42.0"):
            refused(
                grpc.StatusCode.PERMISSION_DENIED,
                lambda said=said: node.activate(app=said),
                f"this node runs app {said.split()[0]} (3f2a3f2a), the runs here have the code 77bc77bc",
            )
            assert json.loads((tmp_path / "apps.json").read_text()) == {str(node.id): said}
            beat = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=30)
            assert not node.stub.SendNodeHeartbeat(beat).success  # it activates itself again, and hears it
        assert link.state.get_node_info(node_ids=[node.id])[0].status == "offline"
        assert node.activate(app="0.10.0 77bc77bc 1.39.0") == node.id  # any Flower will do
        assert node.stub.SendNodeHeartbeat(beat).success
        link.state.deactivate_node(node.id)
        assert node.activate(app="x" * 3000) == node.id
        assert len(json.loads((tmp_path / "apps.json").read_text())[str(node.id)]) == HEADER_LETTERS


def test_a_flood_of_replies_is_slowed_down_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SLOWED_S", 0.5)
    with served(tmp_path, Limits(MAX_REPLY, 4)) as link:
        node, other = link.peer(), link.peer()
        for _ in range(4):
            link.order(node.id)
            node.push(node.pull()[0], small())
        link.order(node.id)
        (got,) = node.pull()
        refused(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: node.push(got, small()), "4 replies a minute")
        link.order(other.id)
        other.push(other.pull()[0], small())


def test_a_node_that_calls_too_often_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limiting, "CALLS_PER_S", 10.0)
    with served(tmp_path, Limits(MAX_REPLY, 600)) as link:
        node, other = link.peer(name="loud"), link.peer(name="quiet")
        for _ in range(110):
            node.pull()
        other.pull()
        loud, quiet = (str(link.limiter.sender(each.id)) for each in (node, other))
    assert caplog.text.count(f"{loud}: slowed down: more than 600 replies a minute, 10 other calls") == 1
    assert f"{quiet}: slowed down" not in caplog.text


def test_calls_are_slowed_down_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = set_clock(monkeypatch, limiting)
    bucket = limiting._CallBucket(rate=50, size=5, at=clock.monotonic())
    waits = [bucket.take() for _ in range(30)]
    assert waits[:5] == [0.0] * 5
    assert waits[-1] == pytest.approx(0.5)
    clock.pass_s(0.6)
    assert bucket.take() == 0.0


@both
def test_one_node_does_not_take_all_threads(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    node, other = link.peer(), link.peer()
    go = threading.Event()
    look = link.delivery.reopen_orders

    def slow(asker: int) -> None:
        if asker == node.id:
            go.wait(20)
        look(asker)

    monkeypatch.setattr(link.delivery, "reopen_orders", slow)
    codes: list[grpc.StatusCode | None] = []

    def pull() -> None:
        try:
            node.pull()
            codes.append(None)
        except grpc.RpcError as err:
            codes.append(err.code())

    threads = [threading.Thread(target=pull) for _ in range(limiting.CONCURRENT + 4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(codes) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert other.pull() == []
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(map(str, codes)) == ["None"] * limiting.CONCURRENT + ["StatusCode.RESOURCE_EXHAUSTED"] * 4


# ------------------------------------------------------------------------------------ nothing is lost


def test_an_order_whose_node_died_is_handed_out_again(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id, arrays(20_000))
    (got,) = node.pull()
    node.confirm(got)  # it has all of it, and dies
    (again,) = node.pull()
    assert again.metadata.message_id == got.metadata.message_id
    for object_id in _ids(link, order):
        assert link.state.get_object(link.run, object_id)
    node.push(again, small())
    assert len(link.replies(order)) == 1
    assert node.pull() == []


def test_an_order_is_not_handed_out_before_all_of_it_is_here(link: Served) -> None:
    node, other = link.peer(), link.peer()
    link.order(node.id, arrays(20_000), held_back=1)
    assert node.pull() == []
    assert other.pull() == []
    link.rest()
    assert len(node.pull()) == 1


def test_an_order_that_never_becomes_whole_holds_up_its_node_for_a_while_only(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.peer()
    broken = link.order(node.id, arrays(20_000), held_back=1)
    monkeypatch.setattr(timing, "PARTS_S", 0.0)
    (got,) = node.pull()  # the node sees for itself that it cannot have it
    assert got.metadata.message_id == broken


def test_an_order_that_a_node_never_answers_is_answered_for_it(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    for _ in range(delivering.MAX_ORDERS):
        assert len(node.pull()) == 1
    assert node.pull() == []
    (reply,) = link.replies(order)
    assert "without answering it" in reply.error.reason


def test_a_reply_is_given_until_the_serverapp_has_it(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    node.push(node.pull()[0], small())
    first, second = link.replies(order), link.replies(order)  # the first never arrived
    assert [r.metadata.message_id for r in first] == [r.metadata.message_id for r in second]
    link.confirm(second[0])
    (gone,) = link.replies(order)
    assert gone.HasField("error")


def test_a_broken_upload_holds_up_nobody(link: Served) -> None:
    slow, quick = link.peer(), link.peer()
    orders = link.order(slow.id), link.order(quick.id)
    slow.push(slow.pull()[0], small(), parts=1)
    quick.push(quick.pull()[0], small())
    (reply,) = link.replies(*orders)
    assert reply.metadata.src_node_id == quick.id
    (again,) = _expire_uploads(link, slow, orders[0])
    slow.push(again, small())
    assert link.replies(orders[0])[0].metadata.src_node_id == slow.id


def test_an_order_whose_upload_was_given_up_is_handed_out_again(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    (got,) = node.pull()
    node.push(got, small(), parts=1)  # such as when the disk was full
    (again,) = node.pull()
    assert again.metadata.message_id == got.metadata.message_id
    node.push(again, small())
    (reply,) = link.replies(order)
    assert not reply.HasField("error")


def test_a_part_that_is_sent_again_was_stored(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    (got,) = node.pull()
    head = node.push(got, small())
    _, objects = answer_to(got, small(), node.id)
    one = next(i for i in head.objects_to_push)
    assert node.push_object(link.run, head.session_id, one, objects.get(one, b""))
    assert len(link.replies(order)) == 1


def test_who_was_alive_has_time_to_report_to_a_new_superlink(link: Served) -> None:
    from flwr.supercore.state.schema.corestate_models import Task
    from flwr.supercore.state.schema.linkstate_models import Node
    from sqlalchemy import update

    node = link.peer()
    with link.state.session() as session:  # as after an outage of minutes
        session.execute(update(Node).values(online_until=time.time() - 300))
        long_ago = now() - timedelta(seconds=300)
        session.execute(update(Task).values(active_until=long_ago))
    link.delivery.survive()
    assert link.state.get_node_info(node_ids=[node.id])[0].status == "online"
    assert link.state.get_run_status({link.run})[link.run].status == "running"
    assert link.state.acknowledge_task_heartbeat(link.task.task_id)


def test_what_nobody_will_ask_for_is_deleted(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SURVIVORS_S", 0.0)
    node = link.peer()
    link.order(node.id, arrays(20_000), ttl=2.0)
    kept = link.order(node.id)
    node.pull()
    link.delivery.sweep()
    assert link.state.num_message_ins() == 2
    time.sleep(2.5)
    link.delivery.sweep()
    assert link.state.num_message_ins() == 1
    assert _ids(link, kept)
    left = len(_ids(link, kept))
    assert len(link.state.object_store) == left


@both
def test_a_message_of_a_run_that_ended_does_not_hold_the_node(link: Served) -> None:
    """Flower's SuperNode waits for ever for the rest of a message if it hears that its run does not run."""
    from flwr.proto.message_pb2 import PullObjectRequest

    node = link.peer()
    order = link.order(node.id)
    (got,) = node.pull()
    link.state.stop_run(link.run)
    request = PullObjectRequest(node=node.node, run_id=link.run, object_id=order)
    assert not node.stub.PullObject(request).object_found
    refused(grpc.StatusCode.FAILED_PRECONDITION, lambda: node.confirm(got))
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: node.push(got, small()))


def _ids(link: Served, root: str) -> list[str]:
    found, waiting = [], [link.state.object_store.get_object_tree(root)]
    while waiting:
        tree = waiting.pop()
        found.append(tree.object_id)
        waiting.extend(tree.children)
    return found


def _expire_uploads(link: Served, node: Peer, order: str) -> list[Any]:
    """Let an upload stand still for too long; return what the node is then given."""
    from flwr.supercore.state.schema.corestate_models import ObjectPushSession
    from sqlalchemy import update

    with link.state.session() as session:
        session.execute(update(ObjectPushSession).values(expires_at=now()))
    assert link.replies(order) == []
    return node.pull()

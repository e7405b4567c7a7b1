"""Calls of nodes that the link holds, and looks that cost no database, over a real Fleet API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.supercore import date
from sqlalchemy import event
from sqlalchemy.engine import Engine

from server_app.deploy.calls import inbox, protocol
from server_app.deploy.calls import limits as limiting
from server_app.deploy.calls.limits import Limits
from task import timing
from tests.support.fleet import Peer, Served, arrays, served

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LONG_S = 25.0  # that a call asks to be held; no test waits as long
SOON_S = 5.0


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(timing, "KEY_S", 60.0)
    with served(tmp_path, Limits(300_000, 600)) as link:
        yield link


def small() -> RecordDict:
    return RecordDict({"config": ConfigRecord({"n": 1})})


def held(link: Served) -> int:
    """Return how many calls are held."""
    return inbox.HELD_CALLS - link.delivery.arrivals._free


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hold(link: Served, node: Peer, seconds: float = LONG_S) -> Any:
    """Return the future of a call that the link holds."""
    call = node.hold(seconds)
    until(lambda: held(link) > 0)
    return call


def given(call: Any) -> list[str]:
    """Return the ids of the messages that a held call is soon answered with."""
    return [message.metadata.message_id for message in call.result(timeout=SOON_S).messages_list]


@contextmanager
def queries() -> Iterator[list[str]]:
    """Yield the statements that any database is asked."""
    asked: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


# ------------------------------------------------------------------------------------ calls that are held


def test_a_held_call_is_answered_when_all_of_a_message_is_here(link: Served) -> None:
    node = link.peer()
    call = hold(link, node)
    order = link.order(node.id, arrays(20_000), held_back=1)
    assert not call.done()
    link.rest()
    assert given(call) == [order]
    assert held(link) == 0


def test_a_message_that_is_there_is_given_at_once_and_a_second_one_next(link: Served) -> None:
    node = link.peer()
    orders = [link.order(node.id), link.order(node.id)]
    first = node.hold(LONG_S).result(timeout=SOON_S).messages_list
    node.push(first[0], small())
    second = node.hold(LONG_S).result(timeout=SOON_S).messages_list
    assert [m.metadata.message_id for m in (*first, *second)] == orders


def test_a_message_for_another_node_ends_no_call(link: Served) -> None:
    node, other = link.peer(), link.peer()
    call = hold(link, node, 0.5)
    link.order(other.id)
    assert given(call) == []
    assert len(other.pull()) == 1


@pytest.mark.parametrize(("asked", "most"), [(0.3, 30.0), (1e9, 0.3), ("inf", 0.3)])
def test_a_call_is_held_as_long_as_it_asks_and_no_longer_than_the_link_allows(
    link: Served, monkeypatch: pytest.MonkeyPatch, asked: Any, most: float
) -> None:
    monkeypatch.setattr(timing, "HELD_S", most)
    node = link.peer()
    node.pull()
    began = time.monotonic()
    assert given(node.hold(asked)) == []
    assert 0.3 <= time.monotonic() - began < 20.0


@pytest.mark.parametrize("asked", ["", "0", "-1", "nan", "soon"])
def test_a_call_that_asks_for_nothing_is_answered_at_once(link: Served, asked: str) -> None:
    assert given(link.peer().hold(asked)) == []
    assert held(link) == 0


def test_a_call_whose_caller_is_gone_is_held_no_longer(link: Served) -> None:
    node = link.peer()
    hold(link, node).cancel()
    until(lambda: held(link) == 0)
    order = link.order(node.id)
    assert [m.metadata.message_id for m in node.pull()] == [order]


def test_a_newer_call_ends_the_older_one_which_takes_no_message(link: Served) -> None:
    node = link.peer()
    older = hold(link, node)
    newer = node.hold(LONG_S)
    assert given(older) == []
    assert not newer.done()
    order = link.order(node.id)
    assert given(newer) == [order]


def test_a_look_without_a_hold_ends_an_older_held_call_too(link: Served) -> None:
    node = link.peer()
    older = hold(link, node)
    assert node.pull() == []
    assert given(older) == []


def test_a_message_given_to_a_dead_connection_is_given_to_the_next_call(link: Served) -> None:
    node = link.peer()
    lost = hold(link, node)
    order = link.order(node.id)
    assert given(lost) == [order]  # to a connection behind which nobody is any more
    assert given(node.hold(LONG_S)) == [order]


def test_a_held_call_is_not_in_the_way_of_the_nodes_other_calls(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "CONCURRENT", 2)
    node = link.peer()
    call = hold(link, node)
    beat = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=30)
    for _ in range(5):
        assert node.stub.SendNodeHeartbeat(beat, timeout=SOON_S).success
    call.cancel()


def test_more_calls_than_there_are_threads_for_are_not_held(link: Served) -> None:
    first, second = link.peer(), link.peer()
    link.delivery.arrivals._free = 1
    call = first.hold(LONG_S)
    until(lambda: link.delivery.arrivals._free == 0)
    assert given(second.hold(LONG_S)) == []
    order = link.order(second.id)
    assert [m.metadata.message_id for m in second.pull()] == [order]
    call.cancel()
    until(lambda: link.delivery.arrivals._free == 1)


def test_the_held_call_of_a_node_that_is_turned_out_ends_and_gets_nothing(link: Served) -> None:
    node, left = link.peer(), link.peer()
    call, other = hold(link, node), left.hold(LONG_S)
    until(lambda: held(link) == 2)
    link.state.delete_node(NOOP_FLWR_AID, node.id)
    assert given(call) == []
    with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):  # at once, though keys are remembered
        node.pull()
    link.state.deactivate_node(left.id)
    assert given(other) == []


def test_held_calls_end_with_the_superlink(link: Served) -> None:
    call = hold(link, link.peer())
    link.delivery.arrivals.close()
    assert given(call) == []


def test_a_held_call_does_not_say_that_the_node_lives(link: Served) -> None:
    node = link.peer()
    call = hold(link, node)
    came = time.monotonic()
    link.delivery.arrivals.close()
    assert given(call) == []
    until(lambda: link.limiter.sender(node.id).calls == 0)
    assert link.limiter.sender(node.id).heard <= came


# -------------------------------------------------------------------------- looks that find nothing


def test_a_look_of_a_node_that_has_nothing_asks_no_database(link: Served) -> None:
    node = link.peer()
    assert node.pull() == []
    with queries() as asked:
        for _ in range(5):
            assert node.pull() == []
        assert given(node.hold(0.2)) == []
    assert not asked


def test_a_node_that_answered_is_given_nothing_without_a_question(link: Served) -> None:
    node = link.peer()
    node.pull()
    link.order(node.id)
    (got,) = node.pull()
    node.push(got, small())
    with queries() as asked:
        assert node.pull() == []
    assert not asked


def test_a_look_now_and_then_asks_in_any_case(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    node = link.peer()
    node.pull()
    monkeypatch.setattr(timing, "INBOX_S", 0.0)
    with queries() as asked:
        node.pull()
    assert asked


def test_what_is_in_the_database_when_a_superlink_begins_is_found(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    link.delivery.arrivals._inboxes.clear()  # as a new process
    (got,) = node.pull()
    assert got.metadata.message_id == order
    link.delivery.arrivals._inboxes.clear()  # and another, while the node works
    root = node.pull_object(link.run, order)
    assert root
    node.push(got, small())
    assert len(link.replies(order)) == 1


def test_a_message_whose_rest_comes_to_a_new_superlink_is_given_when_whole(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id, arrays(20_000), held_back=1)
    link.delivery.arrivals._inboxes.clear()
    link.delivery.arrivals._uploads.clear()
    call = hold(link, node)
    link.rest()
    assert given(call) == [order]


@pytest.mark.parametrize("during", [True, False])
def test_the_rest_that_comes_around_a_nodes_first_look_is_not_waited_for(
    during: bool, link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has the message before this process has noted it, and the look is in between."""
    monkeypatch.setattr(timing, "PARTS_S", 60.0)
    node, comes = link.peer(), link.delivery.comes
    order = link.order(node.id, arrays(20_000), held_back=1)
    link.delivery.arrivals.inbox(node.id)._coming.clear()  # not noted yet

    def looked(of: int) -> bool:
        found = comes(of)
        if during:
            link.rest()
        return found

    monkeypatch.setattr(link.delivery, "comes", looked)
    call = node.hold(LONG_S)
    if not during:
        until(lambda: held(link) > 0)
        link.rest()
    assert given(call) == [order]


def test_an_upload_that_nobody_goes_on_with_is_forgotten(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.peer()
    link.order(node.id, arrays(20_000), held_back=1)
    link.delivery.sweep()
    assert link.delivery.arrivals._uploads
    monkeypatch.setattr(timing, "UPLOAD_S", 0.0)
    link.delivery.sweep()
    assert not link.delivery.arrivals._uploads


# -------------------------------------------------------------------------- what is not the node's


def test_a_node_gets_no_part_of_a_message_to_another(link: Served, caplog: pytest.LogCaptureFixture) -> None:
    node, victim = link.peer(), link.peer()
    order = link.order(victim.id)
    (got,) = victim.pull()
    assert node.pull_object(link.run, order) is None
    assert f"{link.limiter.sender(node.id)}: PullObject refused" in caplog.text
    assert victim.pull_object(link.run, order)
    head = victim.push(got, small())
    reply = head.objects_to_push[0]
    assert link.state.get_object(link.run, reply)
    assert victim.pull_object(link.run, reply) is None  # nor of replies, its own neither


def test_objects_without_an_upload_are_counted_and_not_stored(link: Served) -> None:
    node = link.peer()
    before = len(link.state.object_store)
    for i in range(2):
        assert not node.push_object(link.run, "", f"{i}", bytes(100_000))
        assert not node.push_object(link.run, "guessed", f"{i}", bytes(1000))
    with pytest.raises(grpc.RpcError, match="max-reply"):
        node.push_object(link.run, "", "2", bytes(150_000))
    assert len(link.state.object_store) == before


def test_calls_that_must_wait_do_not_take_the_threads_of_others(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "SLOWED_CALLS", 0)
    node, other = link.peer(), link.peer()
    link.limiter.sender(node.id).others.tokens = -400.0  # four seconds of calls too many
    with pytest.raises(grpc.RpcError, match="wait already"):
        node.pull()
    assert other.pull() == []
    assert link.limiter._slowed == 0


# -------------------------------------------------------------------------- a clock that is set back


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the clock back, for the link and all of Flower in this process."""
    offset = [timedelta(0)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz or UTC) - offset[0]

    monkeypatch.setattr(date, "datetime", SimpleNamespace(datetime=Clock, UTC=UTC))
    monkeypatch.setattr(protocol, "datetime", Clock)
    return lambda seconds: offset.__setitem__(0, timedelta(seconds=seconds))


def test_messages_go_through_when_the_clock_is_set_back(link: Served, clock: Callable[[float], None]) -> None:
    node = link.peer()
    before = link.order(node.id)
    clock(3600)
    (got,) = node.pull()
    node.push(got, small())
    assert not link.replies(before)[0].HasField("error")
    after = link.order(node.id)
    (got,) = node.pull()
    assert got.metadata.message_id == after


def test_a_clock_that_is_set_back_holds_up_no_node(
    link: Served, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.peer()
    node.pull()
    broken = link.order(node.id, arrays(20_000), held_back=1)
    clock(3600)
    assert node.pull() == []
    monkeypatch.setattr(timing, "PARTS_S", 0.0)
    (got,) = node.pull()  # not an hour later
    assert got.metadata.message_id == broken


def test_who_is_dead_is_so_as_soon_as_else_when_the_clock_is_set_back(
    link: Served, clock: Callable[[float], None]
) -> None:
    silent, broken = link.peer(), link.peer()
    order, uploaded = link.order(silent.id), link.order(broken.id)
    broken.push(broken.pull()[0], small(), parts=1)
    clock(3600)
    link.delivery.sweep()
    assert link.replies(order, uploaded) == []
    clock(3600 - 61)
    assert link.replies(order)[0].HasField("error")
    assert link.replies(uploaded) == []
    clock(3600 - 181)
    assert link.replies(uploaded) == []  # the upload is dropped
    assert link.replies(uploaded)[0].HasField("error")

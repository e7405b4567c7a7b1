"""Objects of an upload, one or several at a time, as the link stores them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute
from flwr.supercore.state.schema.corestate_models import ObjectPushSession
from sqlalchemy import text, update

from server_app.deploy.calls import inbox
from server_app.deploy.calls.limits import Limits
from server_app.deploy.flower import objects
from task import timing
from task.wire.parts import pack
from tests.support.fleet import Served, answer_to, arrays, served
from tests.support.waits import set_clock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library of Flower's database
TABLES = ("objects", "object_children", "run_objects", "object_push_session_pending", "message_res")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, Limits(1 << 26, 600)) as link:
        yield link


class Upload:
    """A reply whose head is here."""

    def __init__(self, link: Served) -> None:
        self.link, self.node = link, (node := link.peer())
        self.order = link.order(node.id)
        reply, self.parts = answer_to(node.pull()[0], arrays(40_000), node.id)
        self.session = link.state.start_session(link.run)
        with no_object_id_recompute():
            tree = get_object_tree(reply)
        stored, missing = link.state.store_message_and_object_tree(reply, tree, self.session)
        assert stored
        assert set(missing) == set(self.parts)

    def put(self, name: str, content: bytes) -> bool:
        return self.link.state.store_object(self.link.run, self.session, name, content)

    def tables(self) -> dict[str, list[Any]]:
        with self.link.state.session() as session:
            found = {t: sorted(map(tuple, session.execute(text(f"SELECT * FROM {t}")))) for t in TABLES}
            left = session.execute(text("SELECT pending_count FROM object_push_sessions")).all()
        return found | {"left": [tuple(row) for row in left]}


def test_a_part_that_comes_again_since_its_answer_was_lost_is_stored(link: Served) -> None:
    upload = Upload(link)
    for _ in range(2):
        assert all(upload.put(name, part) for name, part in upload.parts.items())
    assert upload.put("", pack(upload.parts.items()))
    assert not upload.put("0" * 64, b"unknown")


@pytest.mark.parametrize("count", [1, 3, 99])
def test_several_parts_at_once_leave_what_flower_leaves_of_one_after_the_other(
    link: Served, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Upload(link)
    empty = upload.tables()
    some = dict(list(upload.parts.items())[:count])
    with link.state.session() as session:
        assert upload.put("", pack(some.items()))
        together = upload.tables()
        session.rollback()
    assert upload.tables() == empty
    monkeypatch.setattr(objects, "put", lambda *args: False)
    assert all(upload.put(*part) for part in some.items())
    assert upload.tables() == together != empty


@pytest.mark.parametrize("beats", [True, False])
def test_a_part_may_take_long_while_its_node_is_there(link: Served, beats: bool) -> None:
    """Flower drops an upload of which no part came for three minutes; here 0.3 s are left of them."""
    upload, wait_s = Upload(link), 0.3
    with link.state.session() as session:
        session.execute(update(ObjectPushSession).values(expires_at=now() + timedelta(seconds=wait_s)))
    if beats:
        beat = SendNodeHeartbeatRequest(node=upload.node.node, heartbeat_interval=30)
        assert upload.node.stub.SendNodeHeartbeat(beat).success
    time.sleep(wait_s + 0.1)
    assert link.delivery.whole([upload.order]) == set()
    assert all(upload.put(name, part) for name, part in upload.parts.items()) == beats
    assert link.delivery.whole([upload.order]) == {upload.order}
    assert bool(link.replies(upload.order)) == beats


def test_an_upload_is_remembered_while_its_node_is_heard(
    link: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Upload(link)
    known, node = link.delivery.arrivals, upload.node.id
    clock = set_clock(monkeypatch, inbox)
    for _ in range(4):
        clock.pass_s(0.4 * timing.UPLOAD_S)
        assert known.uploads(node) == [upload.session]
        known.prune()
    assert known.uploader(upload.session) == node
    clock.pass_s(1.2 * timing.UPLOAD_S)
    known.prune()
    assert known.uploader(upload.session) is None


def test_of_several_parts_the_good_ones_are_stored(link: Served) -> None:
    upload = Upload(link)
    first, *rest = upload.parts
    bad = dict(upload.parts) | {first: b"other content"}
    assert not upload.put("", pack(bad.items()))
    assert upload.tables()["left"] == [(1,)]
    assert [link.state.get_object(link.run, name) for name in rest] == [upload.parts[n] for n in rest]
    assert upload.put(first, upload.parts[first])
    assert not upload.tables()["left"]


def test_an_upload_of_another_run_takes_nothing(link: Served) -> None:
    upload = Upload(link)
    assert not link.state.store_object(link.run + 1, upload.session, "", pack(upload.parts.items()))
    assert upload.tables()["left"] == [(len(upload.parts),)]


def test_a_message_that_was_confirmed_is_deleted_with_its_reply(link: Served) -> None:
    node = link.peer()
    orders = [link.order(node.id) for _ in range(3)]
    for _ in orders:
        node.push(node.pull()[0], RecordDict({"config": ConfigRecord({"n": 1})}))
    for reply in link.replies(*orders):
        link.delivery.confirmed(reply.metadata.message_id)
    link.delivery.forget_confirmed()
    with link.state.session() as session:
        for table in ("message_ins", *TABLES):
            assert not session.execute(text(f"SELECT * FROM {table}")).all()

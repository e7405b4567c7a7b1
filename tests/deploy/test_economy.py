"""What the SuperLink does not ask its database at each call, and that it is no less right for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.linkstate_models import MessageIns
from sqlalchemy import update

from server_app.deploy.calls.cache import CachedQuery
from server_app.deploy.calls.limits import Limits
from task import timing
from tests.support.fleet import Served, served

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(timing, "KEY_S", 1000.0)
    monkeypatch.setattr(timing, "RUN_STATE_S", 1000.0)
    monkeypatch.setattr(timing, "TRAFFIC_S", 1000.0)
    with served(tmp_path, Limits(300_000, 600)) as link:
        yield link


def test_an_answer_holds_for_its_time_and_none_is_no_answer() -> None:
    asked: list[str] = []

    def ask(key: str) -> int | None:
        asked.append(key)
        return len(asked) if key != "nobody" else None

    remembered = CachedQuery(ask, 1000.0)
    assert [remembered("a"), remembered("a"), remembered("b")] == [1, 1, 2]
    assert [remembered("nobody"), remembered("nobody")] == [None, None]
    assert asked == ["a", "b", "nobody", "nobody"]
    remembered.forget()
    assert remembered("a") == 5
    assert [CachedQuery(ask, 0.0)("a") for _ in range(2)] == [6, 7]


def test_an_answer_that_was_asked_for_before_it_was_forgotten_is_not_remembered() -> None:
    began, go = threading.Event(), threading.Event()
    answers = ["old", "new"]

    def ask(key: str) -> str:
        began.set()
        go.wait(10)
        return answers.pop(0)

    remembered = CachedQuery(ask, 1000.0)
    thread = threading.Thread(target=remembered, args=("key",))
    thread.start()
    began.wait(10)
    remembered.forget()
    go.set()
    thread.join()
    assert remembered("key") == "new"


def test_many_who_ask_at_once_ask_once() -> None:
    asked = []

    def ask(key: str) -> int:
        asked.append(key)
        go.wait(10)
        return 1

    go = threading.Event()
    remembered = CachedQuery(ask, 1000.0)
    threads = [threading.Thread(target=remembered, args=("key",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert asked == ["key"]


def test_a_key_a_task_and_a_run_that_end_are_not_remembered(link: Served) -> None:
    node, state = link.peer(), link.state
    for _ in range(2):
        assert state.get_node_id_by_public_key(node.key) == node.id
        assert state.get_task_by_token(link.token) is not None
        assert state.get_run_status({link.run})[link.run].status == "running"
    state.delete_node(NOOP_FLWR_AID, node.id)
    assert state.get_node_id_by_public_key(node.key) is None
    state.stop_run(link.run)
    assert state.get_task_by_token(link.token) is None
    assert state.get_run_status({link.run})[link.run].status == "finished"
    assert state.get_run_status({link.run, link.run + 1})[link.run].status == "finished"


def test_the_tree_of_what_was_deleted_is_not_remembered(link: Served) -> None:
    order, store = link.order(link.peer().id), link.state.object_store
    tree = store.get_object_tree(order)
    asked = SqlObjectStore.get_object_tree(store, order)  # type: ignore[arg-type]
    assert {c.object_id for c in asked.children} == {c.object_id for c in tree.children}
    link.delivery.forget({order})
    with pytest.raises(NoObjectInStoreError):
        store.get_object_tree(order)


def test_sums_are_written_in_the_end(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def received() -> int:
        return link.state.get_run_info(run_ids=[link.run])[0].bytes_recv

    node = link.peer()
    link.order(node.id)
    content = RecordDict({"config": ConfigRecord({"n": 1})})
    node.push(node.pull()[0], content)
    link.state.add_clientapp_runtime(link.run, 0.25)
    link.state.add_clientapp_runtime(link.run, 0.5)
    assert received() == 0
    for sums in link.sums:
        sums.write()
    info = link.state.get_run_info(run_ids=[link.run])[0]
    assert info.clientapp_runtime == 0.75
    written = received()
    assert written > 100
    monkeypatch.setattr(timing, "TRAFFIC_S", 0.0)
    count = link.state.store_traffic
    count(link.run, bytes_sent=0, bytes_recv=5)
    assert received() == written + 5
    count(link.run + 1, bytes_sent=0, bytes_recv=5)  # a run that is no more
    count(link.run, bytes_sent=0, bytes_recv=5)
    assert received() == written + 10


def test_a_run_is_locked_as_flower_does_it(link: Served) -> None:
    state = link.state

    def rows(run: int) -> list[object]:
        return [
            lock(state, run, require_unfinished=unfinished)
            for unfinished in (True, False)
            for lock in (type(state)._lock_run, lambda state, *a, **k: state._lock_run(*a, **k))
        ]

    strict, ours, lax, passed_on = rows(link.run)
    assert strict == ours == lax == passed_on
    assert ours is not None
    assert rows(link.run ^ 1) == [None] * 4
    state.stop_run(link.run)
    assert rows(link.run) == [None, None, lax, lax]


def test_a_message_is_checked_as_flower_does_it(link: Served) -> None:
    state, orders = link.state, [link.order(link.peer().id) for _ in range(3)]
    state._check_stored_messages(set(orders), link.run)
    state._check_stored_messages(set(orders))
    state._check_stored_messages({*orders, "none"})
    assert state.num_message_ins() == 3
    with pytest.raises(ValueError, match="invalid IDs"):
        state._check_stored_messages(set(orders), link.run ^ 1)
    with state.session() as session:
        session.execute(update(MessageIns).where(MessageIns.message_id == orders[0]).values(ttl=0.0))
    state._check_stored_messages(set(orders), link.run)
    assert state.num_message_ins() == 2

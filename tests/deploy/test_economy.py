"""What the SuperLink does not ask its database at each call, and that it is no less right for it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from server_app.deploy.calls.cache import CachedQuery, Traffic
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


def test_traffic_is_counted_in_the_end(link: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    node = link.peer()
    link.order(node.id)
    content = RecordDict({"config": ConfigRecord({"n": 1})})
    node.push(node.pull()[0], content)
    traffic = inspect.unwrap(link.state.store_traffic)
    assert isinstance(traffic, Traffic)
    assert link.state.get_run_info(run_ids=[link.run])[0].bytes_recv == 0
    traffic.write()
    written = link.state.get_run_info(run_ids=[link.run])[0].bytes_recv
    assert written > 100
    monkeypatch.setattr(timing, "TRAFFIC_S", 0.0)
    traffic(link.run, bytes_sent=0, bytes_recv=5)
    assert link.state.get_run_info(run_ids=[link.run])[0].bytes_recv == written + 5
    traffic(link.run + 1, bytes_sent=0, bytes_recv=5)  # a run that is no more
    traffic(link.run, bytes_sent=0, bytes_recv=5)
    assert link.state.get_run_info(run_ids=[link.run])[0].bytes_recv == written + 10

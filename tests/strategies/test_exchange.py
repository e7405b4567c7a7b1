"""Waiting for replies: polling, and grids that know when one is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from strategies.engine.exchange import Exchange, Terms
from strategies.membership.membership import Membership
from task.wire import messages as wire


class Slow:
    """Answers each message after some time, from a thread."""

    def __init__(self, seconds: float) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.seconds = seconds
        self.there: dict[str, Message] = {}
        self.pulls = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(i)
            ids.append(str(i))
            threading.Timer(self.seconds * (i + 1), self.answer, [message]).start()
        return ids

    def answer(self, message: Message) -> None:
        self.there[message.metadata.message_id] = Message(RecordDict(), reply_to=message)

    def get_nodes(self) -> list[Any]:
        return []

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        self.pulls += 1
        return [self.there.pop(i) for i in list(ids) if i in self.there]


class Telling(Slow):
    """The same, and says when a reply is there."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.arrived = threading.Event()

    def answer(self, message: Message) -> None:
        super().answer(message)
        self.arrived.set()

    def wait(self, timeout_s: float) -> None:
        self.arrived.wait(timeout_s)
        self.arrived.clear()


class Joining(Slow):
    """One node, whose answer to a registration query is on its way until `whole` is set."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.fetching, self.whole = threading.Event(), threading.Event()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=1, name="late", last_activated_at="", registered_at="")]

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(ids)
        if replies:
            self.fetching.set()
            self.whole.wait(20.0)
        return replies


def ask(grid: Any, messages: int, timeout_s: float) -> int:
    requests = [wire.message(RecordDict(), 1, "train", 1, 60.0) for _ in range(messages)]
    return len(list(Exchange(grid, requests, timeout_s, Terms(Membership(60.0)))))


@pytest.mark.parametrize("kind", [Slow, Telling])
def test_all_replies_come_whether_polled_or_told(kind: type[Slow]) -> None:
    assert ask(kind(0.05), 3, 10.0) == 3


@pytest.mark.parametrize("kind", [Slow, Telling])
def test_the_time_is_kept(kind: type[Slow]) -> None:
    began = time.monotonic()
    assert ask(kind(0.6), 3, 1.0) == 1
    assert 0.9 < time.monotonic() - began < 10


def test_a_grid_that_tells_is_not_polled() -> None:
    polled, told = Slow(0.1), Telling(0.1)
    ask(polled, 2, 10.0)
    ask(told, 2, 10.0)
    assert told.pulls <= 4 < polled.pulls


def test_an_answer_that_is_fetched_while_its_exchange_ends_is_taken_by_the_next() -> None:
    grid, membership = Joining(), Membership(60.0)
    first = Exchange(grid, (), 60.0, Terms(membership))
    first.look()
    first.fetch(0.01)
    assert grid.fetching.wait(10.0)
    first.close()
    after = Exchange(grid, (), 60.0, Terms(membership))
    grid.whole.set()
    after.fetch(10.0)
    after.close()
    assert list(membership.claims) == [1]

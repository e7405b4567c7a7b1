"""Replies from a SuperLink that says which are there, and from one that cannot."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import httpx
import pytest
from flwr.app import Message

from strategies.transport import pull
from strategies.transport.packed import PackingGrid
from task import timing
from task.flower import grid as flower_grid
from task.flower.grid import answered
from task.wire import parts

LONG_S = 20.0
REPLY = cast(Message, object())


class Link:
    """A grid whose SuperLink holds questions."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.there: set[str] = set()
        self.asked: list[set[str]] = []
        self.pulled: list[str] = []
        self.broken: dict[str, Callable[[], object]] = {}

    def arrive(self, *ids: str) -> None:
        with self.change:
            self.there |= set(ids)
            self.change.notify_all()

    def answered(self, grid: Any, ids: Iterable[str], hold_s: float) -> set[str] | None:
        wanted = set(ids)
        with self.change:
            self.asked.append(wanted)
            self.change.wait_for(lambda: self.there & wanted, LONG_S)
            return self.there & wanted

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        (one,) = ids
        self.pulled.append(one)
        if one in self.broken:
            self.broken[one]()
        with self.change:
            here = one in self.there
            self.there.discard(one)
        return [REPLY] if here else []


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    link = Link()
    monkeypatch.setattr(pull, "answered", link.answered)
    return link


@pytest.fixture
def fetch(link: Any) -> Iterator[pull.OneByOne]:
    fetch = pull.OneByOne(link, time.monotonic() + 60.0, 1 << 20, pull.FetchedReplies())
    yield fetch
    fetch.close()


def got(fetch: pull.OneByOne, seconds: float = 10.0) -> set[str]:
    return {message_id for message_id, _ in fetch.get(seconds)}


def test_only_what_is_there_is_pulled_and_it_is_at_once(link: Link, fetch: pull.OneByOne) -> None:
    fetch.add([f"m{i}" for i in range(50)])
    threading.Timer(0.3, link.arrive, ["m7"]).start()
    began = time.monotonic()
    assert got(fetch) == {"m7"}
    assert time.monotonic() - began < 5.0
    assert link.pulled == ["m7"]
    link.arrive("m3", "m5")
    found = got(fetch)
    while len(found) < 2:
        found |= got(fetch)
    assert found == {"m3", "m5"}
    assert sorted(link.pulled) == ["m3", "m5", "m7"]
    assert len(link.asked[-1]) >= 47


def test_what_is_added_while_a_question_is_held_is_asked_for(link: Link, fetch: pull.OneByOne) -> None:
    fetch.add(["old"])
    assert got(fetch, 0.2) == set()
    assert link.asked == [{"old"}]
    fetch.add(["new"])
    link.arrive("new")  # the first question is not about it, and goes on
    assert got(fetch) == {"new"}


def test_what_is_dropped_is_asked_for_no_more(link: Link, fetch: pull.OneByOne) -> None:
    fetch.add(["a", "b"])
    fetch.drop("a")
    link.arrive("a", "b")
    assert got(fetch) == {"b"}
    assert "a" not in link.pulled


def test_an_upload_that_is_stuck_holds_up_no_other(
    link: Link, fetch: pull.OneByOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FETCH_S", 0.2)
    go = threading.Event()
    link.broken["stuck"] = lambda: go.wait(LONG_S)
    fetch.add(["stuck", "good"])
    link.arrive("stuck", "good")
    assert got(fetch) == {"good"}
    go.set()
    assert got(fetch) == {"stuck"}


def test_an_error_of_one_is_its_own(link: Link, fetch: pull.OneByOne) -> None:
    def fail() -> None:
        raise ValueError("broken")

    link.broken["bad"] = fail
    fetch.add(["bad", "good"])
    link.arrive("bad", "good")
    found = dict(fetch.get(10.0))
    while len(found) < 2:
        found |= fetch.get(10.0)
    assert str(found["bad"]) == "broken"
    assert found["good"] is REPLY


def test_what_is_said_to_be_there_and_is_not_is_not_pulled_all_the_time(
    link: Link, fetch: pull.OneByOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a reply of which the upload has stood still for too long."""
    link.broken["ghost"] = lambda: link.there.discard("ghost")
    monkeypatch.setattr(pull, "answered", lambda *_: {"ghost"})
    fetch.add(["ghost"])
    assert got(fetch, 1.0) == set()
    assert 1 <= len(link.pulled) < 300  # else tens of thousands


def test_a_superlink_that_cannot_say_is_polled(
    link: Link, fetch: pull.OneByOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pull, "answered", lambda *_: asked.append(1))
    fetch.add(["a", "b"])
    threading.Timer(0.2, link.arrive, ["b"]).start()
    assert got(fetch) == {"b"}
    assert asked == [1]
    assert {"a", "b"} <= set(link.pulled)


def test_a_question_that_fails_is_no_error_of_its_own(
    link: Link, fetch: pull.OneByOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise httpx.ReadError("away")

    monkeypatch.setattr(pull, "answered", fail)
    link.arrive("a")
    fetch.add(["a"])
    assert got(fetch) == {"a"}

    def ends() -> None:
        raise httpx.ConnectError("gone")

    link.broken["b"] = ends
    fetch.add(["b"])
    with pytest.raises(httpx.ConnectError, match="gone"):
        fetch.get(10.0)


# ------------------------------------------------------------------------ the question itself


class Client:
    """As the grid's client of the Runtime API."""

    def __init__(self, status: int, found: Iterable[str] = ()) -> None:
        self._status, self._found = status, list(found)
        self.path = ""

    def _unary_unary(self, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        self.path = path
        if self._status != 200:
            request = httpx.Request("POST", f"http://link{path}")
            raise httpx.HTTPStatusError("", request=request, response=httpx.Response(self._status))
        return response_type(message_ids=self._found)


class Grid:
    """As Flower's grid of a deployed run."""

    def __init__(self, client: Client) -> None:
        self._runtime_client = client


def test_the_question_goes_through_the_grids_client_also_of_a_grid_that_packs() -> None:
    client = Client(200, ["b"])
    for grid in (Grid(client), PackingGrid(Grid(client))):  # type: ignore[arg-type]
        assert answered(grid, ["a", "b"], 1.5) == {"b"}  # type: ignore[arg-type]
    assert client.path == "/v1/runtime/bouquet-answered?hold=1.5"


@pytest.mark.parametrize("status", [404, 405])
def test_another_superlink_cannot_say(status: int) -> None:
    assert answered(Grid(Client(status)), ["a"], 1.0) is None  # type: ignore[arg-type]


def test_a_grid_without_such_a_client_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(object(), ["a"], 1.0) is None  # type: ignore[arg-type]
    monkeypatch.setattr(flower_grid, "fits", lambda use: False)
    assert answered(Grid(Client(200)), ["a"], 1.0) is None  # type: ignore[arg-type]


def test_an_error_of_the_superlink_is_raised() -> None:
    with pytest.raises(httpx.HTTPStatusError):
        answered(Grid(Client(500)), ["a"], 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [200, 404])
def test_small_objects_are_pushed_together_where_the_link_takes_them(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    http_grid: Any = importlib.import_module("flwr.superlink.grid.http_grid")

    monkeypatch.setattr(http_grid, "push_objects", http_grid.push_objects)
    monkeypatch.setattr(parts, "MOST", 200)
    flower_grid.pack_pushes(Grid(_Parts(status)))  # type: ignore[arg-type]
    objects = {64 * name: _Object(size) for name, size in {"a": 50, "b": 60, "c": 300, "d": 5}.items()}
    pushed: dict[str, bytes] = {}
    http_grid.push_objects(
        objects,
        pushed.__setitem__,
        object_ids_to_push={64 * name for name in "abc"},
    )
    unpacked = {name: parts.unpack(content) or {name: content} for name, content in pushed.items()}
    assert {n: c for found in unpacked.values() for n, c in found.items()} == {
        64 * "a": b"x" * 50, 64 * "b": b"x" * 60, 64 * "c": b"x" * 300
    }  # fmt: skip
    assert len(pushed) == (2 if status == 200 else 3)


class _Object:
    def __init__(self, size: int) -> None:
        self._size = size

    def deflate(self) -> bytes:
        return b"x" * self._size


class _Parts(Client):
    def __init__(self, status: int) -> None:
        super().__init__(status)

    def _unary_unary(self, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        if self._status != 200:
            return super()._unary_unary(
                path=path, rpc_method=rpc_method, request=request, response_type=response_type
            )
        answer = response_type()
        answer.ParseFromString(parts.pack([]))
        return answer

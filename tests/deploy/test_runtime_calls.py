"""The Runtime API's calls that the link serves itself: as Flower does, and one question that is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.superlink.main import create_app
from flwr.superlink.servicer.runtime import runtime_handlers

from server_app.deploy.calls.limits import Limits
from server_app.deploy.flower import runtime_api
from server_app.deploy.flower.gate import Gate
from server_app.deploy.flower.replies import confirm_reply, pull_replies
from server_app.deploy.flower.runtime_api import CALLS, RuntimeCalls
from task import timing
from task.flower.grid import ANSWERED, PARTS, parts
from tests.support.fleet import Peer, Served, answer_to, arrays, served

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
VERSION = {
    "flwr-package-name": "flwr",
    "flwr-package-version": version("flwr"),
    "flwr-component-name": "test",
}


class Caller:
    """Calls the link's HTTP application without its port; calls go on beside the test."""

    def __init__(self, link: Served, *, ours: bool = True) -> None:
        app = create_app()
        app.state.superexec_auth_secret = b"s" * 48
        app.state.runtime_state_factory = type("Factory", (), {"state": lambda self: link.state})()
        self.calls = RuntimeCalls(lambda: link.delivery)
        self._app, self._token = Gate(app, self.calls if ours else None), link.token
        self._pool = ThreadPoolExecutor(4)

    def start(self, path: str, message: Any, token: str | None = None) -> Future[httpx.Response]:
        content = message if isinstance(message, bytes) else message.SerializeToString()
        headers = PROTOBUF | VERSION | {"flwr-task-token": self._token if token is None else token}

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, timeout=60) as client:
                return await client.post(f"https://link{path}", headers=headers, content=content)

        return self._pool.submit(lambda: asyncio.run(go()))

    def post(self, path: str, message: Any, token: str | None = None) -> httpx.Response:
        return self.start(path, message, token).result(timeout=20)

    def _unary_unary(self, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        answer = response_type()
        answer.ParseFromString(self.post(path, request).raise_for_status().content)
        return answer

    def ask(self, *orders: str, hold: Any = 0, token: str | None = None) -> Future[httpx.Response]:
        """Ask which orders are answered."""
        return self.start(f"{ANSWERED}?hold={hold}", PullAppMessagesRequest(message_ids=orders), token)


def said(call: Future[httpx.Response]) -> list[str]:
    response = call.result(timeout=10)
    assert response.status_code == 200, response.text
    return list(PullAppMessagesRequest.FromString(response.content).message_ids)


def small(n: int = 1) -> RecordDict:
    return RecordDict({"config": ConfigRecord({"n": n})})


def held(caller: Caller) -> None:
    """Wait until the question is held."""
    deadline = time.monotonic() + 10
    while not caller.calls._held:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(timing, "ANSWERED_S", 15.0)  # no test waits as long
    with served(tmp_path, Limits(300_000, 600)) as link:
        pull = pull_replies(link.delivery, runtime_handlers.pull_messages)
        confirm = confirm_reply(link.delivery, runtime_handlers.confirm_message_received)
        monkeypatch.setattr(runtime_handlers, "pull_messages", pull)
        monkeypatch.setattr(runtime_handlers, "confirm_message_received", confirm)
        yield link


@pytest.fixture
def node(link: Served) -> Peer:
    return link.peer()


def test_the_question_is_answered_when_all_of_a_reply_is_here(link: Served, node: Peer) -> None:
    caller, order, other = Caller(link), link.order(node.id), link.order(link.peer().id)
    call = caller.ask(order, other, hold=99)
    held(caller)
    reply, objects = answer_to(node.pull()[0], small(), node.id)
    head = node.push_head(reply)
    for part in head.objects_to_push:
        assert not call.done()
        assert said(caller.ask(order, other)) == []
        node.push_object(link.run, head.session_id, part, objects[part])
    assert said(call) == [order]
    assert said(caller.ask(order, other)) == [order]  # it marks nothing as delivered
    assert not link.replies(order)[0].HasField("error")


def test_the_question_is_answered_when_an_error_stands_for_a_reply(link: Served, node: Peer) -> None:
    caller, order = Caller(link), link.order(node.id)
    call = caller.ask(order, hold=99)
    held(caller)
    link.delivery.answer(order, node.id, "why not")
    assert said(call) == [order]


def test_without_an_answer_the_question_ends_in_time(
    link: Served, node: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, order = Caller(link), link.order(node.id)
    assert said(caller.ask(order, hold=0.2)) == []
    monkeypatch.setattr(timing, "ANSWERED_S", 0.2)
    assert said(caller.ask(order, hold=99)) == []
    assert said(caller.ask(order, hold="soon")) == []


def test_what_flower_answers_with_an_error_is_answered(link: Served, node: Peer) -> None:
    gone, left = link.order(link.peer().id), link.peer()
    lost, kept = link.order(left.id), link.order(node.id)
    link.delivery.forget({gone})
    link.state.delete_node(NOOP_FLWR_AID, left.id)
    assert set(said(Caller(link).ask("0" * 64, gone, lost, kept))) == {"0" * 64, gone, lost}


def test_more_questions_than_are_held_are_answered_at_once(
    link: Served, node: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_api, "HELD_QUESTIONS", 0)
    assert said(Caller(link).ask(link.order(node.id), hold=99)) == []


def test_held_questions_end_with_the_superlink(link: Served, node: Peer) -> None:
    caller = Caller(link)
    call = caller.ask(link.order(node.id), hold=99)
    held(caller)
    link.delivery.arrivals.close()
    assert said(call) == []


@pytest.mark.parametrize("path", [*CALLS, ANSWERED, PARTS])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_every_call_needs_the_token_of_a_task_that_runs(link: Served, path: str, token: str) -> None:
    caller, theirs = Caller(link), Caller(link, ours=False)
    answer = caller.post(path, b"", token)
    assert answer.status_code == 401, answer.text
    if path in CALLS:
        flowers = theirs.post(path, b"", token)
        assert (answer.status_code, answer.json()) == (flowers.status_code, flowers.json())
    link.state.finish_task(link.task.task_id, "completed", "")
    assert caller.post(path, b"").status_code == 401


@pytest.mark.parametrize("ours", [True, False])
def test_a_reply_is_pulled_as_flower_does(link: Served, node: Peer, ours: bool) -> None:
    caller, order = Caller(link, ours=ours), link.order(node.id)
    node.push(node.pull()[0], small())
    answer = caller.post("/v1/runtime/pull-messages", PullAppMessagesRequest(message_ids=[order]))
    assert answer.headers["content-type"] == "application/protobuf"
    (reply,) = PullAppMessagesResponse.FromString(answer.content).messages_list
    request = PullObjectRequest(node=Node(node_id=SUPERLINK_NODE_ID), object_id=reply.metadata.message_id)
    found = caller.post("/v1/runtime/pull-object", request)
    assert PullObjectResponse.FromString(found.content).object_content
    request.node.node_id = 7
    assert caller.post("/v1/runtime/pull-object", request).status_code == 412
    assert caller.post("/v1/runtime/pull-object", b"\xff").status_code == 400


def test_many_parts_are_given_at_once_as_many_as_are_small(
    link: Served, node: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, order = Caller(link), link.order(node.id, arrays(40_000))
    tree, ids = [link.state.object_store.get_object_tree(order)], []
    while tree:
        ids.append(tree[-1].object_id)
        tree += tree.pop().children
    grid: Any = SimpleNamespace(_runtime_client=caller)
    expected = {i: link.state.get_object(link.run, i) for i in ids}
    assert len(ids) > 3
    assert parts(grid, [*ids, "0" * 64]) == expected
    monkeypatch.setattr(runtime_api, "PARTS_BYTES", 20_000)
    some = parts(grid, ids)
    assert 0 < len(some) < len(expected)
    assert some.items() <= expected.items()


def test_the_calls_are_those_of_flowers_routes() -> None:
    described = create_app().openapi()["paths"]
    assert set(CALLS) <= set(described)
    assert not {ANSWERED, PARTS} & set(described)
    for path, (name, _) in CALLS.items():
        assert callable(getattr(runtime_handlers, name))
        assert path.endswith("/" + name.replace("_", "-"))

"""The checks of the Fleet API hold where Flower delivers messages, as our delivery does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from flwr.app import ConfigRecord, RecordDict

from server_app.deploy.calls.limits import Limits
from server_app.deploy.host.replacing import replace
from tests.support.fleet import Served, answer_to, arrays, served

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, Limits(300_000, 600), delivers=False) as link:
        yield link


def small() -> RecordDict:
    return RecordDict({"config": ConfigRecord({"n": 1})})


def test_a_reply_goes_through_though_the_serverapp_fetches_its_head_before_its_parts(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    (got,) = node.pull()
    assert node.pull_object(link.run, order)
    node.confirm(got)
    answer, objects = answer_to(got, small(), node.id)
    head = node.push_head(answer)
    (reply,) = link.replies(order)  # with which Flower forgets both messages
    assert reply.metadata.src_node_id == node.id
    for object_id in head.objects_to_push:
        assert node.push_object(link.run, head.session_id, object_id, objects[object_id])
    assert link.delivery.has(reply.metadata.message_id)


def test_a_node_gets_and_confirms_no_message_but_its_own(link: Served) -> None:
    node, victim = link.peer(), link.peer()
    order = link.order(victim.id)
    (got,) = victim.pull()
    assert node.pull_object(link.run, order) is None
    node.confirm(got)  # Flower would delete the message
    assert victim.pull_object(link.run, order)


def test_a_node_answers_for_no_other_and_adds_no_part_to_anothers_reply(link: Served) -> None:
    node, victim = link.peer(), link.peer()
    order = link.order(victim.id)
    (got,) = victim.pull()
    for src, text in ((victim.id, "whose key"), (node.id, "to another")):
        with pytest.raises(grpc.RpcError, match=text):
            node.push(got, small(), src=src)
    answer, objects = answer_to(got, small(), victim.id)
    head = victim.push_head(answer)
    one = head.objects_to_push[0]
    assert not node.push_object(link.run, head.session_id, one, objects[one])
    assert not link.delivery.has(one)
    assert [reply.metadata.src_node_id for reply in link.replies(order)] == [victim.id]


def test_a_reply_that_is_too_large_is_not_taken(link: Served) -> None:
    node = link.peer()
    order = link.order(node.id)
    with pytest.raises(grpc.RpcError, match="at most 300000 bytes of a reply"):
        node.push(node.pull()[0], arrays(400_000))
    assert not link.delivery.has(link.replies(order)[0].metadata.message_id)


def test_a_call_that_ours_does_not_know_goes_to_flowers_function() -> None:
    class State:
        def ask(self, key: str, *, fresh: bool = False) -> str:
            return f"theirs {key} {fresh}"

    state = State()
    replace(state, ask=lambda key: f"ours {key}")
    assert (state.ask("a"), state.ask("a", fresh=True)) == ("ours a", "theirs a True")

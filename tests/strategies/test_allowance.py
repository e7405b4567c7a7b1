"""What one reply may cost while Flower fetches it: bytes, parts that are listed again and again, and time."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity

from task.errors import WireError
from task.flower.transfer_budget import Allowance, granted

MEGA = 1 << 20


@pytest.fixture
def fetch() -> Callable[..., Any]:
    """Return Flower's function that gathers a reply's parts, as its grid calls it."""
    from flwr.superlink.grid import http_grid

    with granted(Allowance(1, 0.0)):
        pass
    return lambda ids, pull: http_grid.pull_objects(object_ids=ids, pull_object_fn=pull)


def parts_of(array: np.ndarray) -> tuple[str, dict[str, bytes]]:
    """Return a reply's id and its parts, as they lie in the SuperLink."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    content = RecordDict({"arrays": ArrayRecord({"w": Array(array)})})
    message = Message(content, dst_node_id=5, message_type="train")
    return message.object_id, {i: o.deflate() for i, o in get_all_nested_objects(message).items()}


def bomb(times: int) -> tuple[str, dict[str, bytes]]:
    """Return an array of 1 MB that lists its one part so many times."""
    _, parts = parts_of(np.frombuffer(np.random.default_rng(1).bytes(MEGA), np.uint8))
    head, body = next(c for c in parts.values() if c.startswith(b"Array ")).split(b"\0", 1)
    told = json.loads(body) | {"arraychunk_ids": [0] * times}
    body = json.dumps(told).encode()
    content = b" ".join([*head.split(b" ")[:2], str(len(body)).encode()]) + b"\0" + body
    return get_object_id(content), parts | {get_object_id(content): content}


def inflated(most_bytes: int, object_id: str, parts: dict[str, bytes]) -> Any:
    with granted(Allowance(most_bytes, time.monotonic() + 60)):
        return inflate_object_from_contents(object_id, dict(parts))


def test_an_honest_reply_is_whole_within_what_it_takes() -> None:
    array = np.arange(2 * MEGA, dtype=np.float32)
    object_id, parts = parts_of(array)
    got = inflated(array.nbytes + 4096, object_id, parts)
    assert np.array_equal(got.content["arrays"]["w"].numpy(), array)
    with pytest.raises(WireError, match="where at most 1000000 are expected"):
        inflated(10**6, object_id, parts)


def test_a_part_that_is_listed_a_million_times_takes_no_memory() -> None:
    object_id, parts = bomb(10**6)
    size = sum(len(content) for content in parts.values())
    tracemalloc.start()
    with pytest.raises(WireError, match="where at most"):
        inflated(8 * MEGA, object_id, parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 6 * MEGA
    assert peak < 80 * MEGA  # the list itself, of a terabyte
    plain = inflate_object_from_contents(*bomb(3))
    assert len(plain.data) > 3 * MEGA - 1000  # as Flower does without an allowance


def test_parts_are_counted_while_they_are_fetched_and_each_is_fetched_once(fetch: Callable[..., Any]) -> None:
    pulled: list[str] = []

    def pull(object_id: str) -> bytes:
        pulled.append(object_id)
        return b"x" * MEGA

    with granted(Allowance(2 * MEGA, time.monotonic() + 60)):
        assert len(fetch(["a", "b", "a", "a", "b"], pull)) == 2
    assert sorted(pulled) == ["a", "b"]
    with granted(Allowance(2 * MEGA, time.monotonic() + 60)), pytest.raises(WireError, match="where at most"):
        fetch([str(i) for i in range(500)], pull)
    assert len(pulled) < 50


def test_parts_that_come_at_once_are_counted_and_fetched_no_more(fetch: Callable[..., Any]) -> None:
    pulled: list[str] = []

    def pull(object_id: str) -> bytes:
        pulled.append(object_id)
        return b"pulled"

    def at_once(object_ids: list[str]) -> dict[str, bytes]:
        assert object_ids == ["a", "b", "c"]
        return {"a": b"x" * MEGA, "c": b"here"}

    with granted(Allowance(MEGA, time.monotonic() + 60, at_once)):
        assert fetch(["a", "b", "a", "c"], pull) == {"a": b"x" * MEGA, "b": b"pulled", "c": b"here"}
    assert pulled == ["b"]
    many = {str(i): b"x" * MEGA for i in range(5)}
    with granted(Allowance(MEGA, time.monotonic() + 60, lambda ids: many)), pytest.raises(WireError):
        fetch(list(many), pull)
    assert pulled == ["b"]


def test_an_upload_that_does_not_end_is_given_up_at_the_deadline(fetch: Callable[..., Any]) -> None:
    def pull(object_id: str) -> bytes:
        raise ObjectUnavailableError(object_id)

    began = time.monotonic()
    with granted(Allowance(MEGA, began + 0.5)), pytest.raises(ObjectPullError):
        fetch(["a"], pull)
    assert 0.4 < time.monotonic() - began < 5


def test_a_part_that_comes_later_is_looked_for_soon(fetch: Callable[..., Any]) -> None:
    began = time.monotonic()

    def pull(object_id: str) -> bytes:
        if time.monotonic() < began + 0.3:
            raise ObjectUnavailableError(object_id)
        return b"here"

    with granted(Allowance(MEGA, began + 60)):
        assert fetch(["a"], pull) == {"a": b"here"}
    assert time.monotonic() - began < 2  # Flower's own first pause is 1 s, its last 10 s


def test_who_has_no_allowance_is_not_held_to_one(fetch: Callable[..., Any]) -> None:
    assert len(fetch([str(i) for i in range(5)], lambda i: b"x" * MEGA)) == 5

"""Shares of clients in the bytes of messages, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from task.catalogue.algorithms import ALGORITHMS
from task.wire import messages as wire
from task.wire.traffic import recipients, senders, shares


def record(size: int) -> ArrayRecord:
    return wire.pack_arrays({"w": np.zeros(size, np.float32)})


def test_what_is_everybodys_is_shared_evenly_and_the_rest_is_its_clients() -> None:
    content = RecordDict({"arrays.a": record(1000), "control.high": record(600)})
    content["metrics"] = MetricRecord({"n": [1, 2, 3]})
    own, rest = content["arrays.a"].count_bytes(), content["control.high"].count_bytes() + 1 + 3 * 8  # type: ignore[union-attr]
    found = shares(content, ["a", "b", "c"], {"arrays.a": ("a",)})
    assert found == pytest.approx({"a": own + rest / 3, "b": rest / 3, "c": rest / 3})
    assert sum(found.values()) == pytest.approx(wire.payload_bytes(content))
    assert shares(content, ["a"], {}) == {"a": wire.payload_bytes(content)}


def test_an_order_says_whose_its_records_are() -> None:
    """FedFomo's: a gets the models m1 and m2, b m2 alone, which travels once."""
    one, two = record(10), record(20)
    order = wire.TrainOrder(3, {}, {}, ("a", "b:1"), (0, 0))
    content = wire.train_content(order, {}, {}, {"models": {"a": {"m1": one, "m2": two}, "b:1": {"m2": two}}})
    assert recipients(content) == {"models.m1": ["a"], "models.m2": ["a", "b:1"]}
    found = shares(content, order.clients, recipients(content))
    assert found["a"] - found["b:1"] == pytest.approx(one.count_bytes())
    assert sum(found.values()) == pytest.approx(wire.payload_bytes(content))


def test_records_that_a_node_forwards_are_their_clients() -> None:
    assert senders(ALGORITHMS["fedavg"], ["a"]) == {}  # its node merges
    assert senders(ALGORITHMS["median"], ["a", "b"]) == {"arrays.a": ("a",), "arrays.b": ("b",)}

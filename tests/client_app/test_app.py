"""The ClientApp: several clients on one node, failures of one of them, and other people's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from client_app.answer import answer
from client_app.app import Answers
from client_app.data.node import Node, open_node
from client_app.stages.stage import Outcome
from client_app.training.stacked import Perceptron
from client_app.work import train_clients
from client_app.works import WORK
from task.catalogue.entry import Algorithm, evaluation_of
from task.errors import BouquetError, DataError, FieldError, WireError
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.reference.mlp import average
from tests.support.federation import far, linear, owners_config, write_owners
from tests.support.nodes import NAMES, alone, mean_of, order, read, start


@pytest.fixture
def node(tmp_path: Path) -> Node:
    write_owners(tmp_path / "owners.npz")
    return open_node(read_config(owners_config(tmp_path / "owners.npz", local_test_fraction=0.2)), {})


def test_one_client_is_answered_plainly(node: Node) -> None:
    assert set(answer(node, order(node, ["ben"]))) == {"arrays", "metrics"}
    upload = alone(node, "ben")
    assert upload.num_examples == len(node.data("ben", "train")[0])
    assert upload.arrays["arrays"].keys() == start(node).keys()


def test_several_clients_are_answered_with_their_merged_mean(node: Node) -> None:
    reply = read(answer(node, order(node, NAMES)), NAMES)
    assert sorted(reply.clients) == NAMES
    assert reply.failed == []
    uploads = [alone(node, name) for name in reply.clients]
    assert reply.scalars["num-examples"] == [u.num_examples for u in uploads]
    assert reply.scalars["train-loss"] == [u.scalars["train-loss"] for u in uploads]
    want = linear(average([u.arrays["arrays"] for u in uploads], [u.num_examples for u in uploads]))
    assert far(linear(mean_of(node, reply)), want) < 1e-6


def trained(
    node: Node, clients: list[str], meddle: Callable[[str, wire.ClientUpdate], wire.ClientUpdate]
) -> wire.NodeReply:
    """Train the clients, each upload passed through `meddle(client, upload)`."""

    def work(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
        for client, outcome in train_clients(node, entry, order):
            assert isinstance(outcome, wire.ClientUpdate)
            try:
                yield client, meddle(client, outcome)
            except Exception as err:
                yield client, err

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORK, "train", work)
        return read(answer(node, order(node, clients)), clients)


def failing(victim: str, error: Exception) -> Callable[[str, wire.ClientUpdate], wire.ClientUpdate]:
    def meddle(client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        if victim in (client, "all"):
            raise error
        return upload

    return meddle


@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize(
    ("error", "expected", "got"),
    [
        (ValueError("disk\non  fire"), "a trained client", "code: ValueError: disk on fire"),
        (FieldError("arrays/w", "finite numbers", "NaN"), "finite numbers", "NaN"),
        (WireError("no such thing"), "a trained client", "order: no such thing"),
    ],
)
def test_a_failure_is_one_clients_and_the_others_reply_is_right(
    victim: str, error: Exception, expected: str, got: str, node: Node
) -> None:
    reply = trained(node, NAMES, failing(victim, error))
    others = [name for name in NAMES if name != victim]
    (failed,) = reply.failed
    assert (failed.client, failed.round, failed.expected) == (victim, 1, expected)
    assert failed.got.partition(" (test_app.py, line ")[0] == got
    assert sorted(reply.clients) == others
    uploads = [alone(node, name) for name in reply.clients]
    assert reply.scalars["num-examples"] == [u.num_examples for u in uploads]
    want = linear(average([u.arrays["arrays"] for u in uploads], [u.num_examples for u in uploads]))
    assert far(linear(mean_of(node, reply)), want) < 1e-6


def test_a_simulated_node_says_of_its_errors_whether_they_last() -> None:
    """As a deployed one does; a bug is raised as it is, with its traceback."""
    answers, context = Answers({}, simulation=True), Context(7, 5, {}, RecordDict(), {})
    message: Any = None

    def failing_with(err: Exception) -> Callable[[Message, Context], Message]:
        def work(message: Message, context: Context) -> Message:
            raise err

        return work

    with pytest.raises(BouquetError, match=r"^data: line 3$"):
        answers.explained(message, context, failing_with(DataError("line 3")))
    with pytest.raises(ValueError, match=r"^x$"):
        answers.explained(message, context, failing_with(ValueError("x")))


def test_a_failure_leaves_one_client_over(node: Node) -> None:
    reply = trained(node, ["anna", "ben"], failing("anna", ValueError("x")))
    assert (reply.clients, [q.client for q in reply.failed]) == (["ben"], ["anna"])
    want = linear(alone(node, "ben").arrays["arrays"])
    assert far(linear(mean_of(node, reply)), want) < 1e-6


def test_if_all_fail_the_answer_says_so(node: Node) -> None:
    reply = trained(node, NAMES, failing("all", ValueError("x")))
    assert (reply.clients, sorted(q.client for q in reply.failed)) == ([], NAMES)


def test_a_cohort_that_is_too_large_for_the_memory_trains_in_halves(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, load, tried = read(answer(node, order(node, NAMES)), NAMES), Perceptron.load, []

    def small(self: Perceptron, received: Any, clients: int, own: Any = ()) -> list[torch.Tensor]:
        tried.append(clients)
        if clients > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return load(self, received, clients, own)

    monkeypatch.setattr(Perceptron, "load", small)
    got = read(answer(node, order(node, NAMES)), NAMES)
    assert tried == [5, 2, 3, 1, 2]
    assert got.failed == []
    assert got.scalars == want.scalars
    assert all(np.array_equal(a, mean_of(node, got)[n]) for n, a in mean_of(node, want).items())


@pytest.mark.parametrize("victim", ["anna", "cleo", "emil"])
@pytest.mark.parametrize("value", [1e30, np.nan, np.inf])
def test_a_client_that_diverged_is_left_out_wherever_it_stands(victim: str, value: float, node: Node) -> None:
    """The first client of a node waits before it is folded; its failure must not become another's."""

    def meddle(client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        if client == victim:
            upload.arrays["arrays"]["1.bias"][0] = value
        return upload

    reply = trained(node, NAMES, meddle)
    assert [q.client for q in reply.failed] == [victim]
    assert sorted(reply.clients) == [name for name in NAMES if name != victim]


def test_a_model_that_does_not_fit_is_refused_for_the_whole_node(node: Node) -> None:
    content = order(node, NAMES)
    content["arrays"] = wire.pack_arrays({"w": np.zeros(3, np.float32)})
    with pytest.raises(WireError, match="2 arrays as sent"):
        answer(node, content)


# ------------------------------------------------------------------------ other people's messages


def stock(node: Node, **config: Any) -> RecordDict:
    """Return what Flower's own FedAvg sends."""
    settings = ConfigRecord({"server-round": 1, **config})
    return RecordDict({"arrays": wire.pack_arrays(start(node)), "config": settings})


def test_a_stock_message_is_answered_as_one_client_with_the_pooled_mean(node: Node) -> None:
    content = answer(node, stock(node))
    assert (len(content.array_records), len(content.metric_records)) == (1, 1)  # what Flower asks for
    uploads = [alone(node, name) for name in NAMES]
    counts = [u.num_examples for u in uploads]
    metrics = dict(content["metrics"])  # type: ignore[call-overload]
    assert metrics["num-examples"] == sum(counts)
    assert isinstance(metrics["num-examples"], int)
    loss = sum(n * u.scalars["train-loss"] for n, u in zip(counts, uploads, strict=True)) / sum(counts)
    assert metrics["train-loss"] == pytest.approx(loss)
    want = linear(average([u.arrays["arrays"] for u in uploads], counts))
    assert far(linear(wire.read_arrays(content.array_records["arrays"])), want) < 1e-6


def test_a_stock_evaluation_is_over_all_test_examples(node: Node) -> None:
    content = answer(node, stock(node), evaluation_of(contract_of(node.config)))
    metrics = dict(content["metrics"])  # type: ignore[call-overload]
    assert metrics["num-examples"] == sum(len(node.data(name, "test")[0]) for name in NAMES)
    assert 0 <= metrics["accuracy"] <= 1
    assert metrics["loss"] > 0


def test_a_node_without_a_share_says_so_plainly(node: Node) -> None:
    """Six nodes and five clients, driven by somebody else's strategy: the sixth has nobody to train."""
    idle = open_node(node.config, {"partition-id": 5, "num-partitions": 6})
    with pytest.raises(Exception, match=r"(?i)client") as error:
        answer(idle, stock(node))
    assert not isinstance(error.value, TypeError)

"""One node with several clients, asked directly: what `client_app.app.answer` is tested with."""

from __future__ import annotations

from typing import Any

from flwr.app import RecordDict

from client_app.app import answer
from client_app.node import Node
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.reduce import Mean
from task.wire import messages as wire
from tests.support.federation import SIZES

NAMES = sorted(SIZES)


def start(node: Node) -> Arrays:
    return state_of(build_model("logistic", node.dataset.input_shape, node.dataset.num_classes, seed=1))


def order(node: Node, clients: list[str], **config: Any) -> RecordDict:
    asked = wire.TrainOrder(1, {}, {"lr": 0.1}, tuple(clients), (0,) * len(clients))
    return wire.train_content(asked, {"arrays": wire.pack_arrays(start(node))}, config)


def read(content: RecordDict, asked: list[str]) -> wire.NodeReply:
    return wire.read_reply(content, asked, 1)


def mean_of(node: Node, reply: wire.NodeReply) -> Arrays:
    """Return the weighted mean that a merged reply stands for."""
    mean = Mean(start(node))
    mean.merge(reply.partials["arrays"], int(sum(reply.scalars["num-examples"])), len(reply.clients))
    return mean.result()


def alone(node: Node, client: str) -> wire.ClientUpdate:
    upload = read(answer(node, order(node, [client])), [client]).upload
    assert upload is not None
    return upload

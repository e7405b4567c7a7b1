"""One node with several clients, asked directly, and one node for each owner, which brings its own file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.clientapp import ClientApp

from client_app.answer import answer
from client_app.data.node import Node
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.reduce import Mean
from task.wire import messages as wire
from tests.support.federation import SIZES, write_owners
from tests.support.grid import LocalGrid

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
    mean, sent, count = Mean(start(node)), reply.partials["arrays"], len(reply.clients)
    mean.merge(sent, int(sum(reply.scalars["num-examples"])), count, mean.check_merge(sent, count))
    return mean.result()


def alone(node: Node, client: str) -> wire.ClientUpdate:
    upload = read(answer(node, order(node, [client])), [client]).upload
    assert upload is not None
    return upload


def own_nodes(folder: Path, key: str, said: Mapping[str, object]) -> type[LocalGrid]:
    """Return a grid of one node for each owner; the nodes of `said` have its values under `key`."""
    for name, (x, y) in write_owners(folder / "owners.npz").items():
        np.savez(folder / f"{name}.npz", x=x, y=y)

    class Own(LocalGrid):
        def __init__(self, app: ClientApp, node_configs: Any, run_config: Any = None, **more: Any) -> None:
            own = [
                {"client-name": n, "data-path": str(folder / f"{n}.npz")}
                | ({key: said[n]} if n in said else {})
                for n in sorted(SIZES)
            ]
            super().__init__(app, own, run_config, **more)

    return Own

"""Small ClientApps for tests of the server: each client moves the model by a known amount."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from task.catalogue.algorithms import ALGORITHMS
from task.wire import messages as wire
from task.wire import registration
from task.wire.layouts import Forms


def stock_app(step: Callable[[Context], tuple[float, int]]) -> ClientApp:
    """Return a ClientApp of another author: no registration, arrays and num-examples, other metric names.

    Args:
        step: Gives (what is added to every parameter, number of examples) of a node.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved, n = step(context)
        arrays = [(k, a.numpy() + a.numpy().dtype.type(moved)) for k, a in message.content["arrays"].items()]
        record = ArrayRecord({k: wire.pack_arrays({k: a})[k] for k, a in arrays})
        metrics = MetricRecord({"train_loss": abs(moved), "num-examples": n})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        moved, n = step(context)
        metrics = MetricRecord({"eval_loss": moved, "eval_acc": 0.5, "num-examples": n})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


Work = Callable[[str, wire.TrainOrder], wire.ClientUpdate]


def named_app(
    hosted: Callable[[Context], Mapping[str, int]], work: Work, algorithm: str = "fedavg"
) -> ClientApp:
    """Return a ClientApp that registers and does `work` for each client that is asked for.

    Args:
        hosted: Gives the clients of a node with their example counts.
        work: Gives the upload of a client.
        algorithm: Catalogue entry whose reductions are used for merged answers.
    """
    from client_app.stages.merge import FoldPlan, Merge

    app = ClientApp()
    entry = ALGORITHMS[algorithm]

    @app.query(registration.REGISTER)
    def register(message: Message, context: Context) -> Message:
        clients = hosted(context)
        answer = registration.Registration(
            tuple(clients), np.array(list(clients.values())), pool=str(context.node_id)
        )
        return Message(registration.registration_content(answer), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = wire.read_arrays(message.content["arrays"])  # type: ignore[arg-type]
        order = wire.read_order(entry, message.content, Forms(arrays, ()))
        like = dict.fromkeys((r.name for r in entry.up), arrays)
        merged = Merge(FoldPlan(entry, like, alone=len(order.clients) == 1))
        for client in order.clients:
            merged.add(client, work(client, order))
        return Message(wire.reply_content(merged.reply()), reply_to=message)

    return app


def adds(amounts: Mapping[str, float], counts: Mapping[str, int]) -> Work:
    """Return work that adds a client's amount to every parameter."""

    def work(client: str, order: wire.TrainOrder) -> wire.ClientUpdate:
        moved = {k: (a + a.dtype.type(amounts[client])) for k, a in order.arrays["arrays"].items()}
        return wire.ClientUpdate({"arrays": moved}, {"num-examples": counts[client], "train-loss": 1.0})

    return work


def spread(
    clients: Mapping[str, int], nodes: int
) -> tuple[list[dict[str, Any]], Callable[[Context], dict[str, int]]]:
    """Deal clients to nodes; return the node configs and `hosted` for `named_app`."""
    names = sorted(clients)
    configs: list[dict[str, Any]] = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]

    def hosted(context: Context) -> dict[str, int]:
        i, n = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
        return {c: clients[c] for c in names[i::n]}

    return configs, hosted

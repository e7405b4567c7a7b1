"""The ClientApp: answers the roll call, trains and evaluates the clients that a message names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.loop import LocalTask, train
from client_app.node import Node, open_node
from client_app.solvers import SOLVERS
from task import checks, seeds, wire
from task.algorithms import ALGORITHMS, Algorithm, evaluation_of
from task.arrays import Arrays, only, state_of, trainable_names
from task.config import read_config
from task.errors import BouquetError, FieldError, WireError
from task.evaluate import evaluate
from task.reduce import REDUCTIONS, Reduction
from task.seeds import rng_for, seed_for


def make_app(run_config: Mapping[str, Any] | None = None) -> ClientApp:
    """Return a ClientApp.

    Args:
        run_config: Keys that take the place of the context's, for Flower's Python entry point to the
            simulation, which has no run config.
    """
    made = ClientApp()
    fixed = dict(run_config or {})

    def node_of(context: Context) -> Node:
        return open_node(read_config({**context.run_config, **fixed}), context.node_config)

    @made.query(wire.ROLL_CALL)
    def roll_call(message: Message, context: Context) -> Message:
        try:
            content = wire.roll_call_content(node_of(context).roll_call())
        except BouquetError as err:
            content = wire.refusal_content(str(err))
        return Message(content, reply_to=message)

    @made.train()
    def train_clients(message: Message, context: Context) -> Message:
        return Message(answer(node_of(context), message.content, train_one), reply_to=message)

    @made.evaluate()
    def evaluate_clients(message: Message, context: Context) -> Message:
        return Message(answer(node_of(context), message.content, evaluate_one), reply_to=message)

    return made


def answer(node: Node, content: RecordDict, work: Callable[..., wire.Upload]) -> RecordDict:
    """Do `work` for each client that a message names, one after another, and merge their uploads.

    A message without names comes from somebody else's strategy: all clients of the node are trained and
    their reduction is answered as if the node were one client.

    Raises:
        WireError: What came down does not fit this node: so it is for all of its clients.
    """
    entry = ALGORITHMS[node.config.algorithm]
    entry = entry if work is train_one else evaluation_of(entry)
    model = node.model()
    state = state_of(model)
    like = {"state": state, "trainable": only(state, trainable_names(model))}
    order = wire.read_order(entry, content, {f.name: like[f.holds] for f in entry.down})
    merged = _Merge(entry, like)
    if not order.clients:
        clients = _share(node)
        order = wire.TrainOrder(order.round, order.arrays, order.scalars, clients, (0,) * len(clients))
        for i in range(len(clients)):
            merged.add(clients[i], work(node, entry, order, i))
        return wire.reply_content(merged.as_one_client())
    for i, client in enumerate(order.clients):
        try:
            merged.add(client, work(node, entry, order, i))
        except FieldError as bad:
            merged.fail(client, order.round, bad.field, bad.expected, bad.got)
        except Exception as err:  # a client's failure is its own; the others go on
            kind = "" if isinstance(err, BouquetError) else f"{type(err).__name__}: "
            merged.fail(client, order.round, "", "a trained client", f"{kind}{err}"[:400])
    return wire.reply_content(merged.reply())


def _share(node: Node) -> tuple[str, ...]:
    """Return the clients that are this node's own share of the partition."""
    part, parts = node.share
    names = sorted(node.clients.names)
    return tuple(names[part::parts]) if len(names) > 1 else tuple(names)


class _Merge:
    """The uploads of a node's clients, checked and folded as they come."""

    def __init__(self, entry: Algorithm, like: Mapping[str, Arrays]) -> None:
        self.entry = entry
        self.like = {f.name: like[f.holds] for f in entry.up}
        self.clients: list[str] = []
        self.failed: list[wire.Quarantined] = []
        self.reductions: dict[str, Reduction] = {
            f.name: REDUCTIONS[f.reduce](self.like[f.name]) for f in entry.up
        }
        self.scalars: list[dict[str, float]] = []

    def add(self, client: str, upload: wire.Upload) -> None:
        """Check one client's upload and fold it in."""
        checks.check_scalars(self.entry, upload.scalars)
        weight = upload.num_examples if self.entry.weight == "examples" else 1
        for name, reduction in self.reductions.items():
            checks.check_arrays(name, upload.arrays[name], self.like[name])
            reduction.check(upload.arrays[name], weight, client)
        # The first upload waits: alone it goes up as it is, and costs no fold.
        if not self.clients:
            self.first = upload
        else:
            self._fold_first()
            for name, reduction in self.reductions.items():
                reduction.add(upload.arrays[name], weight, client)
        self.clients.append(client)
        self.scalars.append(upload.scalars)

    def _fold_first(self) -> None:
        if len(self.clients) == 1:
            weight = self.first.num_examples if self.entry.weight == "examples" else 1
            for name, reduction in self.reductions.items():
                reduction.add(self.first.arrays[name], weight, self.clients[0])

    def fail(self, client: str, server_round: int, field: str, expected: str, got: str) -> None:
        """Leave a client out and say why."""
        one_line = " ".join(got.split())
        self.failed.append(wire.Quarantined(client, server_round, field, expected, one_line))

    def reply(self) -> wire.NodeReply:
        """Return the node's answer: plain if it is one client's, else merged."""
        if len(self.clients) == 1 and not self.failed:
            return wire.NodeReply(self.clients, {}, upload=self.first)
        self._fold_first()
        common = set.intersection(*(set(s) for s in self.scalars)) if self.scalars else set()
        lists = {k: [s[k] for s in self.scalars] for k in sorted(common)}
        partials = {name: r.partial() for name, r in self.reductions.items()} if self.clients else {}
        return wire.NodeReply(self.clients, lists, partials=partials, failed=self.failed)

    def as_one_client(self) -> wire.NodeReply:
        """Return the reduction as one plain upload, its scalars averaged by examples.

        Raises:
            WireError: There is no client.
        """
        if not self.clients:
            raise WireError(
                "a message that names no clients is for the node's share of them, which is empty: "
                "more nodes than clients"
            )
        if len(self.clients) == 1:
            return wire.NodeReply(self.clients, {}, upload=self.first)
        counts = [int(s[wire.NUM_EXAMPLES]) for s in self.scalars]
        names = set.intersection(*(set(s) for s in self.scalars)) - {wire.NUM_EXAMPLES}
        means: dict[str, float] = {
            k: math.fsum(s[k] * n for s, n in zip(self.scalars, counts, strict=True)) / sum(counts)
            for k in sorted(names)
        }
        arrays = {name: r.result() for name, r in self.reductions.items()}
        upload = wire.Upload(arrays, {**means, wire.NUM_EXAMPLES: sum(counts)})
        return wire.NodeReply(self.clients, {}, upload=upload)


def train_one(node: Node, entry: Algorithm, order: wire.TrainOrder, i: int) -> wire.Upload:
    """Train client number `i` of the order from the received model; keep what the entry says it keeps."""
    config, client = node.config, order.clients[i]
    model = _received(node, order)
    x, y = node.data(client, "train")
    rng = rng_for(config.seed, seeds.BATCHES, order.round, client)
    epochs = order.epochs[i] or config.train.local_epochs
    lr = order.scalars.get("lr", config.train.learning_rate)
    task = LocalTask(model, x, y, epochs, lr, config.train, rng)
    kept = node.store().load(client, entry.name) if entry.keeps else None
    solver = SOLVERS[entry.solver](config, order.scalars, order.arrays, kept.fields if kept else {})
    devices = [node.device] if node.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout and the like
        torch.manual_seed(seed_for(config.seed, seeds.TORCH, order.round, client))
        solver.begin(task)
        stats = train(task, solver) if solver.trains else {}
        upload, keep = solver.finish(task, stats)
    if entry.keeps:
        node.store().save(client, entry.name, order.round, keep)
    return upload


def evaluate_one(node: Node, entry: Algorithm, order: wire.TrainOrder, i: int) -> wire.Upload:
    """Evaluate the received model on the own test data of client number `i`."""
    client = order.clients[i]
    x, y = node.data(client, "test")
    if len(x) == 0:
        raise FieldError("test data", 'own test examples (run-config key "local-test-fraction")', "none")
    return wire.Upload({}, evaluate(_received(node, order), x, y))


def _received(node: Node, order: wire.TrainOrder) -> torch.nn.Module:
    """Return the process's model with the received parameters and buffers in it."""
    model = node.model()
    received = order.arrays[wire.ARRAYS]
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(received[name]))
    return model


app = make_app()

__all__ = ["app", "make_app"]

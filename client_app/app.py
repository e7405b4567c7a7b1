"""The ClientApp: answers the roll call, trains and evaluates the clients that a message names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.attacks import corrupt, flip_labels, malicious
from client_app.loop import Examples, LocalTask, steps_of, train
from client_app.measure import add_losses, query_clients
from client_app.node import Node, open_node
from client_app.programs import Program, Single, program_of
from client_app.solvers import SOLVERS
from client_app.state import oldest_resumable
from task import checks, seeds, wire
from task.algorithms import ALGORITHMS, Algorithm, evaluation_of
from task.arrays import Arrays, holdings, state_of, trainable_names
from task.config import TrainConfig, read_config
from task.errors import BouquetError, FieldError, WireError
from task.evaluate import evaluate
from task.reduce import REDUCTIONS, Reduction
from task.seeds import rng_for, seed_for
from task.selections import CANDIDATES, SELECTIONS, with_selection


def make_app(run_config: Mapping[str, Any] | None = None) -> ClientApp:
    """Return a ClientApp.

    Args:
        run_config: Keys that take the place of the context's, for `server_app.simulate`, which has no run
            config.
    """
    made = ClientApp()
    fixed = dict(run_config or {})

    def node_of(context: Context) -> Node:
        return open_node(read_config({**context.run_config, **fixed}), context.node_config)

    @made.query(wire.ROLL_CALL)
    def on_roll_call(message: Message, context: Context) -> Message:
        try:
            content = wire.roll_call_content(node_of(context).roll_call())
        except BouquetError as err:
            content = wire.refusal_content(str(err))
        return Message(content, reply_to=message)

    @made.train()
    def on_train(message: Message, context: Context) -> Message:
        return Message(answer(node_of(context), message.content, train_clients), reply_to=message)

    @made.train(wire.BEFORE)
    def on_before(message: Message, context: Context) -> Message:
        node = node_of(context)
        entry = _entry(node).before
        if entry is None:
            raise WireError(f"{node.config.algorithm} has no exchange before the training")
        return Message(answer(node, message.content, train_clients, entry), reply_to=message)

    @made.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        return Message(answer(node_of(context), message.content, evaluate_clients), reply_to=message)

    @made.evaluate(CANDIDATES)
    def on_candidates(message: Message, context: Context) -> Message:
        node = node_of(context)
        entry = SELECTIONS[node.config.server.selection].query
        if entry is None:
            raise WireError(f"selection {node.config.server.selection} asks no candidates")
        return Message(answer(node, message.content, query_clients, entry), reply_to=message)

    return made


def _entry(node: Node) -> Algorithm:
    """Return the contract of the run: its algorithm's, under its selection policy."""
    return with_selection(ALGORITHMS[node.config.algorithm], node.config.server.selection)


Outcome = tuple[str, wire.Upload | Exception]
Work = Callable[[Node, Algorithm, wire.TrainOrder], Iterable[Outcome]]


def answer(node: Node, content: RecordDict, work: Work, entry: Algorithm | None = None) -> RecordDict:
    """Do `work` for the clients that a message names and merge their uploads as they come.

    A message without names comes from somebody else's strategy: all clients of the node are trained and
    their reduction is answered as if the node were one client.

    Args:
        node: This node.
        content: What came down.
        work: `train_clients` or `evaluate_clients`.
        entry: The message's contract; without one, that of the run's algorithm for this work.

    Raises:
        WireError: What came down does not fit this node: so it is for all of its clients.
    """
    if entry is None:
        entry = _entry(node)
        entry = entry if work is train_clients else evaluation_of(entry)
    model = node.model()
    state = state_of(model)
    like = holdings(state, trainable_names(model))
    order = wire.read_order(entry, content, {f.name: like[f.holds] for f in entry.down})
    merged = _Merge(entry, like)
    named = bool(order.clients)
    if not named:
        clients = _share(node)
        order = wire.TrainOrder(order.round, order.arrays, order.scalars, clients, (0,) * len(clients))
    outcomes = work(node, entry, order)
    if work is train_clients and node.config.attack.kind != "none":
        bad = malicious(node.config, tuple(node.clients.names))
        outcomes = corrupt(outcomes, bad, order, trainable_names(model), node.config)
    for client, outcome in outcomes:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            merged.add(client, outcome)
        except Exception as err:  # a client's failure is its own; the others go on
            if not named:
                raise
            merged.fail(client, order.round, err)
    return wire.reply_content(merged.reply() if named else merged.as_one_client())


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
        checked = {}
        for name, reduction in self.reductions.items():
            peaks = checks.check_arrays(name, upload.arrays[name], self.like[name])
            checked[name] = reduction.check(upload.arrays[name], weight, client, peaks)
        # The first upload waits: alone it goes up as it is, and costs no fold.
        if not self.clients:
            self.first = upload
        else:
            self._fold_first()
            for name, reduction in self.reductions.items():
                reduction.add(upload.arrays[name], weight, client, checked[name])
        self.clients.append(client)
        self.scalars.append(upload.scalars)

    def _fold_first(self) -> None:
        if len(self.clients) == 1:
            weight = self.first.num_examples if self.entry.weight == "examples" else 1
            for name, reduction in self.reductions.items():
                reduction.add(self.first.arrays[name], weight, self.clients[0])

    def fail(self, client: str, server_round: int, err: Exception) -> None:
        """Leave a client out and say why."""
        if isinstance(err, FieldError):
            field, expected, got = err.field, err.expected, err.got
        else:
            kind = "" if isinstance(err, BouquetError) else f"{type(err).__name__}: "
            field, expected, got = "", "a trained client", f"{kind}{err}"[:400]
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


def train_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Train the clients of an order from the received model, those that can together as one program.

    Yields:
        Each client with its upload, or with what went wrong. What the entry says is kept was kept by then.
    """
    config = _train_config(node, order)
    epochs = {c: e or config.local_epochs for c, e in zip(order.clients, order.epochs, strict=True)}
    rows: dict[str, np.ndarray] = {}
    for client in order.clients:
        try:
            rows[client] = node.clients.train(node.clients.index(client))
        except BouquetError as err:
            yield client, err
    _, size = _program(node, entry)
    for cohort in _cohorts({c: len(r) for c, r in rows.items()}, epochs, config, size):
        try:
            outcomes = _train_cohort(node, entry, order, cohort, rows, epochs)
        except Exception as err:
            if len(cohort) == 1:
                outcomes = [(cohort[0], err)]
            else:  # find the one whose failure it is
                outcomes = [o for c in cohort for o in _alone(node, entry, order, c, rows, epochs)]
        yield from outcomes


def _program(node: Node, entry: Algorithm) -> tuple[Program, int]:
    return program_of(node.model(), node.config.train.stack if entry.stacks else 1)


def _train_config(node: Node, order: wire.TrainOrder) -> TrainConfig:
    """Return the configured local work; a rule may set the number of steps in each round."""
    steps = int(order.scalars.get(wire.LOCAL_STEPS, 0))
    return replace(node.config.train, local_steps=steps) if steps else node.config.train


def _cohorts(
    sizes: Mapping[str, int], epochs: Mapping[str, int], config: TrainConfig, most: int
) -> list[list[str]]:
    """Return who trains together: clients of like many steps, so that few wait for the others.

    With B = infinity only clients of one size have batches of one size.
    """
    if config.batch_size:
        steps = {c: steps_of(config, n, epochs[c]) for c, n in sizes.items()}
        groups = [sorted(sizes, key=lambda c: (-steps[c], c))]
    else:
        by_size = sorted(sizes, key=lambda c: (sizes[c], -epochs[c], c))
        groups = [list(g) for _, g in groupby(by_size, key=lambda c: sizes[c])]
    return [g[i : i + most] for g in groups for i in range(0, len(g), most)]


def _alone(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    client: str,
    rows: Mapping[str, np.ndarray],
    epochs: Mapping[str, int],
) -> list[Outcome]:
    try:
        return _train_cohort(node, entry, order, [client], rows, epochs)
    except Exception as err:
        return [(client, err)]


def _train_cohort(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    cohort: Sequence[str],
    rows: Mapping[str, np.ndarray],
    epochs: Mapping[str, int],
) -> list[Outcome]:
    """Train some clients together and keep what the entry says they keep."""
    config = node.config
    program, _ = _program(node, entry)
    pool = np.concatenate([rows[c] for c in cohort])
    x, y = node.dataset.inputs(pool).to(node.device), node.dataset.targets(pool).to(node.device)
    if config.attack.kind == "label-flip":
        bad = malicious(config, tuple(node.clients.names))
        flipped = torch.from_numpy(np.repeat([c in bad for c in cohort], [len(rows[c]) for c in cohort]))
        flipped = flipped.to(node.device).view(-1, *[1] * (y.dim() - 1))
        y = torch.where(flipped, flip_labels(y, node.dataset.num_classes), y)
    task = LocalTask(
        program,
        order.arrays[wire.ARRAYS],
        Examples(x, y, [len(rows[c]) for c in cohort]),
        [epochs[c] for c in cohort],
        order.scalars.get("lr", config.train.learning_rate),
        _train_config(node, order),
        [rng_for(config.seed, seeds.BATCHES, order.round, c) for c in cohort],
    )
    before = order.round or None  # somebody else's strategy may not say which round it is
    kept = [node.store().load(c, entry.name, order.run, before) if entry.keeps else None for c in cohort]
    solver = SOLVERS[entry.solver](config, order.scalars, order.arrays, [k.fields if k else {} for k in kept])
    devices = [node.device] if node.device.type == "cuda" else []
    # What trains together draws nothing; dropout and the like are of clients that train alone.
    with nullcontext() if program.stacks else torch.random.fork_rng(devices=devices):
        if not program.stacks:
            torch.manual_seed(seed_for(config.seed, seeds.TORCH, order.round, cohort[0]))
        solver.begin(task)
        stats = train(task, solver) if solver.trains else []
        finished = solver.finish(task, stats)
    add_losses(node, entry, order, cohort, [upload for upload, _ in finished])
    if not entry.keeps:
        return [(client, upload) for client, (upload, _) in zip(cohort, finished, strict=True)]
    pairs = zip(cohort, finished, strict=True)
    return [(client, _keep(node, entry, order, client, *made)) for client, made in pairs]


def _keep(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    client: str,
    upload: wire.Upload,
    keep: dict[str, Arrays],
) -> wire.Upload | Exception:
    """Save what a client keeps and return its upload; a client that diverged keeps what it had."""
    try:
        checks.check_scalars(entry, upload.scalars)
        for name, arrays in (*upload.arrays.items(), *keep.items()):
            checks.check_arrays(name, arrays, arrays)
    except FieldError as err:
        return err
    resumable = oldest_resumable(order.round, node.config.output.checkpoint_every)
    node.store().save(client, entry.name, order.round, keep, order.run, resumable)
    return upload


def evaluate_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Evaluate the received model on the own test data of each client of an order."""
    model = node.model()
    Single(model).load(order.arrays[wire.ARRAYS], 1)
    for client in order.clients:
        try:
            x, y = node.data(client, "test")
            if len(x) == 0:
                wanted = 'own test examples (run-config key "local-test-fraction")'
                raise FieldError("test data", wanted, "none")
            yield client, wire.Upload({}, evaluate(model, x, y))
        except Exception as err:
            yield client, err


app = make_app()

__all__ = ["app", "make_app"]

"""The work of training a message's clients."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch

from client_app.data.node import Node, OneClient
from client_app.data.owner import check_basis, check_tests
from client_app.memory.memory import Memory
from client_app.solvers import solver_of
from client_app.solvers.sgd import OURS, Solver
from client_app.stages import stages_of
from client_app.stages.stage import Outcome
from client_app.training.augment import augmentation
from client_app.training.choice import program_for
from client_app.training.loop import Examples, LocalTask, steps_of
from client_app.training.programs import Program
from task.catalogue.entry import TEST_ACCURACY, TEST_EXAMPLES, TEST_LOSS, Algorithm
from task.config.sections import TrainConfig
from task.errors import MISTAKES, BouquetError, DataError
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.tensors import load_into, seed_drawing
from task.tasks.evaluate import measure
from task.text import logger
from task.wire import messages as wire


def train_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterable[Outcome]:
    """Train an order's clients from the received model, as one program where possible.

    Returns:
        Each client with its upload, or with what went wrong. Client state was saved by then.
    """
    training = Training(node, entry, order)
    outcomes: Iterable[Outcome] = training.run()
    for stage in training.stages:
        outcomes = stage.send(outcomes)
    return outcomes


def check_bounds(node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
    """Refuse an order whose uploads would be computed from less than the owner of the node allows.

    Raises:
        RefusedError: Naming the client, the bound and what makes it less.
    """
    owner, train = node.bounds, _train_config(node, order)
    if not (owner.min_examples or owner.min_steps):
        return
    if entry.work in ("evaluate", "adapt"):  # only metrics of test data are sent
        for client in order.clients:
            check_tests(owner, client, num_tests(node, client))
        return
    trains = entry.work == "train"  # otherwise it asks for losses over all examples
    for client, epochs in zip(order.clients, order.epochs, strict=True):
        rows = len(rows_of(node, entry, client))
        epochs = epochs or train.local_epochs
        check_basis(owner, node.config, train, entry, client, rows, epochs, trains=trains)


def num_tests(node: Node, client: str) -> int:
    """Return how many test examples a client has."""
    return len(node.clients.test(node.clients.index(client)))


def rows_of(node: Node, entry: Algorithm, client: str) -> np.ndarray:
    """Return the rows that a client trains on: its own, or those of all clients of this node."""
    clients, number = node.clients, node.clients.index(client)
    if not entry.pooled or (entry.pooled == "each" and isinstance(clients, OneClient)):
        return clients.train(number)
    if isinstance(clients, OneClient):
        raise DataError(
            f'client {client}: run-config key "algorithm": {entry.name} trains on the data of all clients, '
            "but here each node has only its own; run it in the simulation, on pooled data"
        )
    return np.unique(np.concatenate([clients.train(i) for i in range(len(clients.names))]))


def _train_config(node: Node, order: wire.TrainOrder) -> TrainConfig:
    """Return the configured local work; a rule may set the number of steps in each round."""
    steps = int(order.scalars.get(wire.LOCAL_STEPS, 0))
    return replace(node.config.train, local_steps=steps) if steps else node.config.train


def _cohorts(
    sizes: Mapping[str, int], epochs: Mapping[str, int], config: TrainConfig, most: int
) -> list[list[str]]:
    """Return the cohorts: clients with similar numbers of steps train together, so that few wait.

    With B = infinity only clients of one size have batches of one size.
    """
    if config.batch_size:
        steps = {c: steps_of(config, n, epochs[c]) for c, n in sizes.items()}
        groups = [sorted(sizes, key=lambda c: (-steps[c], c))]
    else:
        by_size = sorted(sizes, key=lambda c: (sizes[c], -epochs[c], c))
        groups = [list(g) for _, g in groupby(by_size, key=lambda c: sizes[c])]
    return [g[i : i + most] for g in groups for i in range(0, len(g), most)]


class Training:
    """The training of the clients of one order."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        self.node, self.entry, self.order = node, entry, order
        self.stages = stages_of(node, entry, order)
        self.memory = Memory(node, entry, order)
        self.config = _train_config(node, order)
        # Number of the training, if its round has several.
        self.number = int(order.scalars.get(wire.TRAINING, 0))

    def run(self) -> Iterator[Outcome]:
        """Yield each client with its upload, or with what went wrong."""
        order = self.order
        self.epochs = {
            c: e or self.config.local_epochs for c, e in zip(order.clients, order.epochs, strict=True)
        }
        self.rows: dict[str, np.ndarray] = {}
        for client in order.clients:
            if any(stage.makes(client) for stage in self.stages):
                continue
            try:
                self.rows[client] = rows_of(self.node, self.entry, client)
            except BouquetError as err:
                yield client, err
        alike: dict[torch.nn.Module, dict[str, int]] = {}  # examples of the clients of one size of model
        for client, rows in self.rows.items():
            alike.setdefault(self.node.local_model(client), {})[client] = len(rows)
        for model, sizes in alike.items():
            self.program, size = self.program_for(model)
            for cohort in _cohorts(sizes, self.epochs, self.config, size):
                yield from self._outcomes(cohort)

    def program_for(self, model: torch.nn.Module) -> tuple[Program, int]:
        """Return the program that trains a model, and the most clients that it takes at once."""
        program, size = program_for(model, self.config, self.node.task, batched=self.entry.batched)
        for stage in self.stages:
            program = stage.program(model, program)
        return program, size

    def _outcomes(self, cohort: Sequence[str]) -> list[Outcome]:
        """Train some clients together; if that fails, in halves, as one client may fail or memory be short.

        A bug is neither, and is raised.
        """
        try:
            return self._cohort(cohort)
        except MISTAKES:
            raise
        except Exception as err:  # an error of one client's data or files, or too little device memory
            if len(cohort) == 1:
                return [(cohort[0], err)]
            logger.warning(
                "round %d: training %d clients as one program (run-config key \"stack\") failed; "
                "retrying in two "
                "halves, which is slower: %s: %s",
                self.order.round, len(cohort), type(err).__name__, err,
            )  # fmt: skip
        half = len(cohort) // 2  # out here, where the failure's memory is free
        return [*self._outcomes(cohort[:half]), *self._outcomes(cohort[half:])]

    def task(
        self,
        program: Program,
        cohort: Sequence[str],
        rows: Sequence[np.ndarray],
        epochs: Sequence[int],
        server_round: int,
    ) -> tuple[LocalTask, Solver, list[dict[str, Arrays]]]:
        """Return clients ready to train in a round: data and received model, solver, what each kept."""
        node, entry, order, config = self.node, self.entry, self.order, self.node.config
        number, sizes = self.number or server_round, [len(r) for r in rows]
        augments = augmentation(config, number, cohort, sizes, node.dataset)
        kept = self.memory.load(cohort, server_round)
        if entry.pooled == "each":
            kept = [
                fields or {"personal": node.initial_of(c)} for c, fields in zip(cohort, kept, strict=True)
            ]
        parts = [order.received(c)[wire.ARRAYS] for c in cohort] if entry.parted else ()
        received = parts[0] if parts else order.arrays.get(wire.ARRAYS, {})
        whole = node.parts(cohort[0]).whole  # clients that train together have one model
        solves = solver_of(entry.solver)
        task = LocalTask(
            program,
            node.initial(cohort[0]) | received if len(received) < len(whole) else received,
            self._examples(cohort, rows, unread=augments is not None and augments.finish is not None),
            epochs,
            order.scalars.get("lr", config.train.learning_rate),
            self.config,
            [seeds.rng_for(config.seeds.train, seeds.BATCHES, number, client) for client in cohort],
            [k.get("personal", {}) for k in kept] if entry.private else parts,
            frozenset(node.parts(cohort[0]).private),
            public=node.public(),
            augmentation=augments,
            lends=solves.__module__.startswith(OURS)
            and not (entry.personal or entry.keeps or entry.private or (program.stacks and self.stages)),
        )
        own = [{name: given.get(c, {}) for name, given in order.per_client.items()} for c in cohort]
        mine = replace(order, clients=tuple(cohort), epochs=tuple(epochs))
        solver = solves(config, order.scalars, order.arrays, kept, own, mine)
        return task, solver, kept

    def _examples(self, cohort: Sequence[str], rows: Sequence[np.ndarray], *, unread: bool) -> Examples:
        """Return what clients train on: their rows, `unread` as pixels, as the stages have changed them."""
        node, data, pool = self.node, self.node.dataset, np.concatenate(rows)

        def read(numbers: np.ndarray) -> torch.Tensor:
            return (data.pixels if unread else data.inputs)(pool[numbers], node.device)

        y = node.task.targets(data, pool).to(node.device)
        examples = Examples(read, y, [len(r) for r in rows], data.as_read if unread else None)
        for stage in self.stages:
            examples = stage.examples(examples, cohort)
        return examples

    def _cohort(self, cohort: Sequence[str]) -> list[Outcome]:
        """Train some clients together and keep what the entry says they keep."""
        node, entry, order, program = self.node, self.entry, self.order, self.program
        with ExitStack() as stack:
            stack.enter_context(self.memory.locked(cohort))
            rows, epochs = [self.rows[c] for c in cohort], [self.epochs[c] for c in cohort]
            task, solver, kept = self.task(program, cohort, rows, epochs, order.round)
            if not program.stacks:  # cohorts draw no random numbers
                stack.enter_context(self._drawing(self.number or order.round, cohort[0]))
            for stage in self.stages:
                stage.start(task, cohort, kept, order.round)
            solver.begin(task)
            stats = solver.run(task) if solver.trains else []
            finished = solver.finish(task, stats)
            measured = entry.personal and node.config.server.clients_evaluate(order.round)
            if (
                measured and entry.pooled != "once"
            ):  # a client that trains on all data has no model of its own
                uploads = [upload for upload, _ in finished]
                _add_tests(node, cohort, solver, task, uploads)
            for stage in self.stages:
                finished = stage.finish(cohort, finished)
            if not entry.keeps:
                return [(client, upload) for client, (upload, _) in zip(cohort, finished, strict=True)]
            pairs = zip(cohort, finished, strict=True)
            return [(client, self.memory.keep(client, *made)) for client, made in pairs]

    @contextmanager
    def _drawing(self, number: int, client: str) -> Iterator[None]:
        """Have dropout and the like drawn by seed, number of the training and client, for the block."""
        device = self.node.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed_drawing(seeds.seed_for(self.node.config.seeds.train, seeds.TORCH, number, client), device)
            yield

    @contextmanager
    def alone(
        self, client: str, rows: np.ndarray, server_round: int
    ) -> Iterator[tuple[torch.nn.Module, LocalTask, Solver]]:
        """Give a client's model, task and solver, as before its training of a round; nothing is kept."""
        model = self.node.model(client)
        program, _ = program_for(model, self.config, self.node.task, batched=False)
        task, solver, kept = self.task(program, [client], [rows], [self.config.local_epochs], server_round)
        with self._drawing(server_round, client):
            for stage in self.stages:
                stage.start(task, [client], kept, server_round)
            yield model, task, solver


def _add_tests(
    node: Node,
    cohort: Sequence[str],
    solver: Solver,
    task: LocalTask,
    uploads: Sequence[wire.ClientUpdate],
) -> None:
    """Add to the uploads the results of the clients' own models on their test data after local training.

    Of fewer test examples than the owner of the node allows nothing is added.
    """
    models = solver.own_models(task)
    for k, (client, state, upload) in enumerate(zip(cohort, models, uploads, strict=True)):
        if num_tests(node, client) >= max(node.bounds.min_examples, 1):
            x, y = node.data(client, "test")
            model = node.model(client)
            load_into(model, state)
            found, _ = measure(solver.predictor(model, task, k), x, y, task=node.task)
            upload.scalars[TEST_LOSS.name] = found["loss"]
            if "accuracy" in found:
                upload.scalars[TEST_ACCURACY.name] = found["accuracy"]
            upload.scalars[TEST_EXAMPLES.name] = found[wire.NUM_EXAMPLES]

"""The work of testing models on clients' test data: one for all, or each client's own."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from client_app.data.node import Node
from client_app.memory.memory import store_of
from client_app.solvers import solver_of
from client_app.solvers.sgd import Solver
from client_app.stages import stages_of
from client_app.stages.stage import Outcome, each
from client_app.work import Training, rows_of
from task.catalogue.entry import SUMS, Algorithm
from task.errors import FieldError, RefusedError, StateError
from task.numerics.arrays import state_of
from task.numerics.tensors import load_into
from task.resolve.schedule import learning_rate
from task.tasks.evaluate import Test, measure
from task.wire import messages as wire
from task.wire.checks import NO_TESTS


def evaluate_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Evaluate the received model, or each client's own, on each client's test data."""
    model = node.model()
    own = entry.personal or not (entry.parted or wire.ARRAYS in order.arrays)
    if not (own or entry.parted):
        load_into(model, order.arrays[wire.ARRAYS])

    stages = stages_of(node, entry, order) if entry.measured else []

    def test_of(client: str) -> Test:
        nonlocal model
        if own:  # as it will be before the training of the next round; nothing is kept
            mine, solver = _own_model(node, entry, order, client)
            return partial(solver.measure, mine)
        if entry.parted:
            model = node.local_model(client)
            load_into(model, order.received(client)[wire.ARRAYS])
        return lambda x, y, task: measure(model, x, y, task=task)

    def of(client: str) -> wire.ClientUpdate:
        x, y = _test_data(node, client)
        test = test_of(client)
        found, sums = test(x, y, node.task)
        arrays = {SUMS.name: sums} if entry.metrics else {}
        for stage in stages:
            arrays |= stage.tested(client, test)
        return wire.ClientUpdate(arrays, found)

    return each(order.clients, of)


def _test_data(node: Node, client: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = node.data(client, "test")
    if len(x) == 0:
        raise FieldError(NO_TESTS, 'own test examples (run-config key "local-test-fraction")', "none")
    return x, y


def adapt_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Evaluate each client's own model on its test data after a round of training; nothing is kept."""
    training = Training(node, entry, order)

    def of(client: str) -> wire.ClientUpdate:
        x, y = _test_data(node, client)
        rows = rows_of(node, entry, client)
        with training.alone(client, rows, order.round + 1) as (model, task, solver):
            solver.begin(task)
            if solver.trains:
                solver.run(task)
        (own,) = solver.own_models(task)
        load_into(model, own)
        found, _ = measure(solver.predictor(model, task, 0), x, y, task=node.task)
        return wire.ClientUpdate({}, found)

    return each(order.clients, of)


def send_own_models(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Send each client's own model, or where there is one for all, what it is after a round of training.

    Raises:
        RefusedError: The owner of the node does not allow it.
    """
    if not (node.bounds.simulation or node.bounds.own_model):
        raise RefusedError(
            "policy: own-model = false; the model of this site may not go to others, which "
            "cross-evaluation = true asks for"
        )
    training = Training(node, entry, order)

    def of(client: str) -> wire.ClientUpdate:
        rows = rows_of(node, entry, client)
        if entry.personal:
            own = state_of(_own_model(node, entry, order, client)[0])
        else:
            with training.alone(client, rows, order.round + 1) as (_, task, solver):
                solver.begin(task)
                solver.run(task)
            (own,) = solver.own_models(task)
        return wire.ClientUpdate({record.name: own for record in entry.up}, {wire.NUM_EXAMPLES: len(rows)})

    return each(order.clients, of)


def kept_model(node: Node, entry: Algorithm, order: wire.TrainOrder, client: str) -> torch.nn.Module:
    """Return the predictor of a trained client: the node's module with the client's own model.

    Raises:
        StateError: It keeps something and has not yet: it would silently get the model that it begins with.
    """
    if entry.keeps:
        kept = store_of(node).path(client, order.run)
        if not kept.exists():
            raise StateError(
                f"client {client}: expected its state in {kept}; there is none. It never trained in "
                "this run, its state was deleted, or it trained on another machine"
            )
    return _own_model(node, entry, order, client)[0]


def _own_model(
    node: Node, entry: Algorithm, order: wire.TrainOrder, client: str
) -> tuple[torch.nn.Module, Solver]:
    """Return a client's predictor, the node's module with its own model, and its solver.

    The model is the one that the client has before its training of the round after `order.round`; nothing is
    kept.
    """
    server_round = order.round + 1
    eta = {"lr": learning_rate(node.config.train, server_round, node.config.server.num_server_rounds)}
    training = Training(node, entry, replace(order, scalars={**eta, **order.scalars}))
    adapts = solver_of(entry.solver).adapts or any(stage.adapts for stage in training.stages)
    rows = rows_of(node, replace(entry, pooled=""), client)[: None if adapts else 0]
    with training.alone(client, rows, server_round) as (model, task, solver):
        solver.personalise(task)
        return solver.predictor(model, task, 0), solver

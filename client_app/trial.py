"""A trial of a user's own code before round 1: a step of the run's own training, and an evaluation.

The first client of a node takes one step on a few of its real examples and is measured, as in a round, and
what it would send is checked. Nothing is kept, sent or drawn: the model is a copy, the generators are put
back, no ledger is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from client_app.data.node import Node
from client_app.solvers.sgd import Solver
from client_app.stages import rehearsed
from client_app.training.loop import LocalTask
from client_app.work import Training
from task import generators
from task.catalogue.entry import Algorithm
from task.config.read import as_run_config
from task.datasets.columns import readable
from task.errors import BouquetError, ConfigError, FieldError, local
from task.numerics import pages
from task.numerics.tensors import copied, load_into
from task.references import blamed, is_reference, place
from task.resolve.contract import contract_of, entry_of
from task.tasks.evaluate import measure
from task.wire import checks
from task.wire import messages as wire
from task.wire.folding import Folding
from task.wire.norms import NormBound

ROWS = 8  # examples that it is tried on, at most
KEYS = ("algorithm", "model", "models.levels", "loss", "optimizer", "augment", "metrics")


@lru_cache(maxsize=4)
def try_out(node: Node) -> None:
    """Try a user's own code on a node's data; a run without such code is not tried.

    Raises:
        ConfigError: Naming the run-config key and where in the user's code it failed.
    """
    keys = as_run_config(node.config)
    own = {key: str(keys[key]) for key in KEYS if is_reference(str(keys.get(key, "")))}
    entry, node = contract_of(node.config), replace(node.at(1), dataset=readable(node.dataset))
    number = next((i for i, n in enumerate(node.clients.num_train()) if n), None)
    if not own or entry.work != "train" or entry.vertical or number is None:
        return
    for phase in (entry, *(p for p in entry.phases.values() if p.work == "train")):
        with generators.kept():
            _try(node, phase, number, own)
    pages.trim(always=True)


def _try(node: Node, entry: Algorithm, number: int, own: Mapping[str, str]) -> None:
    rows = node.dataset.telling(ROWS, node.clients.train(number))
    try:
        _step(node, entry, number, rows)
    except FieldError as err:
        raise _failed(own, err, len(rows), str(err)) from err
    except BouquetError:
        raise
    except Exception as err:  # whatever the user's code raises
        where = place(err).removeprefix(f"{type(err).__name__}: {err}")
        said = f"an error: {type(err).__name__}: {local(err)}{where}"
        raise _failed(own, err, len(rows), said) from err


def _failed(own: Mapping[str, str], err: Exception, count: int, got: str) -> ConfigError:
    key = blamed(err, own)
    return ConfigError(
        f'run-config key "{key}": "{own[key]}": expected a step of training on {count} examples, and an '
        f"evaluation, before round 1; got {got}"
    )


def _step(node: Node, entry: Algorithm, number: int, rows: np.ndarray) -> None:
    """Take a step of one client and measure its model, as in a round."""
    client, config = node.clients.names[number], node.config
    training = Training(node, replace(entry, stages=rehearsed(entry), keeps=()), _order(node, entry, client))
    training.config = replace(training.config, local_steps=1)
    model = copied(node.local_model(client))
    program, _ = training.program_for(model)
    task, solver, _ = training.task(program, [client], [rows], [1], 1)
    for stage in training.stages:
        stage.rehearse(task)
    solver.begin(task)
    stats = solver.run(task) if solver.trains else []
    ((upload, kept),) = solver.finish(task, stats)
    if is_reference(entry.solver) and not config.parted:
        _check_upload(node, entry, client, upload)
    del upload, kept  # they may lie in the model's memory, which is loaded next
    _evaluate(node, number, rows, solver, task, model)


def _evaluate(
    node: Node, number: int, rows: np.ndarray, solver: Solver, task: LocalTask, model: torch.nn.Module
) -> None:
    """Measure the client's own model on a few of its test examples, or on `rows` where it has none."""
    tests = node.clients.test(number)[:ROWS]
    rows = tests if len(tests) else rows
    x, y = node.dataset.inputs(rows), node.task.targets(node.dataset, rows)
    (state,) = solver.own_models(task)
    load_into(model, state)
    measure(solver.predictor(model, task, 0), x.to(node.device), y.to(node.device), task=node.task)


def _check_upload(node: Node, entry: Algorithm, client: str, upload: wire.ClientUpdate) -> None:
    """Refuse what a user's own solver would send, if the server would not take it."""
    own = entry_of(node.config)  # without the stages that change what goes up
    own = next((p for p in (own, *own.phases.values()) if p.solver == entry.solver), own)
    checks.check_scalars(own, upload.scalars)
    forms = replace(node.forms(client), clients=len(node.clients.names))
    Folding(own, forms.of(own.up), NormBound(0.0, {}, frozenset())).checked(
        client, upload.arrays, upload.scalars
    )


def _order(node: Node, entry: Algorithm, client: str) -> wire.TrainOrder:
    """Return an order for one client that has what the contract says, of the initial model."""
    names = node.clients.names
    forms = replace(node.forms(client, drawn=True), clients=len(names))
    scalars = {s.name: min(max(1.0, s.low), s.high) for s in entry.down_scalars}
    arrays = {f.name: forms.of_record(f, client) for f in entry.down}
    return wire.TrainOrder(
        1,
        {f.name: arrays[f.name] for f in entry.down if f.to == "all"},
        {"lr": node.config.train.learning_rate, **scalars},
        (client,),
        (1,),
        "trial",
        {f.name: {client: {client: arrays[f.name]}} for f in entry.down if f.to == "each"},
        tuple(names) if entry.individual else (),
    )

"""Losses of the received model over clients' own training examples, for the policies that select by them."""

import math
from collections.abc import Iterator, Sequence

import torch

from client_app.data.node import Node
from client_app.solvers.sgd import Finished
from client_app.stages.stage import Outcome, Stage, each
from task.catalogue.entry import Algorithm
from task.catalogue.selections import LOSS
from task.catalogue.stages import LOSS_RMS
from task.numerics.tensors import load_into
from task.tasks.base import Task, counted
from task.tasks.evaluate import BATCH
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire


def losses(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int = BATCH, task: Task = CLASSIFICATION
) -> dict[str, float]:
    """Return ``loss``, the mean of l, ``loss-rms``, sqrt(mean of l^2), and ``num-examples``.

    Nothing is drawn and no buffer moves; the rest is as in `task.tasks.evaluate.measure`.
    """
    total, squares, count = 0.0, 0.0, 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for xb, yb in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            each = task.single(model(xb), yb).double()  # 0 where a target does not count
            total += float(each.sum())
            squares += float(each.square().sum())
            count += int(counted(yb).sum())
    model.train(was_training)
    n = max(count, 1)
    return {LOSS.name: total / n, LOSS_RMS.name: math.sqrt(squares / n), wire.NUM_EXAMPLES: count}


def query_clients(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer a query of candidates: of each client F_k(w^t), and nothing else but n_k."""
    names = (wire.NUM_EXAMPLES, *(s.name for s in entry.up_scalars))
    model = received_model(node, order)

    def of(client: str) -> wire.ClientUpdate:
        found = losses(model, *node.data(client, "train"), task=node.task)
        return wire.ClientUpdate({}, {name: found[name] for name in names})

    return each(order.clients, of)


def received_model(node: Node, order: wire.TrainOrder) -> torch.nn.Module:
    """Return this process's model with the received arrays."""
    model = node.model()
    load_into(model, order.arrays[wire.ARRAYS])
    return model


class Loss(Stage):
    """Adds ``loss-rms`` over each client's own training examples to its upload."""

    names = ("loss",)

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Measure the received model; nothing is drawn, and the uploads are otherwise as they were."""
        model = received_model(self.node, self.order)
        for client, (upload, _) in zip(cohort, finished, strict=True):
            found = losses(model, *self.node.data(client, "train"), task=self.node.task)
            upload.scalars[LOSS_RMS.name] = found[LOSS_RMS.name]
        return finished

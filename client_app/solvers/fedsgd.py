"""FedSGD, client half. McMahan et al., AISTATS 2017, section 2: upload g_k, take no step.

g_k = grad F_k(w^t), the gradient of the mean loss over all n_k local examples.
"""

from __future__ import annotations

from client_app.loop import LocalTask, full_gradient
from client_app.solvers.sgd import Solver, named
from task import wire
from task.arrays import Arrays


class FedSGDSolver(Solver):
    """Computes the full local gradient and uploads it as ``gradient``."""

    trains = False

    def finish(self, task: LocalTask, stats: dict[str, float]) -> tuple[wire.Upload, dict[str, Arrays]]:
        """Return g_k and F_k(w^t)."""
        loss, grads = full_gradient(task, training=True)
        scalars = {wire.NUM_EXAMPLES: task.num_examples, wire.TRAIN_LOSS: loss}
        return wire.Upload({"gradient": named(task, grads)}, scalars), {}

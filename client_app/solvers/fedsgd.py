"""FedSGD, client half. McMahan et al., AISTATS 2017, section 2: upload g_k, take no step.

g_k = grad F_k(w^t), the gradient of the mean loss over all n_k local examples.
"""

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_gradient
from task.wire import messages as wire


class FedSGDSolver(Solver, name="fedsgd", trains=False):
    """Computes the full local gradient and uploads it as ``gradient``."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return g_k and F_k(w^t)."""
        losses, grads = full_gradient(task, training=self.training)
        up, scalars = {"gradient": task.named(grads)}, {wire.TRAIN_LOSS: losses}
        return self.updates(task, model=False, up=up, scalars=scalars)

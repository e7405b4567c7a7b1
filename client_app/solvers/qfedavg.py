"""q-FedAvg and q-FedSGD, client half. Li et al., ICLR 2020, arXiv 1905.10497, Algorithms 1 and 2.

q-FedAvg: E epochs of SGD from w^t to w_k, Dw_k = (w^t - w_k) / eta_t;  q-FedSGD: Dw_k = grad F_k(w^t).
F_k = F_k(w^t), the loss of the *received* model over the whole local training set.

==============  =====================  =======================================  =====
symbol          variable               meaning                                  where
==============  =====================  =======================================  =====
F_ref           ``reference-loss``     common unit of the losses                down
a_k             weight                 (F_k / F_ref)^q                          here
|Dw_k|^2        norms, squared         over all parameters together             here
h_k / L         ``lipschitz``          a_k (1 + q eta_t |Dw_k|^2 / F_k)         up
==============  =====================  =======================================  =====

See ``strategies/rules/qfedavg.py`` for the unit and the limits of a_k.
"""

import math

import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_gradient, full_loss, norms, per_client
from client_app.training.programs import Tensors
from task.numerics.fairness import EXPONENT, SMALLEST_LOSS, log_weight
from task.wire import messages as wire

LARGEST = EXPONENT * math.log(2)  # of log a_k, so that it can be added: with more the round is not used


class QFedAvgSolver(Solver, name="qfedavg"):
    """Plain SGD whose update goes up weighted by the loss before."""

    def begin(self, task: LocalTask) -> None:
        """Measure F_k(w^t)."""
        self._losses = full_loss(task)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return a_k (w_k - w^t), the buffers and h_k / L."""
        with torch.no_grad():
            deltas = [p - s for p, s in zip(task.params, task.start, strict=True)]
        # |Dw|^2 = |w_k - w^t|^2 / eta^2
        squares = [(norm / task.lr) ** 2 for norm in norms(deltas)]
        scalars = self.weigh(task, deltas, squares)
        rest = [{n: a for n, a in s.items() if n not in task.program.names} for s in task.states()]
        up = {"delta": task.named(deltas), "buffers": rest}
        return self.updates(task, stats, model=False, up=up, scalars=scalars)

    def weigh(self, task: LocalTask, tensors: Tensors, squares: list[float]) -> dict[str, list[float]]:
        """Multiply each client's tensors by a_k and return the clients' scalars."""
        q, reference = self.config.qffl.q, self.scalars["reference-loss"]
        weights = [math.exp(min(log_weight(loss, reference, q), LARGEST)) for loss in self._losses]
        if q:
            for t in tensors:
                t.mul_(per_client(weights, t).to(t.dtype))
        parts = zip(weights, squares, self._losses, strict=True)
        h = [a * (1.0 + q * task.lr * square / max(loss, SMALLEST_LOSS)) for a, square, loss in parts]
        return {"loss-before": self._losses, "lipschitz": h}


class QFedSGDSolver(QFedAvgSolver, name="qfedsgd", trains=False):
    """Computes the full local gradient and uploads it weighted by the loss."""

    def begin(self, task: LocalTask) -> None:
        """Do nothing: loss and gradient are taken in one pass."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return a_k grad F_k(w^t) and h_k / L."""
        self._losses, grads = full_gradient(task, training=self.training)
        scalars = self.weigh(task, grads, [norm**2 for norm in norms(grads)])
        scalars[wire.TRAIN_LOSS] = self._losses
        return self.updates(task, model=False, up={"gradient": task.named(grads)}, scalars=scalars)

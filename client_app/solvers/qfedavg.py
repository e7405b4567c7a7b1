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

from __future__ import annotations

import math

import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, Tensors, full_gradient, full_loss, norms
from task.numerics.arrays import only
from task.numerics.fairness import EXPONENT, SMALLEST_LOSS, log_weight
from task.wire import messages as wire

LARGEST = EXPONENT * math.log(2)  # of log a_k, so that it can be added: with more the round is not used


class QFedAvgSolver(Solver):
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
        stats = [s | extra for s, extra in zip(stats, self.weigh(task, deltas, squares), strict=True)]
        states = task.program.states(task.params)
        rest = [only(state, [n for n in state if n not in task.program.names]) for state in states]
        return [
            (wire.ClientUpdate({"delta": d, "buffers": b}, {wire.NUM_EXAMPLES: n, **measured}), {})
            for d, b, n, measured in zip(task.named(deltas), rest, task.num_examples, stats, strict=True)
        ]

    def weigh(self, task: LocalTask, tensors: Tensors, squares: list[float]) -> list[dict[str, float]]:
        """Multiply each client's tensors by a_k and return its scalars."""
        q, reference = self.config.qffl.q, self.scalars["reference-loss"]
        out, weights = [], []
        for loss, square in zip(self._losses, squares, strict=True):
            weights.append(math.exp(min(log_weight(loss, reference, q), LARGEST)))
            h = weights[-1] * (1.0 + q * task.lr * square / max(loss, SMALLEST_LOSS))
            out.append({"loss-before": loss, "lipschitz": h})
        if q:
            for t in tensors:
                t.mul_(torch.tensor(weights, dtype=t.dtype, device=t.device).view(-1, *[1] * (t.dim() - 1)))
        return out


class QFedSGDSolver(QFedAvgSolver):
    """Computes the full local gradient and uploads it weighted by the loss."""

    trains = False

    def begin(self, task: LocalTask) -> None:
        """Do nothing: loss and gradient are taken in one pass."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return a_k grad F_k(w^t) and h_k / L."""
        self._losses, grads = full_gradient(task, training=self.training)
        scalars = self.weigh(task, grads, [norm**2 for norm in norms(grads)])
        return [
            (
                wire.ClientUpdate(
                    {"gradient": g}, {wire.NUM_EXAMPLES: n, wire.TRAIN_LOSS: s["loss-before"], **s}
                ),
                {},
            )
            for g, n, s in zip(task.named(grads), task.num_examples, scalars, strict=True)
        ]

"""FedProx, client half. Li et al., MLSys 2020, arXiv 1812.06127, Algorithm 2 and Definition 2.

min_w h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2, so each batch gradient gets mu (w - w^t) added.

=========  ======================  ==============================================  =============
symbol     variable                meaning                                         where
=========  ======================  ==============================================  =============
mu         ``proximal-mu``         weight of the squared proximal term             down
w^t        task.start              received parameters, detached copies            here
gamma      ``gamma``               |grad h_k(w_k; w^t)| / |grad h_k(w^t; w^t)|     up
F_k(w^t)   ``loss-before``         plain loss of the received model                up
=========  ======================  ==============================================  =============

The denominator is |grad F_k(w^t)|, since the proximal term vanishes at w^t; gamma = 0 means solved
exactly, 1 no progress. Measuring it costs two full local gradients (``fedprox.gamma=false`` saves them).
Variable local work: the number of epochs comes with the message (stragglers).
Neutral value: mu = 0 is FedAvg.
"""

from __future__ import annotations

import torch

from client_app.loop import LocalTask, Tensors, full_gradient, norm
from client_app.solvers.sgd import Solver
from task import wire
from task.arrays import Arrays


class FedProxSolver(Solver):
    """SGD on the proximal objective."""

    def begin(self, task: LocalTask) -> None:
        """Measure the received model, for gamma and for the adaptive mu."""
        fedprox = self.config.fedprox
        self._norm_before, self._loss_before = 0.0, None
        if fedprox.gamma or fedprox.adaptive:
            self._loss_before, grads = full_gradient(task)
            self._norm_before = norm(grads)

    def correct(self, task: LocalTask, grads: Tensors) -> None:
        """Add mu (w - w^t)."""
        mu = self.scalars["proximal-mu"]
        if mu:
            torch._foreach_add_(grads, task.params, alpha=mu)
            torch._foreach_add_(grads, task.start, alpha=-mu)

    def finish(self, task: LocalTask, stats: dict[str, float]) -> tuple[wire.Upload, dict[str, Arrays]]:
        """Return w_k with gamma and the loss before."""
        if self._loss_before is not None:
            stats = stats | {"loss-before": self._loss_before}
        if self.config.fedprox.gamma and self._norm_before > 0:
            _, grads = full_gradient(task)
            with torch.no_grad():
                self.correct(task, grads)
            stats = stats | {"gamma": norm(grads) / self._norm_before}
        return super().finish(task, stats)

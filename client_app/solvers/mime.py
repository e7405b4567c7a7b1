"""Mime and MimeLite with momentum, client half. Karimireddy et al. 2021, arXiv 2008.03606, Algorithm 1.

w <- w - eta_t ((1 - beta) g + beta m), for each batch b of each of E epochs; m stands still
MimeLite  g = grad l(w; b)
Mime      g = grad l(w; b) - grad l(w^t; b) + c

======  ====================  =======================================================  ==========
symbol  variable              meaning                                                  where
======  ====================  =======================================================  ==========
m       down ``momentum``     the server's momentum                                    down
c       down ``gradient``     mean of the cohort's full gradients at w^t (Mime)        down
--      up ``gradient``       the client's full gradient at w^t                        up
beta    ``mime.beta``         the server's momentum, 0 = none                          run config
======  ====================  =======================================================  ==========

Both gradients of Mime are of the same batch and deterministic: no dropout, normalisation by the received
statistics, which stay. So is a full gradient.
Neutral values: beta = 0 makes MimeLite plain SGD.
"""

import torch

from client_app.solvers.fedcm import MomentumSolver, Scaled
from client_app.solvers.fsvrg import away_from_start
from client_app.solvers.sgd import Finished
from client_app.training.loop import LocalTask, full_gradient
from client_app.training.programs import Batch, Dense, LossAndGradient


class MimeLiteSolver(MomentumSolver, name="mimelite"):
    """SGD along the client's own gradient and the server's momentum."""

    def begin(self, task: LocalTask) -> None:
        """Take up the momentum, and take the full gradient at w^t."""
        super().begin(task)
        self._full = task.named(full_gradient(task)[1])

    def own_share(self) -> float:
        """Return 1 - beta."""
        return 1.0 - self.config.mime.beta

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and the full gradient at w^t."""
        return self.updates(task, stats, up={"gradient": self._full})


class MimeSolver(MomentumSolver, name="mime", training=False):
    """SGD along variance-reduced gradients and the server's momentum."""

    def begin(self, task: LocalTask) -> None:
        """Take up the momentum and c."""
        super().begin(task)
        self._common = self.received(task, "gradient")

    def own_share(self) -> float:
        """Return 1 - beta."""
        return 1.0 - self.config.mime.beta

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the losses and 1 - beta times the variance-reduced gradient."""
        loss, direction = away_from_start(task, batch)
        with torch.no_grad():
            torch._foreach_add_(direction, self._common)
        return loss, Scaled(Dense(direction), self.own_share())

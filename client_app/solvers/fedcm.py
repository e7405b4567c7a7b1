"""FedCM, client half. Xu, Wang, Wang and Yao 2021, arXiv 2106.10874, Algorithm 1; and MimeLite's steps.

w <- w - eta_t (alpha grad l(w; b) + (1 - alpha) M_t), for each batch b of each of E epochs

========  ====================  ===============================================  ==========
symbol    variable              meaning                                          where
========  ====================  ===============================================  ==========
M_t       down ``momentum``     the last round's mean gradient along the steps   down
alpha     ``fedcm.alpha``       weight of the client's own gradient              run config
tau_k     up ``step-weight``    local steps; with momentum rho |a_k|_1           up
========  ====================  ===============================================  ==========

M_t is the same in every step and at every client; nothing of it is kept. ``weight-decay`` and ``clip-norm``
apply to the mixed direction, as in the authors' code.
Neutral value: alpha = 1 is plain SGD.
"""

from dataclasses import dataclass

import torch

from client_app.solvers.fednova import step_weights
from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, Terms
from client_app.training.programs import Batch, Gradient, LossAndGradient, Tensors


@dataclass
class Scaled:
    """A multiple of a gradient."""

    whole: Gradient
    factor: float

    def add_to(self, into: Tensors, scale: float) -> None:
        """Add `scale` times the gradient in place."""
        self.whole.add_to(into, scale * self.factor)

    def tensors(self) -> Tensors:
        """Return it as tensors."""
        return list(torch._foreach_mul(self.whole.tensors(), self.factor))


class MomentumSolver(Solver):
    """SGD along a mix of the batch's gradient and a direction that is the same for all clients."""

    def own_share(self) -> float:
        """Return the weight of the client's own gradient; the direction has the rest."""
        raise NotImplementedError

    def begin(self, task: LocalTask) -> None:
        """Take up the common direction."""
        self._momentum = self.received(task, "momentum")

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the losses and the client's own part of the direction."""
        loss, gradient = super().gradient(task, batch)
        return loss, gradient if self.own_share() == 1 else Scaled(gradient, self.own_share())

    def terms(self, task: LocalTask) -> Terms:
        """Return the common part."""
        share = self.own_share()
        return [] if share == 1 else [(1.0 - share, self._momentum)]


class FedCMSolver(MomentumSolver, name="fedcm"):
    """SGD along alpha g + (1 - alpha) M_t."""

    def own_share(self) -> float:
        """Return alpha."""
        return self.config.fedcm.alpha

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and tau_k."""
        return self.updates(task, stats, scalars={"step-weight": step_weights(task)})

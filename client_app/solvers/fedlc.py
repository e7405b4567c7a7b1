"""FedLC, client half. Zhang, Li, Li, Xu, Wu, Ding and Wu, ICML 2022, arXiv 2209.00189, equation (8).

w <- w - eta_t grad l(w; b),   l = -log softmax(z - tau n_k^(-1/4))_y

=========  ================  ===================================================  ==========
symbol     variable          meaning                                              where
=========  ================  ===================================================  ==========
z          logits            [K, b, C]; of text [K, b, C, T]                      here
n_{k,c}    counts            the client's own targets of class c [K, C]           here
tau        ``fedlc.tau``     strength of the calibration                          run config
=========  ================  ===================================================  ==========

The denominator is the usual one, over all classes: the paper prints it without the true class, with which
others found that training collapses. A class that the client has not got leaves the softmax, as
0^(-1/4) is infinite; its logit gets no gradient. The counts are those of all the client's training examples.

``train-loss`` is the plain loss, so that it can be compared with FedAvg's. Neutral values: tau = 0, or
classes of one size.
"""

from abc import abstractmethod

import torch

from client_app.solvers.sgd import Solver
from client_app.training.loop import LocalTask
from client_app.training.programs import Batch, Dense, LossAndGradient, leaves_of, losses_of

ABSENT = 1e4  # taken off a logit, so that its softmax is 0 and everything stays finite


class LogitsSolver(Solver):
    """SGD on a loss that changes what is made of the logits."""

    @abstractmethod
    def objective(self, task: LocalTask, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss of each example [K, b], differentiable; 0 where nothing counts."""

    def plain(self, task: LocalTask, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        """Return the task's own loss of each example [K, b]."""
        return losses_of(task.program.task, logits, batch)

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the plain losses [K] and the gradient of the objective."""
        leaves = leaves_of(task.params)
        logits = task.program.logits(leaves, batch.x)
        loss = (self.objective(task, batch, logits).sum(1) * batch.scale).sum()
        with torch.no_grad():
            plain = self.plain(task, batch, logits.detach()).sum(1) * batch.scale
        return plain, Dense(list(torch.autograd.grad(loss, leaves)))


class FedLCSolver(LogitsSolver, name="fedlc"):
    """SGD on the calibrated cross-entropy."""

    def begin(self, task: LocalTask) -> None:
        """Count the classes and form tau n^(-1/4)."""
        self._shift: torch.Tensor | None = None

    def objective(self, task: LocalTask, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss of the calibrated logits."""
        if self._shift is None:
            self._shift = self._of(task, logits.shape[2]).to(logits.device, logits.dtype)
        shift = self._shift[: len(logits)]
        return self.plain(
            task, batch, logits - shift.view(*shift.shape[:1], 1, -1, *[1] * (logits.dim() - 3))
        )

    def _of(self, task: LocalTask, classes: int) -> torch.Tensor:
        """Return tau n_{k,c}^(-1/4) of all clients, [K, C]."""
        offsets, y, tau = task.examples.offsets, task.examples.y, self.config.fedlc.tau
        own = [y[offsets[k] : offsets[k + 1]].flatten() for k in range(task.clients)]
        counts = torch.stack([torch.bincount(v[v >= 0], minlength=classes) for v in own]).double()
        return torch.where(counts > 0, tau * counts.clamp(min=1) ** -0.25, ABSENT)

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the plain losses and the gradient of the calibrated ones."""
        return super().gradient(task, batch) if self.config.fedlc.tau else Solver.gradient(self, task, batch)

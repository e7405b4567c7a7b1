"""FedNTD, client half. Lee, Jeong, Shin, Bae and Yun, NeurIPS 2022, arXiv 2106.03097, equations (3) to (5).

w <- w - eta_t grad l(w; b),
l = CE(z, y) + beta T^2 KL( softmax(z^g_c / T) || softmax(z_c / T) ), over the classes c other than y

======  ======================  ==============================================  ==========
symbol  variable                meaning                                         where
======  ======================  ==============================================  ==========
z       logits                  of the model that is trained [K, b, C]          here
z^g     ``_teacher``            of w^t, which stands still [N, C]               here
beta    ``fedntd.beta``         weight of the distillation                      run config
T       ``fedntd.temperature``  temperature                                     run config
======  ======================  ==============================================  ==========

The teacher is in evaluation mode (no dropout, the received running statistics), so its logits are functions
of the example: they are computed once, before the first step. With two classes the term is 0.

``train-loss`` is the cross-entropy alone. Neutral value: beta = 0.
"""

from itertools import pairwise

import torch

from client_app.solvers.fedlc import ABSENT, LogitsSolver
from client_app.solvers.sgd import Solver
from client_app.training.loop import CHUNK, LocalTask
from client_app.training.programs import Batch, LossAndGradient


class FedNTDSolver(LogitsSolver, name="fedntd"):
    """SGD on cross-entropy and not-true distillation."""

    def begin(self, task: LocalTask) -> None:
        """Compute the received model's logits of all the clients' examples."""
        if not self.config.fedntd.beta:
            return
        params = task.program.load(task.received, 1)
        task.program.train(False)
        with torch.no_grad():
            parts = [
                task.program.logits(params, some.unsqueeze(0))[0]
                for first, end in pairwise(task.examples.offsets)
                for some in torch.split(task.examples.x[int(first) : int(end)], CHUNK)
            ]
        self._teacher = torch.cat(parts)
        task.load(task.own)

    def objective(self, task: LocalTask, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        """Return cross-entropy and distillation of each example."""
        knobs = self.config.fedntd
        assert batch.rows is not None
        teacher = self._teacher.index_select(0, batch.rows.flatten()).view(logits.shape)
        apart = distilled(logits, teacher, batch.y, knobs.temperature)  # of a text, of each position
        return self.plain(task, batch, logits) + knobs.beta * apart.reshape(*logits.shape[:2], -1).sum(2)

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the plain losses and the gradient of both terms."""
        return (
            super().gradient(task, batch) if self.config.fedntd.beta else Solver.gradient(self, task, batch)
        )


def distilled(logits: torch.Tensor, teacher: torch.Tensor, y: torch.Tensor, T: float) -> torch.Tensor:
    """Return T^2 KL over the classes other than y, of logits [K, b, C, ...] and targets [K, b, ...].

    It is 0 where a target does not count.
    """
    true = torch.zeros_like(logits, dtype=torch.bool).scatter_(2, y.clamp(min=0).unsqueeze(2), True)
    p, q = (torch.log_softmax((z / T).masked_fill(true, -ABSENT), 2) for z in (teacher, logits))
    apart = (p.exp() * (p - q)).sum(2)
    return T * T * apart.masked_fill(y < 0, 0.0)

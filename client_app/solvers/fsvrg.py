"""FSVRG, client half. Konečný, McMahan, Ramage, Richtárik 2016, arXiv 1610.02527, Algorithms 3 and 4.

w <- w - h_k ( S_k [grad f_i(w) - grad f_i(w^t)] + g ),   h_k = h / n_k,   S_k = Diag(phi^j / phi_k^j)

for every example i of each of E passes in a new order; a batch of b examples takes their b steps at once,
with b h_k times the batch's mean. So one pass is worth h whatever n_k and B are, and h is of the order of 1.

=========  ====================  ================================================================  ======
symbol     variable              meaning                                                           where
=========  ====================  ================================================================  ======
h          task.lr               ``learning-rate``, by which the decay of FedAvg's applies         config
g          down ``gradient``     full gradient at w^t                                              wire
phi^j      down ``frequency``    share of all examples with a non-zero feature j (sparse)          wire
phi_k^j    up ``frequency``      the same among the client's own, in the exchange before           wire
--         up ``presence``       1 / n_k if phi_k^j > 0, else 0: summed with weights n_k, omega^j  wire
=========  ====================  ================================================================  ======

Only the difference is scaled by S_k, not g; phi_k^j = 0 gives 1, as the difference is 0 there. Both
gradients are deterministic: no dropout, normalisation by the received statistics, which stay.
With ``weight-decay`` lambda the objective is F_k(w) + lambda/2 |w|^2, whose second part is taken exactly at
w.
"""

import numpy as np
import torch

from client_app.solvers.fedsgd import FedSGDSolver
from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_gradient
from client_app.training.programs import Batch, Dense, LossAndGradient, Tensors
from task.catalogue.gradients import SQUARE
from task.numerics.arrays import squared_norm
from task.wire import messages as wire


class GradientSolver(FedSGDSolver, name="gradient", training=False):
    """The full local gradient, deterministic: the exchange before the training."""


class SquaredGradientSolver(GradientSolver, name="gradient-square"):
    """The same with its squared norm, for ``gradient-dissimilarity``."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return g_k, F_k and |g_k|^2."""
        done = super().finish(task, stats)
        for update, _ in done:
            update.scalars[SQUARE.name] = squared_norm(update.arrays["gradient"])
        return done


class CountingSolver(GradientSolver, name="feature-counts"):
    """The same with the counts of the features."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return g_k, phi_k and the client's part of omega."""
        losses, grads = full_gradient(task)
        shares, sizes = frequency(task).astype(np.float32), np.array(task.num_examples)[:, None]
        present = np.where(shares > 0, (1.0 / sizes).astype(np.float32), np.float32(0.0))
        columns = {"frequency": shares, "presence": present}
        up = {name: [{"columns": row} for row in rows] for name, rows in columns.items()}
        up["gradient"] = task.named(grads)
        return self.updates(task, model=False, up=up, scalars={wire.TRAIN_LOSS: losses})


def frequency(task: LocalTask) -> np.ndarray:
    """Return each client's share of examples with a non-zero feature j, float64 [K, d]."""
    offsets, x = task.examples.offsets, task.examples.x
    parts = [x[offsets[k] : offsets[k + 1]] for k in range(task.clients)]
    return np.stack([(part.reshape(len(part), -1) != 0).double().mean(0).cpu().numpy() for part in parts])


def away_from_start(task: LocalTask, batch: Batch) -> tuple[torch.Tensor, Tensors]:
    """Return the losses, and the gradient of a batch less that of the same batch at w^t."""
    loss, here = task.program.gradient(task.params, batch)
    start = [s.expand(len(loss), *s.shape[1:]) for s in task.start]
    _, there = task.program.gradient(start, batch)
    with torch.no_grad():
        step = here.tensors()
        there.add_to(step, -1.0)
    return loss, step


class FSVRGSolver(Solver, name="fsvrg", training=False):
    """Variance-reduced steps."""

    def begin(self, task: LocalTask) -> None:
        """Put g and n_k into tensors."""
        device = task.start[0].device
        self._g = self.received(task, "gradient")
        self._sizes = torch.tensor(task.num_examples, dtype=torch.float32, device=device)
        self._ratio: torch.Tensor | None = None  # S_k of the first layer, [K, 1, d]

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the batch's losses and b / n_k times the variance-reduced gradient."""
        loss, step = away_from_start(task, batch)
        k, decay = len(loss), task.config.weight_decay
        with torch.no_grad():
            if self._ratio is not None:
                step[0].mul_(self._ratio[:k])
            torch._foreach_add_(step, self._g)
            share = 1.0 / (batch.scale * self._sizes[:k])  # b / n_k
            for direction, w in zip(step, task.params, strict=True):
                by_client = share.view(-1, *[1] * (w.dim() - 1))
                direction.mul_(by_client)
                if decay:  # the loop adds decay * w; this step's share of it is b / n_k
                    direction.add_((by_client - 1.0) * w, alpha=decay)
        return loss, Dense(step)


class FSVRGSparseSolver(FSVRGSolver, name="fsvrg-sparse"):
    """With the differences scaled by how rare a feature is here and elsewhere."""

    def begin(self, task: LocalTask) -> None:
        """Compute S_k."""
        super().begin(task)
        own = frequency(task)
        ratio = np.where(own > 0, self.arrays["frequency"]["columns"] / np.where(own > 0, own, 1.0), 1.0)
        self._ratio = torch.tensor(ratio, dtype=torch.float32, device=self._sizes.device).unsqueeze(1)

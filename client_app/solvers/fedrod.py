"""FedRoD, client half. Chen and Chao, ICLR 2022, arXiv 2107.00778, section 4, with a linear head.

For each batch, with features z = f(x), logits s = h_G(z) of the generic model and class counts n_kc:

(f, h_G) <- (f, h_G) - eta grad CE(s_c + gamma log n_kc, y)        the balanced softmax
h_P      <- h_P - eta grad_{h_P} CE(s + h_P(z), y)                 s and z as numbers

=========  =========================  ===================================================  ==========
symbol     variable                   meaning                                              where
=========  =========================  ===================================================  ==========
f, h_G     task.params                the generic model                                    down, up
h_P        ``head``                   the client's own linear head                         kept
n_kc       ``log_counts`` [K, C]      its logarithm; minus infinity of a class without     client
gamma      ``fedrod.gamma``           1 = the paper's, 0 = plain cross-entropy             run config
=========  =========================  ===================================================  ==========

A client's own model has the logits h_G(z) + h_P(z), which is one linear layer: its last layer is the sum of
both. The generic model is h_G(f(x)), without correction; it is what a central evaluation measures, so that a
run shows both. Both losses are of the model before the batch's step. h_P begins at 0, so that a new client's
model is the generic one; the libraries copy h_G's start, with which logits start doubled. h_P takes plain
steps, with the run's momentum and decay. Where gamma = 0 the global model is FedAvg's to the bit.
"""

from collections.abc import Sequence

import numpy as np
import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.auxiliary import AuxiliaryParameters
from client_app.training.loop import LocalTask
from client_app.training.programs import (
    Batch,
    LossAndGradient,
    Tensors,
    differentiated,
    leaves_of,
    losses_of,
)
from task.models.layer_split import last_linear_path
from task.numerics.arrays import Arrays


def balanced(logits: torch.Tensor, log_counts: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return s_c + gamma log n_c of logits [..., C]; for gamma > 0."""
    return logits + gamma * log_counts


class FedRoDSolver(Solver, name="fedrod"):
    """SGD on the balanced loss, and on the client's own head."""

    def begin(self, task: LocalTask) -> None:
        """Count the classes and lay out h_P."""
        path = last_linear_path(task.program.model, task.examples.x[:1], "FedRoD")
        names = task.program.names
        self._at = [names.index(n) for n in (f"{path}.weight", f"{path}.bias") if n in names]
        heads = [torch.zeros_like(task.params[i]) for i in self._at]
        for k, fields in enumerate(self.kept):
            for i, h in zip(self._at, heads, strict=True):
                if "head" in fields:
                    h[k].copy_(torch.from_numpy(fields["head"][names[i]]))
        self.head = AuxiliaryParameters(task, self.config, heads)
        C, y = heads[0].shape[1], task.examples.y
        bounds = zip(task.examples.offsets[:-1].tolist(), task.examples.offsets[1:].tolist(), strict=True)
        counts = [torch.bincount(y[first:end], minlength=C) for first, end in bounds]
        self.log_counts = torch.stack(counts).to(heads[0].dtype).log()

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the balanced loss and its gradient; step h_P."""
        k, gamma, program = len(batch.x), self.config.fedrod.gamma, task.program
        if not gamma:
            found = program.gradient(task.params, batch)
            program.train(False)  # the pass below neither draws nor moves statistics
            with torch.no_grad():
                z, logits = program.features(task.params, batch.x)
            program.train(self.training)
        else:
            leaves = leaves_of(task.params)
            z, logits = program.features(leaves, batch.x)
            scores = balanced(logits, self.log_counts[:k].unsqueeze(1), gamma)
            found = differentiated(losses_of(program.task, scores, batch).sum(1) * batch.scale, leaves)
        with torch.no_grad():
            self.head.step(self._slope(z.detach(), logits.detach(), batch), task.lr)
        return found

    def _slope(self, z: torch.Tensor, logits: torch.Tensor, batch: Batch) -> Tensors:
        """Return the gradient of the personal loss by h_P: delta^T z and the sum of delta = p - onehot(y)."""
        weight, *bias = self.head.first(len(z))
        s = logits + torch.bmm(z, weight.transpose(1, 2))
        s = s + bias[0].unsqueeze(1) if bias else s
        y = batch.y.unsqueeze(2)
        scale = batch.scale.view(-1, 1, 1) * (y >= 0)
        y = y.clamp(min=0)
        delta = torch.softmax(s, 2).scatter_add_(2, y, -torch.ones_like(y, dtype=s.dtype)) * scale
        return [torch.bmm(delta.transpose(1, 2), z), *([delta.sum(1)] if bias else [])]

    def _names(self, task: LocalTask) -> Sequence[str]:
        return [task.program.names[i] for i in self._at]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the generic model; keep h_P."""
        whole = [h.detach().cpu().numpy() for h in self.head.values]
        pairs = list(zip(self._names(task), whole, strict=True))
        heads: list[Arrays] = [{n: np.array(a[k]) for n, a in pairs} for k in range(task.clients)]
        return self.updates(task, stats, keep={"head": heads})

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the models whose last layer is h_G + h_P."""
        summed = [task.params[i] + h for i, h in zip(self._at, self.head.values, strict=True)]
        whole = [(n, t.detach().cpu().numpy()) for n, t in zip(self._names(task), summed, strict=True)]
        return [state | {n: np.array(a[k]) for n, a in whole} for k, state in enumerate(task.states())]

    def personalise(self, task: LocalTask) -> None:
        """Add h_P to the last layer."""
        self.begin(task)
        with torch.no_grad():
            for i, h in zip(self._at, self.head.values, strict=True):
                task.params[i].add_(h)

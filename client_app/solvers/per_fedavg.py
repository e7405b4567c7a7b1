"""Per-FedAvg, client half. Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv 2002.07948, Algorithm 1.

min_w F(w) = mean_k f_k(w - alpha grad f_k(w)): w is the point from which one step makes a client's own model.
Each batch of b examples is cut in two, D = its first floor(b/2) examples, D' = the rest; one example is both.

w~ = w - alpha grad f(w; D),  g' = grad f(w~; D')
FO:  w <- w - eta g'
HF:  w <- w - eta (g' - alpha d),  d = (grad f(w + delta g'; D) - grad f(w - delta g'; D)) / (2 delta)

======  ====================  ============================================  ==========
symbol  variable              meaning                                       where
======  ====================  ============================================  ==========
w       task.params           the meta-model                                down, up
alpha   ``per-fedavg.alpha``  step by which a client adapts                 run config
eta     task.lr               step of the meta-model; the paper's beta      down
delta   ``per-fedavg.delta``  of the difference d, about H g', H of f on D  run config
======  ====================  ============================================  ==========

The paper draws a third batch D'' for d; here it is D, so that HF is the gradient of f(w~; D') itself up to
O(delta^2). ``train-loss`` is f(w~; D'), the loss after the step. Running statistics move with D at w alone.

A client's own model, before local training as after it, is w - alpha grad f_k(w), one step on all its
training examples; its gradient is that of evaluation (no dropout, buffers at rest). Nothing is kept: a client
that is new adapts the global model as everybody does. alpha = 0 is FedAvg that trains on the second halves.
"""

from __future__ import annotations

import torch

from client_app.loop import LocalTask, Tensors, full_gradient
from client_app.programs import Batch, Dense, Gradient
from client_app.solvers.sgd import Solver
from task.arrays import Arrays


class PerFedAvgSolver(Solver):
    """SGD on the loss after one step."""

    adapts = True

    def gradient(self, task: LocalTask, batch: Batch) -> tuple[torch.Tensor, Gradient]:
        """Return f(w~; D') and the meta-gradient."""
        knobs, w, gradient = self.config.per_fedavg, task.params, task.program.gradient
        inner, outer = _halves(batch)
        _, step = gradient(w, inner)
        loss, meta = gradient(_moved(w, step, -knobs.alpha), outer)
        if knobs.form == "fo":
            return loss, meta
        _, ahead = gradient(_moved(w, meta, knobs.delta), inner)
        _, behind = gradient(_moved(w, meta, -knobs.delta), inner)
        total = [g.clone() for g in meta.tensors()]
        ahead.add_to(total, -knobs.alpha / (2 * knobs.delta))
        behind.add_to(total, knobs.alpha / (2 * knobs.delta))
        return loss, Dense(total)

    def personalise(self, task: LocalTask) -> None:
        """Take one step on all the client's data."""
        torch._foreach_add_(task.params, full_gradient(task)[1], alpha=-self.config.per_fedavg.alpha)

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return w_k, adapted."""
        self.personalise(task)
        return task.states()


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return D and D'."""
    half = batch.x.shape[1] // 2
    return _part(batch, slice(0, max(half, 1))), _part(batch, slice(half, None))


def _part(batch: Batch, rows: slice) -> Batch:
    """Return these rows of each client, with the scale of a mean over them."""
    y = batch.y[:, rows]
    counts = (y >= 0).flatten(1).sum(1).clamp(min=1)
    return Batch(batch.x[:, rows], y, 1.0 / counts)


def _moved(params: Tensors, gradient: Gradient, scale: float) -> Tensors:
    """Return params + scale * gradient, as tensors of their own."""
    moved = [p.clone() for p in params]
    gradient.add_to(moved, scale)
    return moved

"""Per-FedAvg, client half. Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv 2002.07948, Algorithm 1.

min_w F(w) = mean_k f_k(w - alpha grad f_k(w)): w is the point from which one step makes a client's own model.
Each batch of b examples is cut in two, D = its first floor(b/2) examples, D' = the rest; one example is both.

w~ = w - alpha grad f(w; D),  g' = grad f(w~; D')
FO:  w <- w - eta g'
HF:  w <- w - eta (g' - alpha H g'),  H = Hessian of f(.; D) at w

======  ====================  ============================================  ==========
symbol  variable              meaning                                       where
======  ====================  ============================================  ==========
w       task.params           the meta-model                                down, up
alpha   ``per-fedavg.alpha``  step by which a client adapts                 run config
eta     task.lr               step of the meta-model; the paper's beta      down
======  ====================  ============================================  ==========

H g' is exact, by differentiating grad f(w; D) once more, where the paper's HF takes a difference of two
gradients: across a kink, as of a ReLU, that is off by as much as the gradient jumps. The paper draws a third
batch D'' for H; here it is D, so that HF is the gradient of f(w~; D') itself. ``train-loss`` is f(w~; D'),
the loss after the step. Running statistics move with D at w alone. The server takes the plain mean of the
w_k.

A client's own model, before local training as after it, is w - alpha grad f_k(w), one step on all its
training examples; its gradient is that of evaluation (no dropout, buffers at rest). Nothing is kept: a client
that is new adapts the global model as all do. alpha = 0 is FedAvg that trains on the second halves.
"""

from contextlib import nullcontext

import torch
from torch import nn

from client_app.solvers.sgd import Solver
from client_app.training.loop import LocalTask, full_gradient
from client_app.training.programs import Batch, Dense, Gradient, LossAndGradient, Tensors, leaves_of
from task.numerics.arrays import Arrays
from task.tasks.base import counted


class PerFedAvgSolver(Solver, name="per-fedavg", adapts=True):
    """SGD on the loss after one step."""

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return f(w~; D') and the meta-gradient."""
        knobs, gradient = self.config.per_fedavg, task.program.gradient
        inner, outer = _halves(batch)
        if knobs.form == "fo":
            _, step = gradient(task.params, inner)
            return gradient(_moved(task.params, step, -knobs.alpha), outer)
        w, slope = _differentiable_gradient(task, inner)
        loss, meta = gradient(_moved(task.params, Dense([g.detach() for g in slope]), -knobs.alpha), outer)
        direction = meta.tensors()
        curved = torch.autograd.grad(slope, w, direction)  # H g'
        return loss, Dense(list(torch._foreach_add(direction, curved, alpha=-knobs.alpha)))

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
    counts = counted(y, 2).sum(1).clamp(min=1)
    return Batch(batch.x[:, rows], y, 1.0 / counts)


def _moved(params: Tensors, gradient: Gradient, scale: float) -> Tensors:
    """Return params + scale * gradient, as tensors of their own."""
    moved = [p.clone() for p in params]
    gradient.add_to(moved, scale)
    return moved


def _differentiable_gradient(task: LocalTask, batch: Batch) -> tuple[Tensors, Tensors]:
    """Return w, to differentiate by, and the gradient there as a function of it."""
    w = leaves_of(task.params)
    # The fast backward pass of a recurrent layer on a GPU cannot be differentiated again.
    recurrent = any(isinstance(module, nn.RNNBase) for module in task.program.model.modules())
    with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        loss = task.program.total(w, batch) * batch.scale[0]
        return w, list(torch.autograd.grad(loss, w, create_graph=True))

"""The one training loop.

Works on the model's parameters directly: the gradient by ``torch.autograd.grad``, the update in place by
``torch._foreach`` kernels. There is no ``torch.optim`` object (its first use imports torch._dynamo, 3 s
and 150 MB in every process) and no ``DataLoader`` (an epoch is one gather, a batch one slice).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from task.config import TrainConfig

if TYPE_CHECKING:
    from client_app.solvers.sgd import Solver

Tensors = list[torch.Tensor]
CHUNK = 512  # examples whose activations are alive at once in `full_gradient`


@dataclass
class LocalTask:
    """One client's training in one round.

    Attributes:
        model: Holds w^t on entry and w_k on return.
        x: Training inputs [n_k, ...].
        y: Training targets [n_k] or [n_k, T], int64.
        epochs: E, or fewer for a straggler.
        lr: eta_t.
        config: Batch size, steps, momentum, weight decay.
        rng: Draws the order of the examples; nothing else draws from it.
    """

    model: torch.nn.Module
    x: torch.Tensor
    y: torch.Tensor
    epochs: int
    lr: float
    config: TrainConfig
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.params: Tensors = [p for p in self.model.parameters() if p.requires_grad]
        self.start: Tensors = [p.detach().clone() for p in self.params]
        """w^t, detached: what a proximal term refers to."""

        self.num_examples = counted(self.y)
        """n_k: examples, or of text the bytes that are predicted; padding does not count."""


def train(task: LocalTask, solver: Solver) -> dict[str, float]:
    """Run the local steps; the model holds w_k afterwards.

    ``local-steps`` > 0 runs so many steps, over as many passes as that takes; else ``epochs`` passes.
    Each pass takes the examples in a new order and ends with a short batch if B does not divide n_k.
    B = 0 (infinity) makes each pass one step on all examples.

    Returns:
        ``train-loss``: mean over all examples, as they were trained on.
    """
    config, model, params = task.config, task.model, task.params
    batch = config.batch_size or len(task.x)
    per_epoch = math.ceil(len(task.x) / batch)
    steps = config.local_steps or task.epochs * per_epoch
    velocity = [torch.zeros_like(p) for p in params] if config.momentum else []
    seen, total = 0, torch.zeros((), dtype=torch.float64, device=task.x.device)
    model.train()
    for step in range(steps):
        i = step % per_epoch
        if i == 0:
            x, y = _shuffled(task, batch)
        xb, yb = x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]
        loss = cross_entropy(model(xb), yb)
        grads = list(torch.autograd.grad(loss, params))
        with torch.no_grad():
            solver.correct(task, grads)
            if config.weight_decay:
                torch._foreach_add_(grads, params, alpha=config.weight_decay)
            if velocity:
                torch._foreach_mul_(velocity, config.momentum)
                torch._foreach_add_(velocity, grads)
                grads = velocity
            torch._foreach_add_(params, grads, alpha=-task.lr)
            n = counted(yb)
            total += loss.detach() * n
        seen += n
    return {"train-loss": float(total) / max(seen, 1)}


def _shuffled(task: LocalTask, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the examples in a new order; a full-batch step needs none."""
    if batch >= len(task.x):
        return task.x, task.y
    order = torch.from_numpy(task.rng.permutation(len(task.x))).to(task.x.device)
    return task.x[order], task.y[order]


def counted(y: torch.Tensor) -> int:
    """Return how many targets count: all, but for padding (-100) in text."""
    return len(y) if y.dim() == 1 else int((y >= 0).sum())


def full_gradient(task: LocalTask, *, training: bool = False) -> tuple[float, Tensors]:
    """Return the mean loss over all local examples and its gradient at the present parameters.

    Accumulated over chunks, so that memory does not grow with n_k.

    Args:
        task: The model and the data.
        training: Take it as a training step would, with dropout and moving statistics. Without, it is a
            measurement: nothing is drawn and no buffer moves.
    """
    grads = [torch.zeros_like(p) for p in task.params]
    count = max(task.num_examples, 1)
    total = 0.0
    task.model.train(training)
    for xb, yb in zip(torch.split(task.x, CHUNK), torch.split(task.y, CHUNK), strict=True):
        loss = cross_entropy(task.model(xb), yb, reduction="sum") / count
        torch._foreach_add_(grads, list(torch.autograd.grad(loss, task.params)))
        total += float(loss.detach())
    return total, grads


def norm(tensors: Tensors) -> float:
    """Return the Euclidean norm of all tensors together, summed in float64."""
    return math.sqrt(math.fsum(float(t.double().square().sum()) for t in tensors))

"""Distillation of an ensemble's mean logits into one model, or into one of each kind, without labels.

The teachers' mean logits are computed once, before the first step; so the examples are drawn into batches
once, and the steps go through these batches in turn.
"""

import math
from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch

from task.numerics.arrays import Arrays, NamedArrays, frozen_in, state_of
from task.numerics.tensors import load_into


class Distiller:
    """Distils models on the CPU, whose result depends on nothing but what it is given.

    Args:
        models: Of the forms of teachers and students, by kind, whose tensors have no name in common; the
            kind of the only one may be "". Copies are taken.
        x: The examples, [P, ...].
    """

    def __init__(self, models: Mapping[str, torch.nn.Module], x: torch.Tensor) -> None:
        self._models = {kind: deepcopy(model).cpu().eval() for kind, model in models.items()}
        self._x = x

    def __call__(
        self,
        start: NamedArrays,
        teachers: NamedArrays,
        steps: int,
        lr: float,
        batch_size: int,
        rng: np.random.Generator,
    ) -> tuple[Arrays, dict[str, float]]:
        """Return each kind's model after some steps towards the teachers, and mean KL divergences of it.

        Each step is one of Adam on the mean over a batch of KL(softmax(t) || softmax(z)), with t the mean of
        the teachers' logits, of all kinds, and z the model's; its rate falls along half a cosine, from `lr`
        towards 0. All models are in evaluation mode: nothing is dropped, and buffers stay those of the start.

        Args:
            start: The models of all kinds, with buffers.
            teachers: Models of each kind, stacked by name, [K, ...]; of a kind there may be none.
            steps: N, at least 1.
            lr: Adam's learning rate in the first step.
            batch_size: Examples of a step.
            rng: Draws the batches.

        Returns:
            The models, and ``kl-before`` and ``kl-after``, the mean over the batches that were used; of
            several kinds with the kind's name behind a hyphen.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a sum over several has another order
        try:
            order = torch.from_numpy(rng.permutation(len(self._x)))
            batches = [self._x[rows] for rows in torch.split(order, batch_size)][:steps]
            wanted, arrays, found = self._wanted(teachers, batches), dict(start), dict[str, float]()
            for kind, model in self._models.items():
                taken, apart = _distilled(model, start, wanted, steps, lr, batches)
                arrays |= {name: taken[name] for name in start if name in taken}
                found |= {f"{key}-{kind}" if kind else key: value for key, value in apart.items()}
            return arrays, found
        finally:
            torch.set_num_threads(threads)

    def _wanted(self, teachers: NamedArrays, batches: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the teachers' mean logits of each batch; of equal teachers, their logits to the bit."""
        totals, count = [torch.zeros((), dtype=torch.float64)] * len(batches), 0
        for model in self._models.values():
            stacks = {name: teachers[name] for name in model.state_dict() if name in teachers}
            clients = len(next(iter(stacks.values()))) if stacks else 0
            for k in range(clients):
                load_into(model, {name: np.array(stack[k]) for name, stack in stacks.items()})
                with torch.no_grad():
                    totals = [t + model(x).double() for t, x in zip(totals, batches, strict=True)]
            count += clients
        return [(total / count).float() for total in totals]


def _distilled(
    model: torch.nn.Module,
    start: NamedArrays,
    wanted: list[torch.Tensor],
    steps: int,
    lr: float,
    batches: list[torch.Tensor],
) -> tuple[Arrays, dict[str, float]]:
    load_into(model, {name: np.array(a) for name, a in start.items()})
    before = _divergence(model, batches, wanted)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(params, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for j in range(steps):
        optimizer.zero_grad()
        logits = model(batches[j % len(batches)])
        logits.backward(by_logits(logits.detach(), wanted[j % len(batches)]))
        optimizer.step()
        schedule.step()
    return state_of(model, frozen_in(model)), {
        "kl-before": before,
        "kl-after": _divergence(model, batches, wanted),
    }


def _divergence(model: torch.nn.Module, batches: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the mean KL divergence over all examples."""
    parts, count = [], 0
    with torch.no_grad():
        for x, target in zip(batches, wanted, strict=True):
            p, q = (torch.log_softmax(z.double(), 1) for z in (target, model(x)))
            parts.append(float((p.exp() * (p - q)).sum()))
            count += p[:, 0].numel()
    return math.fsum(parts) / count


def by_logits(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the mean of KL(softmax(wanted) || softmax(logits)) by the logits, [b, C, ...].

    Written out, as it is then 0 for equal logits, where Adam would scale up what rounding leaves:

    >>> by_logits(torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3), 0.0]]))
    tensor([[-0.2500,  0.2500]])
    """
    away = torch.softmax(logits, 1) - torch.softmax(wanted, 1)
    return away * (away.shape[1] / away.numel())

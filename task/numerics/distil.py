"""Distillation of an ensemble's mean logits into one model, on examples without labels.

The teachers' mean logits are computed once, before the first step; so the examples are drawn into batches
once, and the steps go through these batches in turn.
"""

import math
from copy import deepcopy

import numpy as np
import torch

from task.numerics.arrays import Arrays, NamedArrays, state_of


class Distiller:
    """Distils models of one form on the CPU, whose result depends on nothing but what it is given.

    Args:
        model: Of the form of all teachers and students; a copy is taken.
        x: The examples, [P, ...].
    """

    def __init__(self, model: torch.nn.Module, x: torch.Tensor) -> None:
        self._model, self._x = deepcopy(model).cpu().eval(), x

    def __call__(
        self,
        start: NamedArrays,
        teachers: NamedArrays,
        steps: int,
        lr: float,
        batch_size: int,
        rng: np.random.Generator,
    ) -> tuple[Arrays, dict[str, float]]:
        """Return a model after some steps towards its teachers, and mean KL divergences of it.

        Each step is one of Adam on the mean over a batch of KL(softmax(t) || softmax(z)), with t the mean of
        the teachers' logits and z the model's; its rate falls along half a cosine, from `lr` towards 0.
        All models are in evaluation mode: nothing is dropped, and buffers stay those of the start.

        Args:
            start: The model, with buffers.
            teachers: K models, stacked by name, [K, ...].
            steps: N, at least 1.
            lr: Adam's learning rate in the first step.
            batch_size: Examples of a step.
            rng: Draws the batches.

        Returns:
            The model, and ``kl-before`` and ``kl-after``, the mean over the batches that were used.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a sum over several has another order
        try:
            order = torch.from_numpy(rng.permutation(len(self._x)))
            batches = [self._x[rows] for rows in torch.split(order, batch_size)][:steps]
            return self._distil(start, teachers, steps, lr, batches)
        finally:
            torch.set_num_threads(threads)

    def _distil(
        self, start: NamedArrays, teachers: NamedArrays, steps: int, lr: float, batches: list[torch.Tensor]
    ) -> tuple[Arrays, dict[str, float]]:
        wanted = self._wanted(teachers, batches)
        self._load(start)
        before = self._divergence(batches, wanted)
        params = [p for p in self._model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(params, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for j in range(steps):
            optimizer.zero_grad()
            logits = self._model(batches[j % len(batches)])
            logits.backward(by_logits(logits.detach(), wanted[j % len(batches)]))
            optimizer.step()
            schedule.step()
        taken = state_of(self._model)
        found = {"kl-before": before, "kl-after": self._divergence(batches, wanted)}
        return {name: taken[name] for name in start}, found

    def _load(self, arrays: NamedArrays) -> None:
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                tensor.copy_(torch.from_numpy(np.array(arrays[name])))

    def _wanted(self, teachers: NamedArrays, batches: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the teachers' mean logits of each batch; of equal teachers, their logits to the bit."""
        clients = len(next(iter(teachers.values())))
        totals = [torch.zeros((), dtype=torch.float64)] * len(batches)
        for k in range(clients):
            self._load({name: stack[k] for name, stack in teachers.items()})
            with torch.no_grad():
                totals = [t + self._model(x).double() for t, x in zip(totals, batches, strict=True)]
        return [(total / clients).float() for total in totals]

    def _divergence(self, batches: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
        """Return the mean KL divergence over all examples."""
        parts, count = [], 0
        with torch.no_grad():
            for x, target in zip(batches, wanted, strict=True):
                p, q = (torch.log_softmax(z.double(), 1) for z in (target, self._model(x)))
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

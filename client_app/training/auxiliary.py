"""Tensors that a solver trains in addition to the model's parameters, in the same steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from client_app.training.local_optimizer import clip, local_optimizer
from client_app.training.programs import Tensors

if TYPE_CHECKING:
    from client_app.training.loop import LocalTask
    from task.config.knobs import Config


class AuxiliaryParameters:
    """Tensors [K, ...] that take the run's local steps, with an optimizer state of their own.

    They have the clients of the task in its order: those that have fewer steps drop out of the end.
    """

    def __init__(self, task: LocalTask, config: Config, values: Tensors) -> None:
        self.values, self.train = values, task.config
        self._optimizer = local_optimizer(task.config, config.adam, values)
        self._clients = len(values[0])

    def first(self, clients: int) -> Tensors:
        """Return views of the first clients' tensors."""
        return [t[:clients] for t in self.values]

    def step(self, grads: Tensors, lr: float) -> None:
        """Take a step of the clients that the gradients are of; `grads` may be overwritten."""
        clients = len(grads[0])
        params = self.first(clients)
        with torch.no_grad():
            if self._optimizer is None:
                if self.train.weight_decay:
                    torch._foreach_mul_(params, 1.0 - lr * self.train.weight_decay)
                torch._foreach_add_(params, grads, alpha=-lr)
                return
            if clients < self._clients:
                self._optimizer.cut(clients)
                self._clients = clients
            if self.train.clip_norm:
                clip(grads, self.train.clip_norm)
            self._optimizer.step(params, grads, lr)

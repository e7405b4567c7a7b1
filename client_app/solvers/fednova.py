"""FedNova, client half. Wang et al., NeurIPS 2020, arXiv 2007.07481, sections 4 and 5.

Local steps as in FedAvg, with momentum rho (run-config key ``momentum``) and a proximal term
mu/2 |w - w^t|^2 if wanted. After tau steps w_k - w^t = -eta sum_s a_s g_s; what goes up is
(w_k - w^t) / |a_k|_1. Buffers go up as they are.

===============  ==================================================================
solver           a, and its sum |a|_1
===============  ==================================================================
plain            a_s = 1;  tau
momentum rho     a_s = (1 - rho^(tau-s+1)) / (1 - rho)
                 (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)
proximal mu      a_s = (1 - eta mu)^(tau-s);  (1 - (1 - eta mu)^tau) / (eta mu)
===============  ==================================================================

Variable local work: tau_k follows from the client's examples and from the epochs of the message (stragglers).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, Tensors, steps_of
from task.wire import messages as wire


def step_weight(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return |a|_1: how far so many steps go along a constant gradient, in units of eta.

    The recursion of the local steps itself, so it holds for momentum and proximal term together too.

    Args:
        steps: tau.
        momentum: rho.
        pull: eta mu.
    """
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


def step_weights(task: LocalTask, mu: float = 0.0) -> list[float]:
    """Return |a_k|_1 of each client."""
    steps = [steps_of(task.config, n, e) for n, e in zip(task.examples.sizes, task.epochs, strict=True)]
    return [step_weight(s, task.config.momentum, task.lr * mu) for s in steps]


def per_client(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return one float64 number per client, [K, 1, ...], ready to scale a tensor [K, ...]."""
    numbers = torch.tensor(values, dtype=torch.float64, device=like.device)
    return numbers.view(-1, *[1] * (like.dim() - 1))


class FedNovaSolver(Solver):
    """SGD whose whole update is divided by the weight of its steps."""

    def terms(self, task: LocalTask) -> list[tuple[float, Tensors]]:
        """Return mu w - mu w^t."""
        mu = self.config.fednova.mu
        return [(mu, task.params), (-mu, task.start)] if mu else []

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the normalised update and |a_k|_1."""
        weights = step_weights(task, self.config.fednova.mu)
        with torch.no_grad():
            moved = [
                ((p.double() - w.double()) / per_client(weights, p)).to(p.dtype)
                for p, w in zip(task.params, task.start, strict=True)
            ]
        plain = super().finish(task, stats)
        uploads = [
            wire.ClientUpdate({"update": up.arrays[wire.ARRAYS] | update}, up.scalars | {"step-weight": a})
            for (up, _), update, a in zip(plain, task.named(moved), weights, strict=True)
        ]
        return [(up, {}) for up in uploads]

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

import torch

from client_app.solvers.sgd import Finished, Solver, proximal
from client_app.training.loop import LocalTask, Terms, per_client, steps_of


def step_weight(steps: int, momentum: float = 0.0, pull: float = 0.0, *, nesterov: bool = False) -> float:
    """Return |a|_1: the distance covered in this number of steps along a constant gradient, in units of eta.

    The recursion of the tau local steps itself, so it holds for momentum rho, also
    Nesterov's, and pull eta mu together too.
    """
    velocity = moved = 0.0
    for _ in range(steps):
        ahead = 1.0 - pull * moved  # the gradient, which counts more in Nesterov's form
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += ahead + momentum * velocity if nesterov else velocity
    return moved


def step_weights(task: LocalTask, mu: float = 0.0) -> list[float]:
    """Return |a_k|_1 of each client."""
    steps = [steps_of(task.config, n, e) for n, e in zip(task.examples.sizes, task.epochs, strict=True)]
    momentum = task.config.momentum
    nesterov = bool(momentum) and task.config.nesterov
    return [step_weight(s, momentum, task.lr * mu, nesterov=nesterov) for s in steps]


class FedNovaSolver(Solver, name="fednova"):
    """SGD whose whole update is divided by the weight of its steps."""

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^t."""
        return proximal(task, self.config.fednova.mu)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the normalised update and |a_k|_1."""
        weights = step_weights(task, self.config.fednova.mu)
        with torch.no_grad():
            pairs = zip(task.params, task.moved(), strict=True)
            moved = [(m / per_client(weights, m)).to(p.dtype) for p, m in pairs]
        whole = [state | u for state, u in zip(task.states(), task.named(moved), strict=True)]
        return self.updates(task, stats, model=False, up={"update": whole}, scalars={"step-weight": weights})

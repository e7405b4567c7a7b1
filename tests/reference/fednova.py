"""FedNova: Wang et al., NeurIPS 2020, arXiv 2007.07481, sections 4 and 5. See the package for the arguments.

Client: tau_i local steps; w_i - w^t = -eta G_i a_i, a_i the factors of the steps' gradients
        d_i = G_i a_i / |a_i|_1
Server: w^{t+1} = w^t - tau_eff sum_i p_i eta d_i,  p_i = n_i / n_S,  tau_eff = sum_i p_i |a_i|_1
"""

from collections.abc import Callable

import numpy as np

from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient


def factors(tau: int, momentum: float = 0.0, eta_mu: float = 0.0) -> np.ndarray:
    """Return a, in the paper's closed forms, for one of momentum and proximal term."""
    ages = np.arange(tau)[::-1]  # steps after this one
    if momentum:
        assert not eta_mu
        return (1 - momentum ** (ages + 1)) / (1 - momentum)
    return (1 - eta_mu) ** ages


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    batches: Batches,
    work: Callable[[int, int], int],
    mu: float = 0.0,
    momentum: float = 0.0,
    lr_decay: float = 1.0,
) -> tuple[list[Model], list[float]]:
    """Run FedNova; work(t, k) = epochs of client k. Return the models and tau_eff of each round."""
    models, effective = [double(w0)], []
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        W0, b0 = models[-1]
        cohort = selected[t - 1]
        n_S = sum(len(clients[k][1]) for k in cohort)
        tau_eff, d_W, d_b = 0.0, np.zeros_like(W0), np.zeros_like(b0)
        for k in cohort:
            X, y = clients[k]
            W, b, v_W, v_b, tau = W0, b0, np.zeros_like(W0), np.zeros_like(b0), 0
            for epoch in range(work(t, k)):
                for batch in batches(t, k, epoch):
                    _, (g_W, g_b) = loss_and_gradient((W, b), X[batch], y[batch])
                    v_W = momentum * v_W + g_W + mu * (W - W0)
                    v_b = momentum * v_b + g_b + mu * (b - b0)
                    W, b, tau = W - eta * v_W, b - eta * v_b, tau + 1
            a, p = factors(tau, momentum, eta * mu).sum(), len(y) / n_S
            tau_eff += p * a
            d_W += p * (W0 - W) / (eta * a)
            d_b += p * (b0 - b) / (eta * a)
        models.append((W0 - tau_eff * eta * d_W, b0 - tau_eff * eta * d_b))
        effective.append(float(tau_eff))
    return models, effective

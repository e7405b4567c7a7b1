"""FedDyn: Acar et al., ICLR 2021, arXiv 2111.04263, Algorithm 1. See the package for the arguments.

Client: theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 |theta - theta^{t-1}|^2, here by steps of SGD
        g_k <- g_k - alpha (theta_k - theta^{t-1})
Server: h <- h - alpha/m sum_{k in P} (theta_k - theta^{t-1});  theta^t = 1/|P| sum_{k in P} theta_k - h/alpha
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient
from tests.reference.scaffold import plus, zero


@dataclass
class Trace:
    """models[t] = theta^t, h[t] and gradient[t][k] = g_k after round t; index 0 is the start."""

    models: list[Model]
    h: list[Model]
    gradient: list[list[Model]]


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    batches: Batches,
    work: Callable[[int, int], int],
    alpha: float,
    lr_decay: float = 1.0,
    lost: Callable[[int, int], bool] = lambda t, k: False,
) -> Trace:
    """Run FedDyn; work(t, k) = epochs, lost(t, k) = client k lost its g_k before round t."""
    start, m = double(w0), len(clients)
    trace = Trace([start], [zero(start)], [[zero(start)] * m])
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        before, h, gradient = trace.models[-1], trace.h[-1], list(trace.gradient[-1])
        cohort = selected[t - 1]
        mean = zero(before)
        for k in range(m):
            if lost(t, k):
                gradient[k] = zero(before)
        for k in cohort:
            X, y = clients[k]
            theta = before
            for epoch in range(work(t, k)):
                for batch in batches(t, k, epoch):
                    _, g = loss_and_gradient(theta, X[batch], y[batch])
                    g = plus(plus(g, gradient[k], -1.0), plus(theta, before, -1.0), alpha)
                    theta = plus(theta, g, -eta)
            moved = plus(theta, before, -1.0)
            gradient[k] = plus(gradient[k], moved, -alpha)
            h = plus(h, moved, -alpha / m)
            mean = plus(mean, theta, 1.0 / len(cohort))
        trace.models.append(plus(mean, h, -1.0 / alpha))
        trace.h.append(h)
        trace.gradient.append(gradient)
    return trace

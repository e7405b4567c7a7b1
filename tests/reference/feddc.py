"""FedDC: Gao et al., CVPR 2022, arXiv 2203.11751, Algorithm 1. See the package for the arguments.

v_k = n_k K / n.  Client: steps on F_k(w) + alpha/(2 v_k) |w - (w^t - h_k)|^2 + <w, g/v_k - g_k>, tau of them;
D = w_k - w^t;  h_k <- h_k + D;  g_k^+ = g_k - g/v_k - D/(tau eta)
Server: g <- g + 1/K sum_{k in S} v_k (g_k^+ - g_k);  w <- 1/|S| sum_{k in S} w_k + 1/K sum_{all k} h_k
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient
from tests.reference.scaffold import plus, zero


@dataclass
class Trace:
    """models[t] = w^t, pooled[t] = g, drift[t][k] = h_k and own[t][k] = g_k after round t."""

    models: list[Model]
    pooled: list[Model]
    drift: list[list[Model]]
    own: list[list[Model]]


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
) -> Trace:
    """Run FedDC; work(t, k) = epochs."""
    nothing, K = zero(double(w0)), len(clients)
    n = sum(len(y) for _, y in clients)
    trace = Trace([double(w0)], [nothing], [[nothing] * K], [[nothing] * K])
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        start, g = trace.models[-1], trace.pooled[-1]
        drift, own = list(trace.drift[-1]), list(trace.own[-1])
        new, mean = g, nothing
        for k in selected[t - 1]:
            X, y = clients[k]
            v, w, tau = len(y) * K / n, start, 0
            for epoch in range(work(t, k)):
                for batch in batches(t, k, epoch):
                    step = loss_and_gradient(w, X[batch], y[batch])[1]
                    step = plus(step, plus(plus(w, start, -1.0), drift[k]), alpha / v)
                    step = plus(plus(step, g, 1 / v), own[k], -1.0)
                    w = plus(w, step, -eta)
                    tau += 1
            moved = plus(w, start, -1.0)
            after = plus(plus(own[k], g, -1 / v), moved, -1 / (tau * eta))
            new = plus(new, plus(after, own[k], -1.0), v / K)
            drift[k], own[k] = plus(drift[k], moved), after
            mean = plus(mean, w, 1 / len(selected[t - 1]))
        for h in drift:
            mean = plus(mean, h, 1 / K)
        for past, now in zip((trace.models, trace.pooled), (mean, new), strict=True):
            past.append(now)
        trace.drift.append(drift)
        trace.own.append(own)
    return trace

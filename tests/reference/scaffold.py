"""SCAFFOLD: Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1. See the package for the arguments.

Client: y <- x; K times: y <- y - eta_l (g_i(y) - c_i + c)
        c_i^+ = g_i(x) (option I, all local data) or c_i - c + (x - y)/(K eta_l) (option II)
Server: x <- x + eta_g/|S| sum (y_i - x);  c <- c + 1/N sum (c_i^+ - c_i)

With heavy-ball momentum the corrected gradient enters v <- rho v + g, y <- y - eta_l v, and K becomes the sum
of the factors with which the gradients stand in (x - y)/eta_l.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.fedavg import Batches
from tests.reference.fednova import factors
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient


@dataclass
class Trace:
    """models[t] = x, control[t] = c and own[t][i] = c_i after round t; index 0 is the start."""

    models: list[Model]
    control: list[Model] = field(default_factory=list)
    own: list[list[Model]] = field(default_factory=list)


def plus(a: Model, b: Model, scale: float = 1.0) -> Model:
    return a[0] + scale * b[0], a[1] + scale * b[1]


def zero(like: Model) -> Model:
    return np.zeros_like(like[0]), np.zeros_like(like[1])


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    batches: Batches,
    work: Callable[[int, int], int],
    option: str = "II",
    server_lr: float = 1.0,
    momentum: float = 0.0,
    lr_decay: float = 1.0,
    lost: Callable[[int, int], bool] = lambda t, k: False,
) -> Trace:
    """Run SCAFFOLD; work(t, k) = epochs, lost(t, k) = client k lost its c_k before round t."""
    start = double(w0)
    N = len(clients)
    trace = Trace([start], [zero(start)], [[zero(start)] * N])
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        x, c, own = trace.models[-1], trace.control[-1], list(trace.own[-1])
        cohort = selected[t - 1]
        step, change = zero(x), zero(x)
        for i in range(N):
            if lost(t, i):
                own[i] = zero(x)
        for i in cohort:
            X, target = clients[i]
            y, v, K = x, zero(x), 0
            for epoch in range(work(t, i)):
                for batch in batches(t, i, epoch):
                    _, g = loss_and_gradient(y, X[batch], target[batch])
                    corrected = plus(plus(g, own[i], -1.0), c)
                    v = plus(corrected, v, momentum)
                    y = plus(y, v, -eta)
                    K += 1
            if option == "I":
                new = loss_and_gradient(x, X, target)[1]
            else:
                length = factors(K, momentum).sum() * eta
                new = plus(plus(own[i], c, -1.0), plus(x, y, -1.0), 1.0 / length)
            step = plus(step, plus(y, x, -1.0), 1.0 / len(cohort))
            change = plus(change, plus(new, own[i], -1.0))
            own[i] = new
        trace.models.append(plus(x, step, server_lr))
        trace.control.append(plus(c, change, 1.0 / N))
        trace.own.append(own)
    return trace

"""FedProx: Li et al., MLSys 2020, arXiv 1812.06127, Algorithm 2, sections 3.2, 5.2 and C.3.3.

Client: h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2, by x_k epochs of SGD, each step with the gradient
        grad l(w; b) + mu (w - w^t);   gamma_k = |grad h_k(w_k; w^t)| / |grad h_k(w^t; w^t)|
Server: as FedAvg, over the clients that were not dropped; nobody left = the model stays
mu:     +0.1 when the loss rises, -0.1 (not below 0) after 5 falls in a row; equal counts as a fall; either
        change starts the count anew. The first loss has nothing to compare with.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.fedavg import Batches, average
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient


@dataclass
class Trace:
    """What a run went through; lists by round t = 1, 2, ... at index t - 1, but models[t] = w^t."""

    models: list[Model]
    mu: list[float] = field(default_factory=list)  # the mu that round t used
    gamma: list[dict[int, float]] = field(default_factory=list)  # gamma_k^t of the clients that count
    loss_before: list[float | None] = field(default_factory=list)  # sum n_k/n_S F_k(w^t): the cohort's loss
    global_loss: list[float] = field(default_factory=list)  # sum n_k/n F_k(w^t) over all clients


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    batches: Batches,
    mu: float,
    work: Callable[[int, int], int],
    dropped: Callable[[int, int], bool] = lambda t, k: False,
    adaptive: bool = False,
    adapt_on: str = "loss_before",
    lr_decay: float = 1.0,
) -> Trace:
    """Run FedProx.

    Further arguments: work(t, k) = x_k epochs of client k in round t; dropped(t, k) = a straggler whose
    work is left out; adapt_on = the series of the trace that adaptive mu watches, "loss_before" (what a
    server can see) or "global_loss" (the paper's).
    """
    trace = Trace([double(w0)])
    adapted = Adaptive(mu)
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        start = trace.models[-1]
        mu_t = adapted.mu if adaptive else mu
        cohort = [k for k in selected[t - 1] if not dropped(t, k)]
        trained = {k: solve(clients[k], start, eta, mu_t, work(t, k), t, k, batches) for k in cohort}
        trace.mu.append(mu_t)
        trace.gamma.append({k: gamma(clients[k], w, start, mu_t) for k, w in trained.items()})
        trace.loss_before.append(mean_loss(clients, cohort, start) if cohort else None)
        trace.global_loss.append(mean_loss(clients, list(range(len(clients))), start))
        sizes = [len(clients[k][1]) for k in cohort]
        trace.models.append(average(list(trained.values()), sizes) if cohort else start)
        seen = getattr(trace, adapt_on)[-1]
        if seen is not None:
            adapted.see(seen)
    return trace


def solve(
    client: Client, start: Model, eta: float, mu: float, epochs: int, t: int, k: int, batches: Batches
) -> Model:
    X, y = client
    W, b = start
    for epoch in range(epochs):
        for batch in batches(t, k, epoch):
            g_W, g_b = prox_gradient((W, b), start, mu, X[batch], y[batch])
            W, b = W - eta * g_W, b - eta * g_b
    return W, b


def prox_gradient(w: Model, start: Model, mu: float, X: np.ndarray, y: np.ndarray) -> Model:
    """Return grad l(w) + mu (w - w^t)."""
    _, (g_W, g_b) = loss_and_gradient(w, X, y)
    return g_W + mu * (w[0] - start[0]), g_b + mu * (w[1] - start[1])


def gamma(client: Client, w: Model, start: Model, mu: float) -> float:
    """Return how inexactly the local problem was solved; 0 = exactly, 1 = no progress in this sense."""
    after = norm(prox_gradient(w, start, mu, *client))
    before = norm(prox_gradient(start, start, mu, *client))
    return after / before


def norm(g: Model) -> float:
    return float(np.sqrt((g[0] ** 2).sum() + (g[1] ** 2).sum()))


def mean_loss(clients: list[Client], cohort: list[int], w: Model) -> float:
    n_S = sum(len(clients[k][1]) for k in cohort)
    return sum(len(clients[k][1]) / n_S * loss_and_gradient(w, *clients[k])[0] for k in cohort)


class Adaptive:
    """The heuristic for mu: see() takes the loss of a round, mu is then that of the next."""

    def __init__(self, mu: float) -> None:
        self.mu = mu
        self.previous: float | None = None
        self.falls = 0

    def see(self, loss: float) -> None:
        if self.previous is not None:
            if loss > self.previous:
                self.mu += 0.1
                self.falls = 0
            else:
                self.falls += 1
                if self.falls == 5:
                    self.mu = max(0.0, self.mu - 0.1)
                    self.falls = 0
        self.previous = loss

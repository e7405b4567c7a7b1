"""FedAvg: McMahan et al., AISTATS 2017, arXiv 1602.05629, Algorithm 1. See the package for the arguments.

Client: w <- w^t; for each of E epochs, for each batch b: w <- w - eta_t grad l(w; b)
Server: w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k,  n_S over the cohort (the paper's erratum), not over all K
"""

from collections.abc import Callable

import numpy as np

from tests.reference.fedsgd import Client, Model, double, loss_and_gradient

Batches = Callable[[int, int, int], list[np.ndarray]]


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    epochs: int,
    batches: Batches,
    lr_decay: float = 1.0,
) -> list[Model]:
    models = [double(w0)]
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        cohort = selected[t - 1]
        trained = []
        for k in cohort:
            X, y = clients[k]
            W, b = models[-1]
            for epoch in range(epochs):
                for batch in batches(t, k, epoch):
                    _, (g_W, g_b) = loss_and_gradient((W, b), X[batch], y[batch])
                    W, b = W - eta * g_W, b - eta * g_b
            trained.append((W, b))
        models.append(average(trained, [len(clients[k][1]) for k in cohort]))
    return models


def average(models: list[Model], sizes: list[int]) -> Model:
    """Return sum_k (n_k / n_S) w_k."""
    n_S = sum(sizes)
    W, b = np.zeros_like(models[0][0]), np.zeros_like(models[0][1])
    for (W_k, b_k), n_k in zip(models, sizes, strict=True):
        W += n_k / n_S * W_k
        b += n_k / n_S * b_k
    return W, b

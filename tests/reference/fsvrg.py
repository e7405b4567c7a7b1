"""FSVRG: Konečný et al. 2016, arXiv 1610.02527, Algorithm 4; without S_k and A it is the dense form.

g = sum_k (n_k / n_S) grad F_k(w^t)
Client, for each example i of each pass in a new order, h_k = h / n_k:
        w <- w - h_k ( S_k [grad f_i(w) - grad f_i(w^t)] + g ),   S_k = Diag(phi^j / phi_k^j)
        a batch takes the steps of its b examples at once, from one point
Server: w^{t+1} = w^t + A sum_k (n_k / n_S) (w_k - w^t),   A = Diag(K / omega^j)
phi^j = n^j / n,  phi_k^j = n_k^j / n_k,  n^j = examples with non-zero feature j, omega^j = clients with one.
phi_k^j = 0 -> 1, omega^j = 0 -> 1. Rows of W belong to features; the bias is dense.
L2: f_i(w) + wd/2 |w|^2, whose gradient is taken at w.
"""

import numpy as np

from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    epochs: int,
    batches: Batches,
    sparse: bool = False,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
) -> list[Model]:
    models = [double(w0)]
    for t in range(1, rounds + 1):
        h = lr * lr_decay ** (t - 1)
        W0, b0 = models[-1]
        cohort = selected[t - 1]
        n_S = sum(len(clients[k][1]) for k in cohort)
        g_W, g_b = np.zeros_like(W0), np.zeros_like(b0)
        for k in cohort:
            X, y = clients[k]
            _, (a, c) = loss_and_gradient((W0, b0), X, y)
            g_W += len(y) / n_S * a
            g_b += len(y) / n_S * c
        counts = {k: (clients[k][0] != 0).sum(axis=0) for k in cohort}
        phi = sum(counts.values()) / n_S
        omega = sum((c > 0).astype(int) for c in counts.values())
        mean_W, mean_b = np.zeros_like(W0), np.zeros_like(b0)
        for k in cohort:
            X, y = clients[k]
            n_k = len(y)
            S = np.ones(X.shape[1])
            if sparse:
                for j in range(X.shape[1]):
                    if counts[k][j] > 0:
                        S[j] = phi[j] / (counts[k][j] / n_k)
            W, b = W0, b0
            for epoch in range(epochs):
                for batch in batches(t, k, epoch):
                    _, (a, c) = loss_and_gradient((W, b), X[batch], y[batch])
                    _, (a0, c0) = loss_and_gradient((W0, b0), X[batch], y[batch])
                    size = len(batch) * h / n_k
                    d_W = S[:, None] * (a - a0) + g_W + weight_decay * W
                    d_b = (c - c0) + g_b + weight_decay * b
                    W, b = W - size * d_W, b - size * d_b
            mean_W += n_k / n_S * (W - W0)
            mean_b += n_k / n_S * (b - b0)
        A = np.ones(len(W0))
        if sparse:
            for j in range(len(A)):
                if omega[j] > 0:
                    A[j] = len(cohort) / omega[j]
        models.append((W0 + A[:, None] * mean_W, b0 + mean_b))
    return models

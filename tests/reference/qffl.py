"""q-FedAvg and q-FedSGD: Li et al., ICLR 2020, arXiv 1905.10497, Algorithms 1 and 2, literally.

F_k = F_k(w^t) over all local data;  L = 1 / eta_t
Dw_k = L (w^t - w_k) (q-FedAvg, w_k after E epochs of SGD), or grad F_k(w^t) (q-FedSGD)
Delta_k = F_k^q Dw_k;   h_k = q F_k^(q-1) |Dw_k|^2 + L F_k^q
w^{t+1} = w^t - sum_k Delta_k / sum_k h_k, plain sums over the drawn clients
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
    q: float,
    epochs: int = 0,
    batches: Batches | None = None,
    lr_decay: float = 1.0,
) -> list[Model]:
    """Run q-FedAvg, or q-FedSGD where there are no batches."""
    models = [double(w0)]
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        L = 1.0 / eta
        W, b = models[-1]
        sum_W, sum_b, sum_h = np.zeros_like(W), np.zeros_like(b), 0.0
        for k in selected[t - 1]:
            X, y = clients[k]
            F, (dW, db) = loss_and_gradient((W, b), X, y)
            if batches is not None:
                W_k, b_k = W, b
                for epoch in range(epochs):
                    for batch in batches(t, k, epoch):
                        _, (g_W, g_b) = loss_and_gradient((W_k, b_k), X[batch], y[batch])
                        W_k, b_k = W_k - eta * g_W, b_k - eta * g_b
                dW, db = L * (W - W_k), L * (b - b_k)
            squared = float((dW**2).sum() + (db**2).sum())
            sum_W += F**q * dW
            sum_b += F**q * db
            sum_h += q * F ** (q - 1) * squared + L * F**q
        models.append((W - sum_W / sum_h, b - sum_b / sum_h))
    return models

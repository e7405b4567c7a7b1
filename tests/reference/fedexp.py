"""FedExP: Jhunjhunwala et al., ICLR 2023, arXiv 2301.09604, Algorithm 1. See the package for the arguments.

Client: w_k by local SGD from w^t;  Delta_k = w_k - w^t
Server: Delta = (1/m) sum_k Delta_k;  eta_g = max(1, sum_k |Delta_k|^2 / (2 m (|Delta|^2 + epsilon)))
        w <- w + eta_g Delta
"""

from tests.reference import fedprox
from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double
from tests.reference.scaffold import plus, zero


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    epochs: int,
    batches: Batches,
    epsilon: float,
    lr_decay: float = 1.0,
) -> tuple[list[Model], list[float]]:
    """Run FedExP; return the models, index 0 the start, and eta_g of the rounds."""
    models, steps = [double(w0)], []
    for t in range(1, rounds + 1):
        before, m = models[-1], len(selected[t - 1])
        mean, norms = zero(before), 0.0
        for k in selected[t - 1]:
            w_k = fedprox.solve(clients[k], before, lr * lr_decay ** (t - 1), 0.0, epochs, t, k, batches)
            moved = plus(w_k, before, -1.0)
            norms += fedprox.norm(moved) ** 2
            mean = plus(mean, moved, 1 / m)
        steps.append(max(1.0, norms / (2 * m * (fedprox.norm(mean) ** 2 + epsilon))))
        models.append(plus(before, mean, steps[-1]))
    return models, steps

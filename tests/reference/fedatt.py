"""FedAtt: Ji et al., IJCNN 2019, arXiv 1812.07108, attentive aggregation.

Client: as in FedAvg.  Server, for each layer l (here W and b):
    s_k = |w^l - w_k^l|_p,  alpha = softmax of s_1 .. s_K (divided by a temperature; 1 in the paper)
    w^l <- w^l - epsilon sum_k alpha_k (w^l - w_k^l)
"""

import math

import numpy as np

from tests.reference import fedavg
from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double


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
    epsilon: float = 1.2,
    p: float = 2.0,
    temperature: float = 1.0,
) -> tuple[list[Model], list[float]]:
    """Return the models and, per round, the largest attention in a layer."""
    models, largest = [double(w0)], []
    for t in range(1, rounds + 1):
        local = []
        for k in selected[t - 1]:
            _, w_k = fedavg.run(
                clients, models[-1], rounds=1, selected=[[k]], lr=lr * lr_decay ** (t - 1), epochs=epochs,
                batches=lambda _, k, epoch, t=t: batches(t, k, epoch),
            )  # fmt: skip
            local.append(w_k)
        W, W_top = layer(models[-1][0], [w[0] for w in local], epsilon, p, temperature)
        b, b_top = layer(models[-1][1], [w[1] for w in local], epsilon, p, temperature)
        models.append((W, b))
        largest.append(max(W_top, b_top))
    return models, largest


def layer(
    w: np.ndarray, local: list[np.ndarray], epsilon: float, p: float, temperature: float
) -> tuple[np.ndarray, float]:
    """Return the new layer and its largest attention."""
    s = [sum(abs(x) ** p for x in (w - w_k).reshape(-1).tolist()) ** (1 / p) for w_k in local]
    total = sum(math.exp(s_k / temperature) for s_k in s)
    alpha = [math.exp(s_k / temperature) / total for s_k in s]
    new = np.array(w, np.float64)
    for a_k, w_k in zip(alpha, local, strict=True):
        new -= epsilon * a_k * (w - w_k)
    return new, max(alpha)

"""FedAMP: Huang et al., AAAI 2021, arXiv 2007.03797, Algorithm 1. See `tests.reference.mlp`.

Server: keeps every client's last model w_j; for each client of the round, over the others seen so far:
        u_i = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j,  xi_ij = alpha A'(|w_i - w_j|^2)
        A(x) = 1 - exp(-x / sigma)
        A client never seen before gets the plain mean of the models seen so far; w^0 where there are none.
Client: w_i = argmin F_i(w) + lambda / (2 alpha) |w - u_i|^2, by E epochs of SGD from u_i
"""

import math
from dataclasses import dataclass

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Params,
    average,
    dot,
    double,
    passes,
    plus,
    proximal,
    sgd,
)


@dataclass
class AmpTrace:
    """After round t: models[t][k] = w_k at the server, of those seen; cloud[t][k] = u_k of round t + 1.

    personal[t][k] = w_k, w^0 of a client never seen.
    """

    models: list[dict[Client, Params]]
    cloud: list[dict[Client, Params]]
    personal: list[dict[Client, Params]]


def attention(w_i: Params, w_j: Params, alpha: float, sigma: float) -> float:
    """Return xi_ij."""
    away = plus(w_i, w_j, -1.0)
    return alpha * math.exp(-dot(away, away) / sigma) / sigma


def message(models: dict[Client, Params], i: Client, start: Params, alpha: float, sigma: float) -> Params:
    """Return u_i."""
    if i not in models:
        return average([models[j] for j in sorted(models)], [1] * len(models)) if models else start
    xi = {j: attention(models[i], models[j], alpha, sigma) for j in sorted(models) if j != i}
    u = {name: (1 - sum(xi.values())) * a for name, a in models[i].items()}
    for j, xi_ij in xi.items():
        u = plus(u, models[j], xi_ij)
    return u


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    alpha: float,
    sigma: float,
    lam: float,
    lr_decay: float = 1.0,
) -> AmpTrace:
    """Run FedAMP; alpha = alpha_k, the same in every round; lam = lambda."""
    start = double(w0)
    models: dict[Client, Params] = {}
    cloud = dict.fromkeys(sorted(data), start)
    trace = AmpTrace([models], [cloud], [cloud])
    for t, cohort in enumerate(cohorts, 1):
        eta = lr * lr_decay ** (t - 1)
        trained = {
            k: sgd(u, data[k], passes(batches, t, k, 0, epochs), eta, proximal(u, lam / alpha))
            for k, u in cloud.items()
            if k in cohort
        }
        models = models | trained
        cloud = {k: message(models, k, start, alpha, sigma) for k in sorted(data)}
        trace.models.append(models)
        trace.cloud.append(cloud)
        trace.personal.append({k: models.get(k, start) for k in cloud})
    return trace

"""FedAMP: Huang et al., AAAI 2021, arXiv 2007.03797, Algorithm 1.

Server: keeps every client's last model w_j; for each client of the round, over the others seen so far:
        u_i = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j,  xi_ij = alpha A'(|w_i - w_j|^2)
        A(x) = 1 - exp(-x / sigma)
        A client never seen before gets the plain mean of the models seen so far; w^0 where there are none.
Client: w_i = argmin F_i(w) + lambda / (2 alpha) |w - u_i|^2, by E epochs of SGD from u_i
"""

import math
from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, average, dot, plus, proximal


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


@dataclass
class FedAMP(Reference):
    """alpha = alpha_k, the same in every round; lam = lambda; w = the mean of the models seen so far."""

    algorithm, model = "fedamp", "mlp"
    active = {"fedamp.sigma": 1.0}
    cases = {
        "few clients, stragglers, in a stack": {
            "stragglers": 0.7, "fedamp__sigma": 10.0, "fraction_train": 0.4, "num_server_rounds": 5,
        },
        "alone, full batches": {
            "stack": 1, "fedamp__sigma": 10.0, "nodes": 2, "batch_size": 0, "fedamp__lambda": 3.0,
        },
        "strong attention": {"fedamp__alpha": 4.0, "fedamp__sigma": 8.0, "num_server_rounds": 4},
    }  # fmt: skip
    keys = {"lam": "fedamp.lambda"}

    sigma: float
    alpha: float = 1.0
    lam: float = 1.0

    def begin(self) -> None:
        self.start, self.cloud = self.w, dict.fromkeys(self.data, self.w)
        self.local: dict[Client, Params] = {}

    def round(self, r: Round) -> None:
        pull = self.lam / self.alpha
        self.local |= {k: r.sgd(k, self.cloud[k], proximal(self.cloud[k], pull)) for k in r.cohort}
        self.cloud = {k: message(self.local, k, self.start, self.alpha, self.sigma) for k in self.data}
        self.w = r.mean(self.local, plain=True)

    def personal(self, k: Client) -> Params:
        return self.local.get(k, self.start)

    def server(self) -> dict[str, Params]:
        return {f"models/{k}": w for k, w in self.local.items()}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.local}

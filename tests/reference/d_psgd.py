"""D-PSGD: Lian et al., NeurIPS 2017, arXiv 1705.09056, Algorithm 1; push-sum of Assran et al. 2019.

Undirected:  x <- W y (adapt, then combine) or x <- W x + (y - x) (combine, then adapt: Lian's); Metropolis
        weights W_ij = 1 / (1 + max(d_i, d_j)) on the links among those who are there, W_ii the rest.
Directed:    P_ij = 1 / (1 + links from j);  u_i <- sum_j P_ij (w_j x_j + y_j - x_j),  w <- P w,  x = u / w.
Who is not there has W_ii = 1, W_ij = 0 for the others. The mean model is sum_i w_i x_i / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params


def edges(route: str, n: int) -> set[tuple[int, int]]:
    """Return the links (from, to) among n nodes."""
    ahead = {"ring": [1], "directed-ring": [1], "exponential": [1, 2, 4], "complete": range(1, n)}
    if route == "star":
        links = {(0, i) for i in range(1, n)}
    else:
        links = {(i, (i + a) % n) for i in range(n) for a in ahead[route] if a < n}
    return links if route in ("directed-ring", "exponential") else links | {(j, i) for i, j in links}


def weights(route: str, n: int, there: set[int]) -> np.ndarray:
    """Return W or P, [to, from]."""
    links = {(i, j) for i, j in edges(route, n) if i in there and j in there}
    out = [sum(1 for i, _ in links if i == node) for node in range(n)]
    directed = route in ("directed-ring", "exponential")
    W = np.zeros((n, n))
    for i, j in links:
        W[j, i] = 1 / (1 + (out[i] if directed else max(out[i], out[j])))
    return W + np.diag(1 - W.sum(axis=0))


@dataclass
class DecentralizedPSGD(Reference):
    """x = a model by node."""

    algorithm = "d-psgd"
    active = {"d-psgd.route": "star"}
    cases = {
        "ring": {"fraction_train": 1.0},
        "star, some away": {"d_psgd__route": "star", "fraction_train": 0.4, "num_server_rounds": 5},
        "combine then adapt": {"d_psgd__order": "combine-then-adapt", "fraction_train": 0.8, "model": "mlp"},
        "directed ring, some away": {"d_psgd__route": "directed-ring", "num_server_rounds": 5},
        "push-sum, combine then adapt": {
            "d_psgd__route": "exponential", "d_psgd__order": "combine-then-adapt", "num_server_rounds": 5,
        },
    }  # fmt: skip

    route: str = "ring"
    order: str = "adapt-then-combine"

    def begin(self) -> None:
        self.x: dict[Client, Params] = dict.fromkeys(self.data, self.w)
        self.share = np.ones(len(self.data))

    def round(self, r: Round) -> None:
        names = list(self.data)
        P = weights(self.route, len(names), {names.index(k) for k in r.cohort})
        y = {k: r.sgd(k, self.x[k]) if k in r.cohort else self.x[k] for k in names}
        after: dict[str, np.ndarray] = {}
        for name in self.w:
            x, moved = (np.stack([of[k][name] for k in names]) for of in (self.x, y))
            share = self.share.reshape(-1, *[1] * (x.ndim - 1))
            if self.order == "adapt-then-combine":
                after[name] = np.tensordot(P, share * x + moved - x, 1)
            else:
                after[name] = np.tensordot(P, share * x, 1) + moved - x
        self.share = P @ self.share
        self.x = {k: {n: a[i] / self.share[i] for n, a in after.items()} for i, k in enumerate(names)}
        self.w = {n: a.mean(axis=0) for n, a in after.items()}

    def personal(self, k: Client) -> Params:
        return self.x[k]

    def server(self) -> dict[str, Params]:
        shares = {k: np.array(s) for k, s in zip(self.data, self.share, strict=True)}
        return {"weights": shares, **{f"models/{k}": x for k, x in self.x.items()}}

    def metrics(self) -> dict[str, float]:
        away = [np.square(x[n] - self.w[n]).sum() for x in self.x.values() for n in x]
        return {"consensus-distance": float(sum(away)) / len(self.x)}

"""FedDBE: Zhang et al., NeurIPS 2023, arXiv 2311.14975, Algorithm 1.

Before round 1: a plain local training of its clients, of which only r_k is used; rbar = sum (n_k / n_S) r_k
For each batch: r <- (1 - m) r + m mean z, from 0 on, the older part held; all at the model before the batch:
        (w, u) <- (w, u) - eta grad [CE(h(z + u), y) + kappa/2 mean_j (r_j - rbar_j)^2]
Server: as in FedAvg. A client's own model is h(f(x) + u_k), u_k = 0 at first.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, cross_entropy, features, flat, gradient, plus


def step(
    w: Params, u: np.ndarray, r: np.ndarray, rbar: np.ndarray, x: np.ndarray, y: np.ndarray,
    eta: float, kappa: float, m: float,
) -> tuple[Params, np.ndarray, np.ndarray]:  # fmt: skip
    """Return w, u and r after one batch."""
    z = features(w, x)
    r = (1 - m) * r + m * z.mean(axis=0)
    _, error = cross_entropy((z + u) @ w["3.weight"].T + w["3.bias"], y)
    by_u = error @ w["3.weight"]
    by_z = by_u + kappa * (r - rbar) / len(r) * m / len(x)
    hidden = by_z * (z > 0)
    g = {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0),
        "3.weight": error.T @ (z + u), "3.bias": error.sum(axis=0),
    }  # fmt: skip
    return plus(w, g, -eta), u - eta * by_u.sum(axis=0), r


@dataclass
class FedDBE(Reference):
    algorithm, model = "feddbe", "mlp"
    cases = {
        "stragglers in a stack": {
            "stragglers": 0.7, "feddbe__kappa": 2.0, "feddbe__momentum": 0.3, "fraction_evaluate": 0.0,
        },
        "alone, without the distance": {"stack": 1, "nodes": 2, "feddbe__kappa": 0.0},
    }  # fmt: skip
    kappa: float = 1.0
    momentum: float = 1.0

    def begin(self) -> None:
        self.rbar: dict[str, np.ndarray] = {}
        self.u: dict[Client, np.ndarray] = {}

    def plain(self, r: Round, k: Client) -> np.ndarray:
        w, (x, y), mean = self.w, r.data[k], np.zeros(len(self.w["1.bias"]))
        for rows in r.steps(k):
            mean = (1 - self.momentum) * mean + self.momentum * features(w, x[rows]).mean(axis=0)
            w = plus(w, gradient(w, x[rows], y[rows]), -r.eta)
        return mean

    def round(self, r: Round) -> None:
        if not self.rbar:
            self.rbar = r.mean({k: {"features": self.plain(r, k)} for k in r.cohort})
        trained = {}
        for k in r.cohort:
            w, (x, y), u = self.w, r.data[k], self.u.get(k, np.zeros(len(self.w["1.bias"])))
            mean = np.zeros_like(u)
            for rows in r.steps(k):
                w, u, mean = step(
                    w, u, mean, self.rbar["features"], x[rows], y[rows], r.eta, self.kappa, self.momentum
                )
            trained[k], self.u[k] = w, u
        self.w = r.mean(trained)

    def personal(self, k: Client) -> Params:
        moved = self.w["3.weight"] @ self.u[k] if k in self.u else 0.0
        return self.w | {"3.bias": self.w["3.bias"] + moved}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"bias": {k: {"features": u} for k, u in self.u.items()}}

    def server(self) -> dict[str, Params]:
        return {"features": self.rbar}

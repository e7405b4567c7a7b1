"""FedRoD: Chen and Chao, ICLR 2022, arXiv 2107.00778, with a linear personal head h_P.

For each batch, n_kc examples of class c at client k, z and s = h_G(z) of the model before the batch:
        (f, h_G) <- (f, h_G) - eta grad of the mean of CE(s_c + gamma log n_kc, y)
        h_P      <- h_P - eta grad of the mean of CE(s + h_P(z), y), s and z held
Server: as in FedAvg. A client's own model has the logits h_G(z) + h_P(z).
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, cross_entropy, features, flat, scores, zero

HEAD = ("3.weight", "3.bias")


def balanced_gradient(w: Params, x: np.ndarray, y: np.ndarray, prior: np.ndarray) -> Params:
    """Return the gradient of the mean of CE(s + prior, y); a class of prior minus infinity has p = 0."""
    z = features(w, x)
    _, error = cross_entropy(scores(w, x) + prior, y)
    hidden = error @ w["3.weight"] * (z > 0)
    return {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0),
        "3.weight": error.T @ z, "3.bias": error.sum(axis=0),
    }  # fmt: skip


@dataclass
class FedRoD(Reference):
    algorithm, model = "fedrod", "mlp"
    cases = {
        "stragglers in a stack": {"stragglers": 0.7},
        "alone, half the correction": {"stack": 1, "nodes": 2, "fedrod__gamma": 0.5},
    }
    gamma: float = 1.0

    def begin(self) -> None:
        self.head: dict[Client, Params] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            (x, y), w = r.data[k], self.w
            h = self.head.get(k, zero({n: w[n] for n in HEAD}))
            counts = np.bincount(y, minlength=len(w["3.bias"]))
            with np.errstate(divide="ignore"):
                prior = self.gamma * np.log(counts)
            for rows in r.steps(k):
                z = features(w, x[rows])
                logits = scores(w, x[rows]) + z @ h["3.weight"].T + h["3.bias"]
                error = cross_entropy(logits, y[rows])[1]
                g = balanced_gradient(w, x[rows], y[rows], prior)
                w = {n: w[n] - r.eta * g[n] for n in w}
                h = {
                    "3.weight": h["3.weight"] - r.eta * error.T @ z,
                    "3.bias": h["3.bias"] - r.eta * error.sum(axis=0),
                }
            trained[k], self.head[k] = w, h
        self.w = r.mean(trained)

    def personal(self, k: Client) -> Params:
        h = self.head.get(k, {})
        return {n: a + h.get(n, 0.0) for n, a in self.w.items()}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"head": self.head}

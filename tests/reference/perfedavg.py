"""Per-FedAvg: Fallah et al., NeurIPS 2020, arXiv 2002.07948, Algorithm 1 and section 5.

Client: a batch of b examples is D (the first floor(b/2)) and D' (the rest); one example is both.
        w_tilde = w - alpha grad f(w; D),  g' = grad f(w_tilde; D')
        FO:  w <- w - beta g'                      (the paper's beta is the learning rate here)
        HF:  w <- w - beta (g' - alpha H g'),  H = the Hessian of f(.; D) at w
        The paper has a third batch D'' for H; here it is D.
Server: plain mean of the local models
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, gradient, plus


def times_hessian(w: Params, v: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Return H v, H the Hessian of the mean loss at w: what the gradient changes by along v, written out."""
    z, n = features(w, x), len(y)
    p = np.exp(z @ w["3.weight"].T + w["3.bias"])
    p /= p.sum(axis=1, keepdims=True)
    error = (p - np.eye(p.shape[1])[y]) / n
    dz = (flat(x) @ v["1.weight"].T + v["1.bias"]) * (z > 0)
    dscores = dz @ w["3.weight"].T + z @ v["3.weight"].T + v["3.bias"]
    derror = p * (dscores - (p * dscores).sum(axis=1, keepdims=True)) / n
    dhidden = (derror @ w["3.weight"] + error @ v["3.weight"]) * (z > 0)
    return {
        "1.weight": dhidden.T @ flat(x),
        "1.bias": dhidden.sum(axis=0),
        "3.weight": derror.T @ z + error.T @ dz,
        "3.bias": derror.sum(axis=0),
    }


def meta_gradient(w: Params, x: np.ndarray, y: np.ndarray, alpha: float, form: str) -> Params:
    half = len(y) // 2
    inner = slice(0, half) if half else slice(0, 1)
    outer = slice(half, None)
    adapted = plus(w, gradient(w, x[inner], y[inner]), -alpha)
    g = gradient(adapted, x[outer], y[outer])
    return g if form == "fo" else plus(g, times_hessian(w, g, x[inner], y[inner]), -alpha)


@dataclass
class PerFedAvg(Reference):
    """personal(k) = w^t - alpha grad F_k(w^t), on all data of client k."""

    algorithm, model = "per-fedavg", "mlp"
    active = {"per-fedavg.alpha": 0.1}
    cases = {
        "first order": {"per_fedavg__form": "fo", "per_fedavg__alpha": 0.2},
        "with the Hessian": {"per_fedavg__form": "hf", "nodes": 2, "per_fedavg__alpha": 0.2},
        "odd batches, stragglers": {
            "per_fedavg__form": "hf", "batch_size": 5, "stragglers": 0.7, "per_fedavg__alpha": 0.2,
        },
        "one batch": {"per_fedavg__form": "fo", "batch_size": 0, "per_fedavg__alpha": 0.2},
        "batches of one": {
            "per_fedavg__form": "hf", "batch_size": 1, "learning_rate": 0.05, "per_fedavg__alpha": 0.2,
        },
    }  # fmt: skip

    alpha: float = 0.01
    form: str = "fo"

    def round(self, r: Round) -> None:
        def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
            return meta_gradient(w, x, y, self.alpha, self.form)

        self.w = r.mean({k: r.sgd(k, self.w, by) for k in r.cohort}, plain=True)

    def personal(self, k: Client) -> Params:
        return plus(self.w, gradient(self.w, *self.data[k]), -self.alpha)

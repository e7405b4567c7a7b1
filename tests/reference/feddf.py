"""FedDF: Lin, Kong, Stich and Jaggi, 2020, arXiv 2006.07242, Algorithm 1, with a fixed number of steps.

Client: as in FedAvg.  Server: x_0 = sum_k (n_k / n_S) x_k, and for j = 0 .. N - 1, on batch d_j:
    g_j = grad by x_j of KL(softmax(1/|S| sum_k f(x_k, d_j)) || softmax(f(x_j, d_j)))
    x_{j+1} = x_j - Adam's step along g_j at the rate eta/2 (1 + cos(pi j / N))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Params, features, flat, scores, zero


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def divergence(w: Params, x: np.ndarray, target: np.ndarray) -> tuple[float, Params]:
    """Return the mean of KL(softmax(target) || softmax(f(x))), and its gradient by w."""
    p, q, z = softmax(target), softmax(scores(w, x)), features(w, x)
    loss, error = float((p * np.log(p / q)).sum() / len(x)), (q - p) / len(x)
    if "3.weight" not in w:
        return loss, {"1.weight": error.T @ z, "1.bias": error.sum(axis=0)}
    hidden = error @ w["3.weight"] * (z > 0)
    return loss, {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0), "3.weight": error.T @ z,
        "3.bias": error.sum(axis=0),
    }  # fmt: skip


@dataclass
class FedDF(Reference):
    """order(t) = the batches of round t, gone through in turn."""

    algorithm, tolerance = "feddf", 2e-4
    active = {"public.examples": 2, "feddf.lr": 0.01, "feddf.steps": 5}
    keys = {"steps": "feddf.steps", "distil_lr": "feddf.lr"}

    public: np.ndarray = field(default_factory=lambda: np.zeros((9, 4)))
    order: Callable[[int], list[np.ndarray]] = lambda t: []
    steps: int = 100
    distil_lr: float = 0.001

    def round(self, r: Round) -> None:
        local = {k: r.sgd(k, self.w) for k in r.cohort}
        self.w, batches = r.mean(local), self.order(r.t)
        targets = [sum(scores(w, self.public[d]) for w in local.values()) / len(local) for d in batches]
        self.before = self.apart(batches, targets)
        m, v = zero(self.w), zero(self.w)
        for j in range(self.steps):
            d, target = batches[j % len(batches)], targets[j % len(batches)]
            g = divergence(self.w, self.public[d], target)[1]
            eta = self.distil_lr / 2 * (1 + math.cos(math.pi * j / self.steps))
            for n in g:
                m[n] = 0.9 * m[n] + 0.1 * g[n]
                v[n] = 0.999 * v[n] + 0.001 * g[n] ** 2
                first, second = m[n] / (1 - 0.9 ** (j + 1)), v[n] / (1 - 0.999 ** (j + 1))
                self.w = self.w | {n: self.w[n] - eta * first / (np.sqrt(second) + 1e-8)}
        self.after = self.apart(batches, targets)

    def apart(self, batches: list[np.ndarray], targets: list[np.ndarray]) -> float:
        each = [
            len(d) * divergence(self.w, self.public[d], t)[0] for d, t in zip(batches, targets, strict=True)
        ]
        return sum(each) / sum(len(d) for d in batches)

    def metrics(self) -> dict[str, float]:
        return {"kl-before": self.before, "kl-after": self.after}


run = driven(FedDF)

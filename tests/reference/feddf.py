"""FedDF: Lin, Kong, Stich and Jaggi 2020, arXiv 2006.07242, Algorithms 1 and 3, steps fixed.

Client: as in FedAvg, from the model of its kind P.  Server: for each x_0 = sum_k (n_k / n_P) x_k over the
round's clients that have it, the last x if none has; for j = 0 .. N - 1, on batch d_j, S being all clients:
    g_j = grad by x_j of KL(softmax(1/|S| sum_k f(x_k, d_j)) || softmax(f(x_j, d_j)))
    x_{j+1} = x_j - Adam's step along g_j at the rate eta/2 (1 + cos(pi j / N))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, scores, zero


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
    """order(t) = the batches of round t, gone through in turn; kinds[k] = the kind P of client k's model."""

    algorithm, tolerance = "feddf", 2e-4
    active = {"public.examples": 2, "feddf.lr": 0.01, "feddf.steps": 5}
    keys = {"steps": "feddf.steps", "distil_lr": "feddf.lr"}

    public: np.ndarray = field(default_factory=lambda: np.zeros((9, 4)))
    order: Callable[[int], list[np.ndarray]] = lambda t: []
    kinds: dict[Client, str] = field(default_factory=dict)
    steps: int = 100
    distil_lr: float = 0.001

    def model_of(self, kind: str) -> Params:
        """Return x^P, whose numbers stand in w under the name of the kind."""
        prefix = f"{kind}/" if kind else ""
        return {n.removeprefix(prefix): a for n, a in self.w.items() if n.startswith(prefix)}

    def personal(self, k: Client) -> Params:
        return self.model_of(self.kinds.get(k, ""))

    def round(self, r: Round) -> None:
        local = {k: r.sgd(k, self.personal(k)) for k in r.cohort}
        batches, self.apart = self.order(r.t), {}
        targets = [sum(scores(w, self.public[d]) for w in local.values()) / len(local) for d in batches]
        for kind in sorted({*self.kinds.values()}) or [""]:
            mine = {k: w for k, w in local.items() if self.kinds.get(k, "") == kind}
            start = r.mean(mine) if mine else self.model_of(kind)
            end = self.distilled(start, batches, targets)
            self.w = self.w | {f"{kind}/{n}" if kind else n: a for n, a in end.items()}
            for when, w in (("before", start), ("after", end)):
                self.apart[f"kl-{when}-{kind}".rstrip("-")] = self.mean_divergence(w, batches, targets)

    def distilled(self, w: Params, batches: list[np.ndarray], targets: list[np.ndarray]) -> Params:
        m, v = zero(w), zero(w)
        for j in range(self.steps):
            d, target = batches[j % len(batches)], targets[j % len(batches)]
            g = divergence(w, self.public[d], target)[1]
            eta = self.distil_lr / 2 * (1 + math.cos(math.pi * j / self.steps))
            for n in g:
                m[n] = 0.9 * m[n] + 0.1 * g[n]
                v[n] = 0.999 * v[n] + 0.001 * g[n] ** 2
                first, second = m[n] / (1 - 0.9 ** (j + 1)), v[n] / (1 - 0.999 ** (j + 1))
                w = w | {n: w[n] - eta * first / (np.sqrt(second) + 1e-8)}
        return w

    def mean_divergence(self, w: Params, batches: list[np.ndarray], targets: list[np.ndarray]) -> float:
        each = [len(d) * divergence(w, self.public[d], t)[0] for d, t in zip(batches, targets, strict=True)]
        return sum(each) / sum(len(d) for d in batches)

    def metrics(self) -> dict[str, float]:
        return self.apart

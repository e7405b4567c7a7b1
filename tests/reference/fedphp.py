"""FedPHP: Li, Zhan, Shao, Li and Song, ECML PKDD 2021.

Client: E epochs of SGD on (1 - lambda) CE(w) + lambda R(w, p_k) from w^t on, p_k held; then
        m = mu min(1, a_k / max(1, floor(C T)));  p_k <- m p_k + (1 - m) w_k;  a_k <- a_k + 1
        R = KD: - sum_c softmax(p_k(x) / tau)_c log softmax(w(x))_c, the mean over the batch
        R = MMD: squared, biased, of the features under both models, with five kernels
Server: as in FedAvg. A client's own model is p_k; the first time p_k = w^t.
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, gradient, plus, scores


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def backward(w: Params, x: np.ndarray, by_scores: np.ndarray, by_features: np.ndarray) -> Params:
    """Return the gradient by the parameters, given those by the scores and by the features."""
    z = features(w, x)
    hidden = (by_scores @ w["3.weight"] + by_features) * (z > 0)
    return {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0),
        "3.weight": by_scores.T @ z, "3.bias": by_scores.sum(axis=0),
    }  # fmt: skip


def kd_gradient(w: Params, p: Params, x: np.ndarray, tau: float) -> Params:
    """d/ds of - sum q log softmax(s) is softmax(s) - q."""
    error = (softmax(scores(w, x)) - softmax(scores(p, x) / tau)) / len(x)
    return backward(w, x, error, np.zeros((len(x), len(w["1.bias"]))))


def mmd(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the squared MMD and its gradient by z."""
    n = len(z)
    both = np.concatenate([z, y])
    total = sum(float(((u - v) ** 2).sum()) for u in both for v in both)
    b = total / (2 * n * (2 * n - 1)) if total else 1.0
    value, slope = 0.0, np.zeros_like(z)
    for i, u in enumerate(both):
        for j, v in enumerate(both):
            sign = 1.0 if (i < n) == (j < n) else -1.0
            d = u - v
            for width in (b / 4, b / 2, b, 2 * b, 4 * b):
                k = math.exp(-float(d @ d) / width)
                value += sign * k / n**2
                if i < n:
                    slope[i] += sign * k * (-2 * d / width) / n**2
                if j < n:
                    slope[j] -= sign * k * (-2 * d / width) / n**2
    return value, slope


def mmd_gradient(w: Params, p: Params, x: np.ndarray) -> Params:
    slope = mmd(features(w, x), features(p, x))[1]
    return backward(w, x, np.zeros((len(x), len(w["3.bias"]))), slope)


@dataclass
class FedPHP(Reference):
    algorithm, model = "fedphp", "mlp"
    active = {"fedphp.lambda": 0.4}
    cases = {
        "knowledge distillation, in a stack": {"stragglers": 0.7, "fedphp__lambda": 0.4},
        "features, in a stack": {"fedphp__transfer": "mmd", "fedphp__lambda": 0.3},
        "alone": {"stack": 1, "nodes": 2, "fedphp__temperature": 1.0, "fedphp__mu": 0.5},
    }
    keys = {"lam": "fedphp.lambda", "rounds": "num-server-rounds", "share": "fraction-train"}
    lam: float = 0.1
    transfer: str = "kd"
    temperature: float = 4.0
    mu: float = 0.9
    rounds: int = 3
    share: float = 0.6

    def begin(self) -> None:
        self.p: dict[Client, Params] = {}
        self.a: dict[Client, int] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            p, a = self.p.get(k, self.w), self.a.get(k, 0)

            def by(w: Params, x: np.ndarray, y: np.ndarray, p: Params = p) -> Params:
                taught = (
                    kd_gradient(w, p, x, self.temperature) if self.transfer == "kd" else mmd_gradient(w, p, x)
                )
                own = gradient(w, x, y)
                return {n: (1 - self.lam) * own[n] + self.lam * taught[n] for n in w}

            trained[k] = r.sgd(k, self.w, by)
            m = self.mu * min(1.0, a / max(1, math.floor(self.share * self.rounds + 1e-9)))
            self.p[k] = plus({n: m * b for n, b in p.items()}, trained[k], 1 - m)
            self.a[k] = a + 1
        self.w = r.mean(trained)

    def personal(self, k: Client) -> Params:
        return self.p.get(k, self.w)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.p, "rounds": {k: {"one": np.array([float(a)])} for k, a in self.a.items()}}

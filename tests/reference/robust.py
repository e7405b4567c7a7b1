"""Robust rules, by brute force from the papers; n vectors in a list, f of them Byzantine. Float64.

Median, trimmed mean: Yin et al., ICML 2018, arXiv 1803.01498, Definitions 1 and 2.
Krum:                 Blanchard et al., NIPS 2017, arXiv 1703.02757, section 4.
Bulyan:               El Mhamdi et al., ICML 2018, arXiv 1802.07927, section 4.
Geometric median:     Pillutla et al., 2022, arXiv 1912.13445, Algorithm 2.
Little is enough:     Baruch et al., NeurIPS 2019, arXiv 1902.06156, Algorithm 3.
"""

import math
from collections.abc import Callable

import numpy as np

from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient

Vectors = list[np.ndarray]


def run(
    clients: list[Client],
    w0: Model,
    *,
    selected: list[list[int]],
    lr: float,
    epochs: int,
    batches: Batches,
    rule: Callable[[Vectors, list[int]], np.ndarray],
) -> list[Model]:
    """FedAvg's clients under a rule (vectors, n_k) -> vector."""
    models = [double(w0)]
    for t, cohort in enumerate(selected, start=1):
        vectors = []
        for k in cohort:
            X, y = clients[k]
            W, b = models[-1]
            for epoch in range(epochs):
                for batch in batches(t, k, epoch):
                    _, (g_W, g_b) = loss_and_gradient((W, b), X[batch], y[batch])
                    W, b = W - lr * g_W, b - lr * g_b
            vectors.append(np.concatenate([W.ravel(), b]))
        new = rule(vectors, [len(clients[k][1]) for k in cohort])
        size = models[-1][0].size
        models.append((new[:size].reshape(models[-1][0].shape), new[size:]))
    return models


def median_of(values: list[float]) -> float:
    v, n = sorted(values), len(values)
    return v[n // 2] if n % 2 else (v[n // 2 - 1] + v[n // 2]) / 2


def median(w: Vectors) -> np.ndarray:
    return np.array([median_of([float(v[j]) for v in w]) for j in range(len(w[0]))])


def trimmed_mean(w: Vectors, beta: float) -> np.ndarray:
    n = len(w)
    b = math.floor(beta * n + 1e-9)
    out = []
    for j in range(len(w[0])):
        kept = sorted(float(v[j]) for v in w)[b : n - b]
        out.append(sum(kept) / len(kept))
    return np.array(out)


def krum_scores(w: Vectors, f: int) -> list[float]:
    """s(i) = sum over i -> j of |w_i - w_j|^2, j among the n - f - 2 closest to i (at least one)."""
    n = len(w)
    scores = []
    for i in range(n):
        others = sorted(float(((w[i] - w[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - 2, 1)]))
    return scores


def krum(w: Vectors, f: int) -> int:
    s = krum_scores(w, f)
    return min(range(len(w)), key=lambda i: (s[i], i))


def multi_krum(w: Vectors, f: int, m: int) -> np.ndarray:
    s = krum_scores(w, f)
    best = sorted(range(len(w)), key=lambda i: (s[i], i))[:m]
    return sum(w[i] for i in best) / m


def bulyan(w: Vectors, f: int) -> np.ndarray:
    theta = len(w) - 2 * f
    received, selected = list(range(len(w))), []
    while len(selected) < theta:
        k = received[krum([w[i] for i in received], f)]
        received.remove(k)
        selected.append(k)
    beta = theta - 2 * f
    out = []
    for j in range(len(w[0])):
        values = [float(w[i][j]) for i in selected]
        centre = median_of(values)
        closest = sorted(values, key=lambda v: (abs(v - centre), v))[:beta]
        out.append(sum(closest) / beta)
    return np.array(out)


def geometric_median(w: Vectors, alpha: list[float], nu: float, steps: int) -> np.ndarray:
    z = sum(a * v for a, v in zip(alpha, w, strict=True)) / sum(alpha)
    for _ in range(steps):
        beta = [a / max(nu, float(np.linalg.norm(z - v))) for a, v in zip(alpha, w, strict=True)]
        z = sum(b * v for b, v in zip(beta, w, strict=True)) / sum(beta)
    return z


def little_is_enough(benign: Vectors, m: int) -> np.ndarray:
    """mean - z_max std of the benign; Phi by its definition, its inverse by bisection."""
    n = len(benign) + m
    s = math.floor(n / 2 + 1) - m
    wanted = (n - m - s) / (n - m)
    low, high = 0.0, 10.0
    for _ in range(100):
        z = (low + high) / 2
        low, high = (z, high) if 0.5 * (1 + math.erf(z / math.sqrt(2))) < wanted else (low, z)
    stack = np.array(benign)
    return stack.mean(0) - low * stack.std(0)

"""Adaptive local steps: Wang et al. 2019, arXiv 1804.05271, Algorithms 2 and 3, with a given cost model.

A round: every client takes tau steps from w, on its batches in turn; costs c tau + b.
On its first batch it compares its last local model with w: rho_i, beta_i; sends grad F_i(w) on it; F_i(w) on
all data.
tau* = argmin of G over 1 .. min(10 tau, tau_max).  If spent + c (tau* + 1) + 2 b >= R, tau is cut to the
largest with which that sum is <= R, one last round follows, and then only the loss of its model is looked at
(one step, one aggregation). The model with the smallest loss that was seen is returned.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.fedavg import average
from tests.reference.fedsgd import Client, Model, double, loss_and_gradient

Batch = Callable[[int, int, int], np.ndarray]  # (t, k, step) -> indices


@dataclass
class Trace:
    models: list[Model]
    taus: list[int] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    returned: Model | None = None


def norm(a: Model, b: Model) -> float:
    return math.sqrt(float(((a[0] - b[0]) ** 2).sum() + ((a[1] - b[1]) ** 2).sum()))


def h(tau: int, delta: float, beta: float, eta: float) -> float:
    return max(0.0, delta / beta * ((eta * beta + 1) ** tau - 1) - eta * delta * tau)


def upper_bound(tau: int, T: float, delta: float, beta: float, rho: float, eta: float, phi: float) -> float:
    gap = h(tau, delta, beta, eta)
    return (1 + math.sqrt(1 + 4 * T**2 * phi * rho * eta * gap / tau)) / (2 * T * eta * phi) + rho * gap


def run(
    clients: list[Client],
    w0: Model,
    batch: Batch,
    *,
    lr: float,
    budget: float,
    c: float,
    b: float,
    phi: float,
    tau_max: int = 100,
    most_rounds: int = 1000,
) -> Trace:
    sizes = [len(y) for _, y in clients]
    share = [n / sum(sizes) for n in sizes]
    w, tau, spent = double(w0), 1, 0.0
    trace = Trace([w])
    last: dict[int, Model] = {}
    best, best_loss = w, math.inf
    ending = False
    if c * (tau + 1) + 2 * b >= budget:
        ending = True
    for t in range(1, most_rounds + 1):
        slopes, grads, losses, trained = [], [], [], []
        for k, (X, y) in enumerate(clients):
            first = batch(t, k, 0)
            F, g = loss_and_gradient(w, X[first], y[first])
            if k in last and norm(last[k], w) > 1e-10:
                F_last, g_last = loss_and_gradient(last[k], X[first], y[first])
                away = norm(last[k], w)
                slopes.append((sizes[k], abs(F_last - F) / away, norm(g_last, g) / away))
            grads.append(g)
            losses.append(loss_and_gradient(w, X, y)[0])
            W_k, b_k = w
            for step in range(tau):
                rows = batch(t, k, step)
                _, (g_W, g_b) = loss_and_gradient((W_k, b_k), X[rows], y[rows])
                W_k, b_k = W_k - lr * g_W, b_k - lr * g_b
            trained.append((W_k, b_k))
        loss = sum(p * F for p, F in zip(share, losses, strict=True))
        if loss < best_loss:
            best, best_loss = w, loss
        last = dict(enumerate(trained))
        w = average(trained, sizes)
        spent += c * tau + b
        trace.taus.append(tau)
        trace.spent.append(spent)
        trace.losses.append(loss)
        trace.models.append(w)
        if ending:
            break
        if slopes:
            n = sum(s[0] for s in slopes)
            rho = sum(s[0] * s[1] for s in slopes) / n
            beta = max(sum(s[0] * s[2] for s in slopes) / n, 1e-5)
            mean = (
                sum(p * g[0] for p, g in zip(share, grads, strict=True)),
                sum(p * g[1] for p, g in zip(share, grads, strict=True)),
            )
            delta = sum(p * norm(g, mean) for p, g in zip(share, grads, strict=True))  # type: ignore[arg-type]
            values = {
                s: upper_bound(s, (budget - b - c) * s / (c * s + b), delta, beta, rho, lr, phi)
                for s in range(1, min(10 * tau, tau_max) + 1)
            }
            tau = min(values, key=lambda s: values[s])
        if spent + c * (tau + 1) + 2 * b >= budget:
            ending = True
            while tau >= 1 and spent + c * (tau + 1) + 2 * b > budget + 1e-9:
                tau -= 1
            if tau < 1:
                break
    # the look at the last model
    loss = sum(p * loss_and_gradient(w, *client)[0] for p, client in zip(share, clients, strict=True))
    trace.spent.append(spent + c + b)
    trace.losses.append(loss)
    trace.returned = w if loss < best_loss else best
    return trace

"""Adaptive local steps: Wang et al. 2019, arXiv 1804.05271, Algorithms 2 and 3, with a given cost model.

A round: every client takes tau steps from w, on its batches in turn; costs c tau + b.
On its first batch it compares its last local model with w: rho_i, beta_i; sends grad F_i(w) on it; F_i(w) on
all data.
tau* = argmin of G over 1 .. min(10 tau, tau_max).  If spent + c (tau* + 1) + 2 b >= R, tau is cut to the
largest with which that sum is <= R, one last round follows, and then only the loss of its model is looked at
(one step, one aggregation). The model with the smallest loss that was seen is returned.
"""

import math
from dataclasses import dataclass
from itertools import islice

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Client, Params, loss_and_gradient, norm, plus, sgd


def h(tau: int, delta: float, beta: float, eta: float) -> float:
    return max(0.0, delta / beta * ((eta * beta + 1) ** tau - 1) - eta * delta * tau)


def upper_bound(tau: int, T: float, delta: float, beta: float, rho: float, eta: float, phi: float) -> float:
    gap = h(tau, delta, beta, eta)
    return (1 + math.sqrt(1 + 4 * T**2 * phi * rho * eta * gap / tau)) / (2 * T * eta * phi) + rho * gap


@dataclass
class AdaptiveTau(Reference):
    """Rounds of everybody until the budget is spent; the last one only looks, and returns the best model."""

    algorithm = "adaptive-tau"
    active = {"adaptive-tau.budget": 1000000.0, "adaptive-tau.tau-max": 7}

    budget: float
    c: float
    b: float
    phi: float
    tau_max: int = 100

    def begin(self) -> None:
        self.tau, self.spent, self.best, self.best_loss = 1, 0.0, self.w, math.inf
        self.last: dict[Client, Params] = {}
        self.ending = self.c * (self.tau + 1) + 2 * self.b >= self.budget
        self.looks = False

    def round(self, r: Round) -> None:
        w, sizes = self.w, {k: len(y) for k, (_, y) in r.data.items()}
        share = {k: n / sum(sizes.values()) for k, n in sizes.items()}
        self.loss = sum(share[k] * loss_and_gradient(w, *r.data[k])[0] for k in r.data)
        if self.loss < self.best_loss:
            self.best, self.best_loss = w, self.loss
        if self.looks:
            self.spent, self.w, self.ended = self.spent + self.c + self.b, self.best, True
            return
        slopes, grads, trained = [], {}, {}
        for k, (X, y) in r.data.items():
            steps = list(islice(r.stream(k), self.tau))
            F, g = loss_and_gradient(w, X[steps[0]], y[steps[0]])
            away = norm(plus(self.last[k], w, -1.0)) if k in self.last else 0.0
            if away > 1e-10:
                F_last, g_last = loss_and_gradient(self.last[k], X[steps[0]], y[steps[0]])
                slopes.append((sizes[k], abs(F_last - F) / away, norm(plus(g_last, g, -1.0)) / away))
            grads[k] = g
            trained[k] = sgd(w, (X, y), steps, r.eta)
        self.last, self.w, self.ran = trained, r.mean(trained), self.tau
        self.spent += self.c * self.tau + self.b
        if self.ending:
            self.looks = True
            return
        if slopes:
            n = sum(s[0] for s in slopes)
            rho = sum(s[0] * s[1] for s in slopes) / n
            beta = max(sum(s[0] * s[2] for s in slopes) / n, 1e-5)
            mean = r.mean(grads)
            delta = sum(share[k] * norm(plus(g, mean, -1.0)) for k, g in grads.items())
            values = {
                s: upper_bound(
                    s, (self.budget - self.b - self.c) * s / (self.c * s + self.b), delta, beta, rho, r.eta,
                    self.phi,
                )
                for s in range(1, min(10 * self.tau, self.tau_max) + 1)
            }  # fmt: skip
            self.tau = min(values, key=lambda s: values[s])
        if self.spent + self.c * (self.tau + 1) + 2 * self.b >= self.budget:
            self.ending = True
            while self.tau >= 1 and self.spent + self.c * (self.tau + 1) + 2 * self.b > self.budget + 1e-9:
                self.tau -= 1
            self.looks = self.tau < 1


run = driven(AdaptiveTau)

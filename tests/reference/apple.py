"""APPLE: Luo and Wu, IJCAI 2022, arXiv 2110.08394, Algorithm 1.

Server: keeps every client's core model w_j; w_j = w^0 before its first participation
Client: p_ij = p0_j = n_j / n the first time, kept later. For each of E epochs, for each batch, at once:
        w^p = sum_j p_ij w_j,  g = grad F(w^p)
        w_i  <- w_i  - eta p_ii g                                      (the other w_j as downloaded)
        p_ij <- p_ij - dr_lr (<g, w_j> + lambda(r) mu (p_ij - p0_j))   (of F + lambda(r) mu/2 |p_i - p0|^2)
        lambda(r) = (cos(pi r / L) + 1) / 2 for r < L, else 0; r = t - 1, so that lambda is 1 at first
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, dot, gradient, plus

Vector = dict[Client, float]


def coefficient(r: int, L: int) -> float:
    """Return lambda(r)."""
    return (math.cos(math.pi * r / L) + 1) / 2 if r < L else 0.0


def mix(core: dict[Client, Params], p: Vector) -> Params:
    """Return sum_j p_j w_j over the given core models."""
    names = next(iter(core.values()))
    return {name: np.sum([p[j] * core[j][name] for j in sorted(core)], axis=0) for name in names}


def p_gradient(g: Params, core: dict[Client, Params], p: Vector, p0: Vector, penalty: float) -> Vector:
    return {j: dot(g, core[j]) + penalty * (p[j] - p0[j]) for j in core}


@dataclass
class Apple(Reference):
    """w = the mean of the core models seen so far."""

    algorithm, model = "apple", "mlp"
    active = {"apple.dr-lr": 0.05}
    cases = {
        "few clients, stragglers": {
            "apple__dr_lr": 0.05, "apple__decay_rounds": 3, "stragglers": 0.6, "num_server_rounds": 5,
            "fraction_train": 0.4,
        },
        "a strong pull, full batches": {"apple__dr_lr": 0.1, "apple__mu": 5.0, "batch_size": 0, "nodes": 2},
        "no pull": {
            "apple__dr_lr": 0.02, "apple__mu": 9.0, "apple__decay_rounds": 0, "fraction_train": 1.0,
        },
    }  # fmt: skip
    keys = {"L": "apple.decay-rounds"}

    L: int = 100
    dr_lr: float = 0.001
    mu: float = 0.1

    def begin(self) -> None:
        n = sum(len(y) for _, y in self.data.values())
        self.p0 = {k: len(y) / n for k, (_, y) in self.data.items()}
        self.start, self.core = self.w, dict.fromkeys(self.data, self.w)
        self.p, self.own = dict[Client, Vector](), dict[Client, Params]()

    def round(self, r: Round) -> None:
        penalty, uploaded = coefficient(r.t - 1, self.L) * self.mu, {}
        for i in r.cohort:
            x, y = r.data[i]
            here, p_i = self.core, self.p.get(i, self.p0)
            for rows in r.steps(i):
                g = gradient(mix(here, p_i), x[rows], y[rows])
                by_p = p_gradient(g, here, p_i, self.p0, penalty)
                here = here | {i: plus(here[i], g, -r.eta * p_i[i])}
                p_i = {j: p_i[j] - self.dr_lr * by_p[j] for j in p_i}
            self.p[i], self.own[i], uploaded[i] = p_i, mix(here, p_i), here[i]
        self.core = self.core | uploaded
        self.w = r.mean({k: self.core[k] for k in self.own}, plain=True)

    def personal(self, k: Client) -> Params:
        return self.own.get(k, self.start)

    def server(self) -> dict[str, Params]:
        return {f"models/{k}": w for k, w in {k: self.core[k] for k in self.own}.items()}

    def kept(self) -> dict[str, dict[Client, Params]]:
        ratios = {k: {j: np.array(v) for j, v in p.items()} for k, p in self.p.items()}
        return {"personal": self.own, "ratios": ratios}

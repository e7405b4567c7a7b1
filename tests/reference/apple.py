"""APPLE: Luo and Wu, IJCAI 2022, arXiv 2110.08394, Algorithm 1. See `tests.reference.mlp` for the arguments.

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

from tests.reference.mlp import Batches, Client, Data, Params, dot, double, gradient, passes, plus

Vector = dict[Client, float]


@dataclass
class AppleTrace:
    """After round t: core[t][k] = w_k at the server, p[t][k] = p_k, personal[t][k] = w^p_k.

    w^p_k is that of the end of k's last participation, w^0 of a client that never took part.
    """

    core: list[dict[Client, Params]]
    p: list[dict[Client, Vector]]
    personal: list[dict[Client, Params]]


def coefficient(r: int, L: int) -> float:
    """Return lambda(r)."""
    return (math.cos(math.pi * r / L) + 1) / 2 if r < L else 0.0


def mix(core: dict[Client, Params], p: Vector) -> Params:
    """Return sum_j p_j w_j over the given core models."""
    names = next(iter(core.values()))
    return {name: np.sum([p[j] * core[j][name] for j in sorted(core)], axis=0) for name in names}


def p_gradient(g: Params, core: dict[Client, Params], p: Vector, p0: Vector, penalty: float) -> Vector:
    return {j: dot(g, core[j]) + penalty * (p[j] - p0[j]) for j in core}


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    L: int,
    dr_lr: float = 0.001,
    mu: float = 0.1,
    lr_decay: float = 1.0,
) -> AppleTrace:
    start, n = double(w0), sum(len(y) for _, y in data.values())
    p0 = {k: len(data[k][1]) / n for k in sorted(data)}
    core = dict.fromkeys(sorted(data), start)
    p, own = dict[Client, Vector](), dict[Client, Params]()
    trace = AppleTrace([core], [{}], [core])
    for t, cohort in enumerate(cohorts, 1):
        eta, penalty = lr * lr_decay ** (t - 1), coefficient(t - 1, L) * mu
        uploaded = {}
        for i in sorted(cohort):
            x, y = data[i]
            here, p_i = core, p.get(i, p0)
            for rows in passes(batches, t, i, 0, epochs):
                g = gradient(mix(here, p_i), x[rows], y[rows])
                by_p = p_gradient(g, here, p_i, p0, penalty)
                here = here | {i: plus(here[i], g, -eta * p_i[i])}
                p_i = {j: p_i[j] - dr_lr * by_p[j] for j in p_i}
            p[i], own[i], uploaded[i] = p_i, mix(here, p_i), here[i]
        core = core | uploaded
        trace.core.append(core)
        trace.p.append(dict(p))
        trace.personal.append({k: own.get(k, start) for k in core})
    return trace

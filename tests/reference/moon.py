"""MOON: Li, He, Song, CVPR 2021, arXiv 2103.16257, Algorithm 1. See `tests.reference.mlp` for the arguments.

Client: E epochs of SGD from w^t on l = l_sup + mu l_con (eq. 4)
        l_con = -log(e^{cos(z, z_glob)/T} / (e^{cos(z, z_glob)/T} + sum_j e^{cos(z, z_prev j)/T}))  (eq. 3)
        z_glob is of w^t, z_prev of its local models at the end of its last rounds; without any, l = l_sup
Server: as in FedAvg
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Params,
    Trace,
    average,
    double,
    features,
    flat,
    gradient,
    passes,
    plus,
    sgd,
)


@dataclass
class MoonTrace(Trace):
    """previous[t][k] = the local models that client k has after round t, the newest last."""

    previous: list[dict[Client, list[Params]]] = field(default_factory=lambda: [{}])


def contrastive(
    w: Params, x: np.ndarray, w_glob: Params, previous: Sequence[Params], T: float
) -> tuple[float, Params]:
    """Return the mean of l_con and its gradient by w, which is 0 in the last layer."""
    z = features(w, x)
    size = np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-8)
    others = [features(other, x) for other in (w_glob, *previous)]
    units = [a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-8) for a in others]
    cos = np.stack([(z / size * a).sum(axis=1) for a in units])
    p = np.exp(cos / T)
    p /= p.sum(axis=0)
    by_z = np.zeros_like(z)
    for j, a in enumerate(units):
        by_s = (p[j] - (j == 0)) / len(z)
        by_z += (by_s / T)[:, None] * (a - cos[j][:, None] * z / size) / size
    hidden = by_z * (z > 0)
    nothing = {name: np.zeros_like(w[name]) for name in ("3.weight", "3.bias")}
    return float(-np.log(p[0]).mean()), {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0), **nothing
    }  # fmt: skip


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    mu: float,
    T: float = 0.5,
    buffer: int = 1,
    lr_decay: float = 1.0,
) -> MoonTrace:
    """Run MOON; T is the temperature tau. A client is evaluated with w^t."""
    w, previous = double(w0), dict[Client, list[Params]]()
    trace = MoonTrace([w], [dict.fromkeys(sorted(data), w)])
    for t, cohort in enumerate(cohorts, 1):
        trained = []
        for k in sorted(cohort):
            negatives = previous.get(k, [])

            def by(
                v: Params, x: np.ndarray, y: np.ndarray, w: Params = w, old: list[Params] = negatives
            ) -> Params:
                g = gradient(v, x, y)
                return plus(g, contrastive(v, x, w, old, T)[1], mu) if old else g

            trained.append(sgd(w, data[k], passes(batches, t, k, 0, epochs), lr * lr_decay ** (t - 1), by))
            previous[k] = [*negatives, trained[-1]][-buffer:]
        w = average(trained, [len(data[k][1]) for k in sorted(cohort)])
        trace.models.append(w)
        trace.personal.append(dict.fromkeys(sorted(data), w))
        trace.previous.append(dict(previous))
    return trace

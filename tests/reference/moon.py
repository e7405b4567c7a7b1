"""MOON: Li, He, Song, CVPR 2021, arXiv 2103.16257, Algorithm 1.

Client: E epochs of SGD from w^t on l = l_sup + mu l_con (eq. 4)
        l_con = -log(e^{cos(z, z_glob)/T} / (e^{cos(z, z_glob)/T} + sum_j e^{cos(z, z_prev j)/T}))  (eq. 3)
        z_glob is of w^t, z_prev of its local models at the end of its last rounds; without any, l = l_sup
Server: as in FedAvg
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, gradient, plus


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


@dataclass
class Moon(Reference):
    """T is the temperature tau; previous[k] = the local models that client k has, the newest last."""

    algorithm, model, tolerance = "moon", "mlp", 1e-4
    active = {"moon.mu": 5.0}
    cases = {
        "in a stack": {"num_server_rounds": 4, "moon__mu": 3.0, "moon__temperature": 0.4},
        "alone": {"stack": 1, "num_server_rounds": 4, "moon__mu": 3.0},
        "three negatives": {"moon__buffer": 3, "num_server_rounds": 6, "nodes": 2, "moon__mu": 3.0},
        "stragglers": {
            "stragglers": 0.7, "fraction_train": 0.8, "num_server_rounds": 4, "moon__mu": 3.0,
        },
    }  # fmt: skip
    keys = {"T": "moon.temperature"}

    mu: float
    T: float = 0.5
    buffer: int = 1

    def begin(self) -> None:
        self.previous: dict[Client, list[Params]] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            negatives = self.previous.get(k, [])

            def by(v: Params, x: np.ndarray, y: np.ndarray, old: list[Params] = negatives) -> Params:
                g = gradient(v, x, y)
                return plus(g, contrastive(v, x, self.w, old, self.T)[1], self.mu) if old else g

            trained[k] = r.sgd(k, self.w, by)
            self.previous[k] = [*negatives, trained[k]][-self.buffer :]
        self.w = r.mean(trained)

    def kept(self) -> dict[str, dict[Client, Params]]:
        newest_first = {k: enumerate(models[::-1]) for k, models in self.previous.items()}
        return {
            "previous": {
                k: {f"{i}/{n}": a for i, model in models for n, a in model.items()}
                for k, models in newest_first.items()
            }
        }

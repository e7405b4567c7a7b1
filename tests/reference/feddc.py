"""FedDC: Gao et al., CVPR 2022, arXiv 2203.11751, Algorithm 1.

v_k = n_k K / n.  Client: steps on F_k(w) + alpha/(2 v_k) |w - (w^t - h_k)|^2 + <w, g/v_k - g_k>, tau of them;
D = w_k - w^t;  h_k <- h_k + D;  g_k^+ = g_k - g/v_k - D/(tau eta)
Server: g <- g + 1/K sum_{k in S} v_k (g_k^+ - g_k);  w <- 1/|S| sum_{k in S} w_k + 1/K sum_{all k} h_k
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, gradient, plus, zero


@dataclass
class FedDC(Reference):
    algorithm = "feddc"
    active = {"feddc.alpha": 0.1}
    cases = {
        "everybody": {"local_epochs": 2, "fraction_train": 1.0, "feddc__alpha": 0.1},
        "few clients": {"fraction_train": 0.4, "feddc__alpha": 0.1, "num_server_rounds": 6},
        "stragglers": {"local_epochs": 4, "stragglers": 0.6, "feddc__alpha": 0.1},
    }
    tolerance = 1e-4  # of drifts and gradients, small differences of float32 numbers

    alpha: float

    def begin(self) -> None:
        self.g, self.h = zero(self.w), dict.fromkeys(self.data, zero(self.w))
        self.g_k = dict(self.h)

    def round(self, r: Round) -> None:
        K, n = len(r.data), sum(len(y) for _, y in r.data.values())
        start, g, local = self.w, self.g, {}
        for k in r.cohort:
            v, h_k, g_k = len(r.data[k][1]) * K / n, self.h[k], self.g_k[k]

            def by(w: Params, x: np.ndarray, y: np.ndarray, v: float = v, h: Params = h_k, g_k: Params = g_k):
                step = plus(gradient(w, x, y), plus(plus(w, start, -1.0), h), self.alpha / v)
                return plus(plus(step, g, 1 / v), g_k, -1.0)

            local[k] = r.sgd(k, start, by)
            moved = plus(local[k], start, -1.0)
            self.h[k] = plus(h_k, moved)
            self.g_k[k] = plus(plus(g_k, g, -1 / v), moved, -1 / (len(r.steps(k)) * r.eta))
            self.g = plus(self.g, plus(self.g_k[k], g_k, -1.0), v / K)
        self.w = r.mean(local, plain=True)
        for h_k in self.h.values():
            self.w = plus(self.w, h_k, 1 / K)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"drift": self.h, "gradient": self.g_k}

    def server(self) -> dict[str, Params]:
        return {"gradient": self.g}

"""FedCM: Xu et al. 2021, arXiv 2106.10874, Algorithm 1.

Client: w <- w - eta (alpha grad l(w; b) + (1 - alpha) M), tau_k steps
Server: w^{t+1} = (1/m) sum_k w_k;  M <- (w^t - w^{t+1}) / (eta tau), tau the mean of tau_k; M = 0 first
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Params, gradient, plus, zero


@dataclass
class FedCM(Reference):
    algorithm = "fedcm"
    active = {"fedcm.alpha": 0.3}
    cases = {
        "everybody": {"local_epochs": 2, "fraction_train": 1.0, "fedcm__alpha": 0.3},
        "few clients": {"fraction_train": 0.4, "num_server_rounds": 6},
        "stragglers": {"local_epochs": 4, "stragglers": 0.6, "fedcm__alpha": 0.5},
    }
    tolerance = 1e-4  # of M, a small difference of float32 numbers

    alpha: float = 0.1

    def begin(self) -> None:
        self.M = zero(self.w)

    def round(self, r: Round) -> None:
        start, M = self.w, self.M

        def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
            return plus(plus(zero(w), gradient(w, x, y), self.alpha), M, 1 - self.alpha)

        tau = sum(len(r.steps(k)) for k in r.cohort) / len(r.cohort)
        self.w = r.mean({k: r.sgd(k, start, by) for k in r.cohort}, plain=True)
        self.M = plus(zero(M), plus(start, self.w, -1.0), 1 / (r.eta * tau))

    def server(self) -> dict[str, Params]:
        return {"momentum": self.M}

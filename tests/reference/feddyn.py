"""FedDyn: Acar et al., ICLR 2021, arXiv 2111.04263, Algorithm 1.

Client: theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 |theta - theta^{t-1}|^2, here by steps of SGD
        g_k <- g_k - alpha (theta_k - theta^{t-1})
Server: h <- h - alpha/m sum_{k in P} (theta_k - theta^{t-1});  theta^t = 1/|P| sum_{k in P} theta_k - h/alpha
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, gradient, plus, zero


@dataclass
class FedDyn(Reference):
    """lost(t, k) = client k lost its g_k before round t."""

    algorithm = "feddyn"
    active = {"feddyn.alpha": 0.2}
    cases = {
        "everybody": {"feddyn__alpha": 0.3, "local_epochs": 2, "fraction_train": 1.0},
        "few clients": {"feddyn__alpha": 0.5, "fraction_train": 0.4, "num_server_rounds": 6},
        "stragglers": {"feddyn__alpha": 0.2, "local_epochs": 5, "stragglers": 0.6},
        "full batches": {"feddyn__alpha": 1.0, "local_epochs": 6, "batch_size": 0},
    }

    alpha: float
    lost: Callable[[int, Client], bool] = lambda t, k: False

    def begin(self) -> None:
        self.h, self.gradient = zero(self.w), dict.fromkeys(self.data, zero(self.w))

    def round(self, r: Round) -> None:
        theta, local = self.w, {}
        self.gradient |= {k: zero(theta) for k in r.data if self.lost(r.t, k)}
        for k in r.cohort:

            def by(w: Params, x: np.ndarray, y: np.ndarray, own: Params = self.gradient[k]) -> Params:
                return plus(plus(gradient(w, x, y), own, -1.0), plus(w, theta, -1.0), self.alpha)

            local[k] = r.sgd(k, theta, by)
            moved = plus(local[k], theta, -1.0)
            self.gradient[k] = plus(self.gradient[k], moved, -self.alpha)
            self.h = plus(self.h, moved, -self.alpha / len(r.data))
        self.w = plus(r.mean(local, plain=True), self.h, -1.0 / self.alpha)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"gradient": self.gradient}

    def server(self) -> dict[str, Params]:
        return {"h": self.h}

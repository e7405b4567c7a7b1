"""FedNova: Wang et al., NeurIPS 2020, arXiv 2007.07481, sections 4 and 5.

Client: tau_i local steps; w_i - w^t = -eta G_i a_i, a_i the factors of the steps' gradients
        d_i = G_i a_i / |a_i|_1
Server: w^{t+1} = w^t - tau_eff sum_i p_i eta d_i,  p_i = n_i / n_S,  tau_eff = sum_i p_i |a_i|_1
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import plus, proximal, zero


def factors(tau: int, momentum: float = 0.0, eta_mu: float = 0.0) -> np.ndarray:
    """Return a, in the paper's closed forms, for one of momentum and proximal term."""
    ages = np.arange(tau)[::-1]  # steps after this one
    if momentum:
        assert not eta_mu
        return (1 - momentum ** (ages + 1)) / (1 - momentum)
    return (1 - eta_mu) ** ages


@dataclass
class FedNova(Reference):
    algorithm = "fednova"
    active = {"fednova.mu": 0.5}
    cases = {
        "plain, sizes unequal": {"fraction_train": 1.0, "local_epochs": 2},
        "stragglers": {"local_epochs": 6, "batch_size": 5, "stragglers": 0.6},
        "momentum": {"momentum": 0.9, "learning_rate": 0.05, "stragglers": 0.4, "fraction_train": 1.0},
        "proximal": {"local_epochs": 4, "fednova__mu": 0.7, "stragglers": 0.4, "fraction_train": 1.0},
    }

    mu: float = 0.0
    momentum: float = 0.0

    def begin(self) -> None:
        self.tau_eff = 0.0

    def round(self, r: Round) -> None:
        n_S = sum(len(r.data[k][1]) for k in r.cohort)
        self.tau_eff, d = 0.0, zero(self.w)
        for k in r.cohort:
            w_k = r.sgd(k, self.w, proximal(self.w, self.mu), momentum=self.momentum)
            a = float(factors(len(r.steps(k)), self.momentum, r.eta * self.mu).sum())
            p = len(r.data[k][1]) / n_S
            self.tau_eff += p * a
            d = plus(d, plus(self.w, w_k, -1.0), p / (r.eta * a))
        self.w = plus(self.w, d, -self.tau_eff * r.eta)

    def metrics(self) -> dict[str, float]:
        return {"effective-steps": self.tau_eff}

"""FedSGD: McMahan et al., AISTATS 2017, arXiv 1602.05629, section 2.

g_k = grad F_k(w^t);   w^{t+1} = w^t - eta_t sum_{k in S_t} (n_k / n_S) g_k,   n_S = sum_{k in S_t} n_k
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import gradient, plus


@dataclass
class FedSGD(Reference):
    algorithm = "fedsgd"
    cases = {
        "everybody": {"fraction_train": 1.0, "learning_rate": 0.8},
        "some": {"learning_rate": 0.8},
        "one": {"fraction_train": 0.0, "learning_rate": 0.8},
    }

    def round(self, r: Round) -> None:
        self.w = plus(self.w, r.mean({k: gradient(self.w, *r.data[k]) for k in r.cohort}), -r.eta)

"""FedExP: Jhunjhunwala et al., ICLR 2023, arXiv 2301.09604, Algorithm 1.

Client: w_k by local SGD from w^t;  Delta_k = w_k - w^t
Server: Delta = (1/m) sum_k Delta_k;  eta_g = max(1, sum_k |Delta_k|^2 / (2 m (|Delta|^2 + epsilon)))
        w <- w + eta_g Delta
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import norm, plus


@dataclass
class FedExP(Reference):
    algorithm = "fedexp"
    active = {"fedexp.epsilon": 0.0001}
    cases = {
        "everybody": {"fraction_train": 1.0, "fedexp__epsilon": 1e-4},
        "few clients": {"fraction_train": 0.4, "num_server_rounds": 6},
    }

    epsilon: float = 1e-3

    def round(self, r: Round) -> None:
        moved, m = {k: plus(r.sgd(k, self.w), self.w, -1.0) for k in r.cohort}, len(r.cohort)
        mean = r.mean(moved, plain=True)
        norms = sum(norm(d) ** 2 for d in moved.values())
        self.eta_g = max(1.0, norms / (2 * m * (norm(mean) ** 2 + self.epsilon)))
        self.w = plus(self.w, mean, self.eta_g)

    def metrics(self) -> dict[str, float]:
        return {"server-lr": self.eta_g}

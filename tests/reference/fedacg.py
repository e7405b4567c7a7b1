"""FedACG: Kim, Kim and Han, CVPR 2024, arXiv 2201.03172, Algorithm 1.

Server: sends y = w + lambda m
Client: steps on F_k(w) + beta/2 |w - y|^2 from y;  Delta_k = w_k - y
Server: m <- lambda m + (1/|S|) sum_k Delta_k;  w <- w + m
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Params, plus, proximal, zero


@dataclass
class FedACG(Reference):
    algorithm = "fedacg"
    active = {"fedacg.lambda": 0.6, "fedacg.beta": 0.5}
    cases = {
        "everybody": {"local_epochs": 2, "fraction_train": 1.0, "fedacg__lambda": 0.6, "fedacg__beta": 0.5},
        "few clients": {"fraction_train": 0.4, "num_server_rounds": 6},
    }
    keys = {"lambda_": "fedacg.lambda"}
    tolerance = 1e-4  # of m, a small difference of float32 numbers

    lambda_: float = 0.85
    beta: float = 0.002

    def begin(self) -> None:
        self.m = zero(self.w)

    def round(self, r: Round) -> None:
        y = plus(self.w, self.m, self.lambda_)
        moved = {k: plus(r.sgd(k, y, proximal(y, self.beta)), y, -1.0) for k in r.cohort}
        self.m = plus(plus(zero(y), self.m, self.lambda_), r.mean(moved, plain=True))
        self.w = plus(self.w, self.m)

    def server(self) -> dict[str, Params]:
        return {"momentum": self.m}

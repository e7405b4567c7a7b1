"""Mime and MimeLite with momentum: Karimireddy et al., NeurIPS 2021, arXiv 2008.03606, Algorithm 1.

c = sum_k (n_k / n_S) grad F_k(w^t)
Client: w <- w - eta ((1 - beta) g + beta m);  MimeLite g = grad l(w; b),
        Mime g = grad l(w; b) - grad l(w^t; b) + c
Server: w^{t+1} = sum_k (n_k / n_S) w_k;  m <- beta m + (1 - beta) c;  m = 0 first
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Params, gradient, plus, zero

CASES = {
    "everybody": {"local_epochs": 2, "fraction_train": 1.0, "mime__beta": 0.5},
    "few clients": {"fraction_train": 0.4, "num_server_rounds": 6},
}


@dataclass
class MimeLite(Reference):
    algorithm = "mimelite"
    active = {"mime.beta": 0.6}
    cases = CASES

    beta: float = 0.9

    def begin(self) -> None:
        self.m = zero(self.w)

    def corrected(self, w: Params, c: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return gradient(w, x, y)

    def round(self, r: Round) -> None:
        c = r.mean({k: gradient(self.w, *r.data[k]) for k in r.cohort})

        def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
            return plus(plus(zero(w), self.corrected(w, c, x, y), 1 - self.beta), self.m, self.beta)

        self.w = r.mean({k: r.sgd(k, self.w, by) for k in r.cohort})
        self.m = plus(plus(zero(c), self.m, self.beta), c, 1 - self.beta)

    def server(self) -> dict[str, Params]:
        return {"momentum": self.m}


@dataclass
class Mime(MimeLite):
    algorithm = "mime"

    def corrected(self, w: Params, c: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return plus(plus(gradient(w, x, y), gradient(self.w, x, y), -1.0), c)

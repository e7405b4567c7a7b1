"""CO-OP: Wang 2017, doi 10.7939/R32805C45, an asynchronous protocol with ages.

Client k has a model w_k and an age a_k, the server w and a. When k's training is done:

a - a_k > b_u:  w_k <- w, a_k <- a
a - a_k < b_l:  w_k and a_k stay, k trains on
else:           w <- (1 - alpha) w + alpha w_k,  alpha = (a - a_k + 1)^(-1/2);
                a <- a + 1;  w_k <- w, a_k <- a

At the beginning a = b_l and a_k = 0. All clients are always at work.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params


@dataclass
class Coop(Reference):
    algorithm = "coop"
    active = {"coop.lower": 1, "coop.upper": 4, "fraction-train": 1.0}
    cases = {
        "all three": {
            "fraction_train": 1.0, "num_server_rounds": 14, "coop__lower": 1, "coop__upper": 4,
        },
        "long alone": {
            "fraction_train": 1.0, "num_server_rounds": 14, "coop__lower": 3, "coop__upper": 20,
            "model": "mlp",
        },
        "never alone": {"fraction_train": 1.0, "num_server_rounds": 9, "coop__lower": 0, "coop__upper": 3},
    }  # fmt: skip

    lower: int = 1
    upper: int = 100

    def begin(self) -> None:
        self.a = self.lower
        self.age: dict[Client, int] = dict.fromkeys(self.data, 0)
        self.local: dict[Client, Params] = dict.fromkeys(self.data, self.w)
        self.alone: dict[Client, None] = {}  # who trains on
        self.difference, self.alpha = 0, 0.0

    def fetch(self, k: Client) -> None:
        self.local[k], self.age[k] = self.w, self.a
        self.alone.pop(k, None)

    def round(self, r: Round) -> None:
        (k,) = r.cohort
        self.local[k] = r.sgd(k, self.local[k])
        self.difference, self.alpha = self.a - self.age[k], 0.0
        if self.difference > self.upper:
            self.fetch(k)
        elif self.difference < self.lower:
            self.alone[k] = None
        else:
            self.alpha = (self.difference + 1) ** -0.5
            self.w = {n: (1 - self.alpha) * w + self.alpha * self.local[k][n] for n, w in self.w.items()}
            self.a += 1
            self.fetch(k)

    def server(self) -> dict[str, Params]:
        return {"own": {f"{k}/{n}": w for k in self.alone for n, w in self.local[k].items()}}

    def metrics(self) -> dict[str, float]:
        return {"staleness-max": self.difference, "alpha": self.alpha}

"""AFL: Mohri et al., ICML 2019, arXiv 1902.00146.  TERM: Li et al., ICLR 2021, arXiv 2007.01162.

AFL     w^{t+1} = sum_k lambda_k w_k / sum_j lambda_j over the cohort; lambda_k starts at n_k. The cohort's
        shares move to the nearest point of the simplex from shares + gamma F, or are multiplied by
        e^{gamma F}; what the cohort has together stays. F_k = F_k(w^t).
TERM    w^{t+1} = sum_k e^{t F_k} w_k / sum_k e^{t F_k}
"""

import math
from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import average, loss_and_gradient


def nearest(x: list[float]) -> list[float]:
    """Return the nearest point of the simplex, its shift by bisection."""
    low, high = min(x) - 1.0, max(x)
    for _ in range(200):
        shift = (low + high) / 2
        low, high = (shift, high) if sum(max(v - shift, 0.0) for v in x) > 1 else (low, shift)
    return [max(v - low, 0.0) for v in x]


@dataclass
class AFL(Reference):
    algorithm = "afl"
    active = {"afl.lambda-lr": 0.1}
    cases = {
        "everybody": {"fraction_train": 1.0, "afl__lambda_lr": 0.3, "num_server_rounds": 5},
        "few clients": {"afl__lambda_lr": 0.3, "num_server_rounds": 5},
        "exponentiated": {"afl__lambda_lr": 0.5, "afl__step": "exponentiated", "num_server_rounds": 5},
    }

    lambda_lr: float = 0.1
    step: str = "projected"

    def begin(self) -> None:
        self.mass = {k: float(len(y)) for k, (_, y) in self.data.items()}

    def round(self, r: Round) -> None:
        whole = sum(self.mass[k] for k in r.cohort)
        share = [self.mass[k] / whole for k in r.cohort]
        losses = [loss_and_gradient(self.w, *r.data[k])[0] for k in r.cohort]
        self.w = average([r.sgd(k, self.w) for k in r.cohort], share)
        if self.step == "projected":
            share = nearest([s + self.lambda_lr * f for s, f in zip(share, losses, strict=True)])
        else:
            raised = [s * math.exp(self.lambda_lr * f) for s, f in zip(share, losses, strict=True)]
            share = [v / sum(raised) for v in raised]
        self.mass = self.mass | {k: whole * s for k, s in zip(r.cohort, share, strict=True)}
        self.largest = max(share)

    def metrics(self) -> dict[str, float]:
        return {"largest-weight": self.largest}


@dataclass
class TERM(Reference):
    algorithm = "term"
    active = {"term.t": 2.0}
    cases = {"fair": {"term__t": 2.0}, "robust": {"term__t": -1.0, "fraction_train": 1.0}}

    t_: float = 0.1
    keys = {"t_": "term.t"}

    def round(self, r: Round) -> None:
        weights = [math.exp(self.t_ * loss_and_gradient(self.w, *r.data[k])[0]) for k in r.cohort]
        self.w = average([r.sgd(k, self.w) for k in r.cohort], weights)

"""APFL: Deng, Kamani and Mahdavi 2020, arXiv 2003.13461, Algorithm 1.

For each batch: w <- w - eta grad l(w), from w^t on;  vbar = a v + (1 - a) w;  v <- v - eta a grad l(vbar)
        after the first batch of a round: a <- clip(a - eta <v - w, grad l(vbar)>, 0, 1), with that gradient
Server: as in FedAvg. A client's own model is a v + (1 - a) w; the first time v = w^t.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Gradient, Params, dot, gradient, plus


def mix(v: Params, w: Params, a: float) -> Params:
    return {n: a * v[n] + (1 - a) * w[n] for n in w}


def step(
    w: Params,
    v: Params,
    a: float,
    batch: tuple[np.ndarray, np.ndarray],
    eta: float,
    by: Gradient,
    adapt: bool,
) -> tuple[Params, Params, float]:
    """Return w, v and alpha after one batch."""
    w = plus(w, by(w, *batch), -eta)
    g = by(mix(v, w, a), *batch)
    v = plus(v, g, -eta * a)
    slope = dot(plus(v, w, -1.0), g)
    return w, v, min(max(a - eta * slope, 0.0), 1.0) if adapt else a


@dataclass
class APFL(Reference):
    algorithm, model = "apfl", "mlp"
    cases = {
        "stragglers in a stack": {"stragglers": 0.7},
        "alone, alpha stays": {"stack": 1, "nodes": 2, "apfl__alpha": 0.3, "apfl__adaptive": False},
    }
    alpha: float = 0.5
    adaptive: bool = True

    def begin(self) -> None:
        self.v: dict[Client, Params] = {}
        self.a: dict[Client, float] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            (x, y), w, v, a = r.data[k], self.w, self.v.get(k, self.w), self.a.get(k, self.alpha)
            for i, rows in enumerate(r.steps(k)):
                w, v, a = step(w, v, a, (x[rows], y[rows]), r.eta, gradient, self.adaptive and i == 0)
            trained[k], self.v[k], self.a[k] = w, v, a
        self.w = r.mean(trained)

    def personal(self, k: Client) -> Params:
        return mix(self.v.get(k, self.w), self.w, self.a.get(k, self.alpha))

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.v, "alpha": {k: {"one": np.array([a])} for k, a in self.a.items()}}

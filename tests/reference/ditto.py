"""Ditto: Li et al., ICML 2021, arXiv 2012.04221, Algorithm 1.

Client: first  v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)), s epochs; the first time from v_k = w^t
        then   w_k: E epochs of SGD from w^t
Server: as in FedAvg
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Client, Params, proximal, sgd


@dataclass
class Ditto(Reference):
    """personal_epochs 0 = those of the shared model."""

    algorithm, model = "ditto", "mlp"
    active = {"ditto.lambda": 0.5}
    cases = {
        "stragglers in a stack": {"stragglers": 0.7, "ditto__lambda": 0.7},
        "alone, few epochs of its own": {
            "stack": 1, "nodes": 2, "personal__epochs": 1, "ditto__lambda": 2.0,
        },
        "one batch": {"batch_size": 0, "ditto__lambda": 0.3},
    }  # fmt: skip
    keys = {"lam": "ditto.lambda", "personal_epochs": "personal.epochs"}

    lam: float
    personal_epochs: int = 0

    def begin(self) -> None:
        self.v: dict[Client, Params] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            E = r.epochs(r.t, k)
            s = self.personal_epochs or E
            own = self.v.get(k, self.w)
            self.v[k] = sgd(own, r.data[k], r.steps(k, 0, s), r.eta, proximal(self.w, self.lam))
            trained[k] = sgd(self.w, r.data[k], r.steps(k, s, E), r.eta)
        self.w = r.mean(trained)

    def personal(self, k: Client) -> Params:
        return self.v.get(k, self.w)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.v}


run = driven(Ditto)

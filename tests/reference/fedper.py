"""Shared and private layers: FedPer, Arivazhagan et al. 2019, arXiv 1912.00818; FedRep, Collins et al., ICML
2021, arXiv 2102.07089, Algorithm 1; and training alone.

Client: w_k <- shared part of w^t and own private part (the first time: that of w^0)
        FedPer: E epochs on everything.
        FedRep: epochs on the head h_k with the body fixed, then epochs on the body with the head fixed
Server: shared part w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k; in FedRep their plain mean
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Client, Params, gradient, plus, sgd, top

CASES = {
    "stragglers in a stack": {"stragglers": 0.7},
    "alone, with momentum and decay": {
        "stack": 1, "momentum": 0.7, "weight_decay": 0.02, "learning_rate": 0.05, "nodes": 2,
    },
    "one batch": {"batch_size": 0},
}  # fmt: skip


@dataclass
class PrivateLayers(Reference):
    """w is the shared part."""

    model = "mlp"
    momentum: float = 0.0
    weight_decay: float = 0.0
    plain: bool = False

    def private(self) -> set[str]:
        raise NotImplementedError

    def phases(self, E: int) -> list[tuple[int, set[str]]]:
        """Return (epochs, names of what learns), one after another."""
        return [(E, set(self.w0))]

    def by(self, w: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return plus(gradient(w, x, y), w, self.weight_decay)

    def begin(self) -> None:
        self.w0 = self.w
        mine = {n: a for n, a in self.w.items() if n in self.private()}
        self.w = {n: a for n, a in self.w.items() if n not in mine}
        self.own = dict.fromkeys(self.data, mine)
        self.came: dict[Client, Params] = {}

    def round(self, r: Round) -> None:
        shared = {}
        for k in r.cohort:
            model, drawn = self.personal(k), 0
            for epochs, names in self.phases(r.epochs(r.t, k)):
                steps = r.steps(k, drawn, epochs)
                model = sgd(model, r.data[k], steps, r.eta, self.by, names=names, momentum=self.momentum)
                drawn += epochs
            self.own[k] = self.came[k] = {n: a for n, a in model.items() if n not in self.w}
            shared[k] = {n: model[n] for n in self.w}
        self.w = r.mean(shared, plain=self.plain)

    def personal(self, k: Client) -> Params:
        model = self.w | self.own[k]
        return {n: model[n] for n in self.w0}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.came}


@dataclass
class FedPer(PrivateLayers):
    algorithm, cases, keys = "fedper", CASES, {"layers": "personal.layers"}
    layers: int = 1

    def private(self) -> set[str]:
        return top(self.w0, self.layers)


@dataclass
class FedRep(FedPer):
    """head_epochs 0 = those of the body."""

    algorithm = "fedrep"
    cases = CASES | {"so many epochs on the head": {"personal__epochs": 5}}
    keys = {"layers": "personal.layers", "head_epochs": "personal.epochs"}
    plain: bool = True
    head_epochs: int = 0

    def phases(self, E: int) -> list[tuple[int, set[str]]]:
        head = self.private()
        return [(self.head_epochs or E, head), (E, set(self.w0) - head)]


@dataclass
class LocalOnly(PrivateLayers):
    algorithm, cases = "local-only", CASES

    def private(self) -> set[str]:
        return set(self.w0)


fedrep = driven(FedRep)

"""FedMD: Li and Wang 2019, arXiv 1910.03581, Algorithm 1; each round ends with Communicate.

Client: SGD on public labels before its first training, if there is to be any;
        SGD on (1/bC) sum |f(x)_c - f~(x)_c| over batches of the public examples (Digest), from round 2 on;
        then E epochs of SGD on its own examples (Revisit); f_k(x) of all public examples goes up
Server: f~ = mean of f_k over the clients of the round
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, plus, scores, sgd


def distance(w: Params, x: np.ndarray, target: np.ndarray) -> tuple[float, Params]:
    """Return the mean over examples and classes of |f(x) - target|, and its gradient by w."""
    away, z = scores(w, x) - target, features(w, x)
    error = np.sign(away) * (np.abs(away) > 1e-5 * (1 + np.abs(target))) / away.size
    hidden = error @ w["3.weight"] * (z > 0)
    loss = float(np.abs(away).mean())
    return loss, {
        "1.weight": hidden.T @ flat(x), "1.bias": hidden.sum(axis=0), "3.weight": error.T @ z,
        "3.bias": error.sum(axis=0),
    }  # fmt: skip


@dataclass
class FedMD(Reference):
    """own[k] = client k's model; consensus = f~ [P, C]; order(t) = the batches of the digest of round t;
    first = the batches of public examples, with labels, before a client's first training."""

    algorithm, model, tolerance = "fedmd", "mlp", 2e-4
    active = {"public.examples": 9}
    keys = {"digest_lr": "fedmd.digest-lr"}

    public: np.ndarray = field(default_factory=lambda: np.zeros((9, 4)))
    order: Callable[[int], list[np.ndarray]] = lambda t: []
    labels: np.ndarray = field(default_factory=lambda: np.zeros(9, int))
    first: list[np.ndarray] = field(default_factory=list)
    digest_lr: float = 0.0
    classes: int = 3

    def begin(self) -> None:
        self.start = self.w
        self.own: dict[Client, Params] = {}
        self.w = {"logits": np.zeros((len(self.public), self.classes)), "clients": np.zeros(1)}

    def round(self, r: Round) -> None:
        sent = []
        for k in r.cohort:
            w = self.personal(k)
            if k not in self.own:
                w = sgd(w, (self.public, self.labels), self.first, r.eta)
            for rows in self.order(r.t) if self.w["clients"][0] else []:
                by = distance(w, self.public[rows], self.w["logits"][rows])[1]
                w = plus(w, by, -(self.digest_lr or r.eta))
            self.own = self.own | {k: r.sgd(k, w)}
            sent.append(scores(self.own[k], self.public))
        self.w = {"logits": sum(sent) / len(sent), "clients": np.array([float(len(sent))])}

    def personal(self, k: Client) -> Params:
        return self.own.get(k, self.start)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.own}

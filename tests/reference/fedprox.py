"""FedProx: Li et al., MLSys 2020, arXiv 1812.06127, Algorithm 2, sections 3.2, 5.2 and C.3.3.

Client: h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2, by x_k epochs of SGD, each step with the gradient
        grad l(w; b) + mu (w - w^t);   gamma_k = |grad h_k(w_k; w^t)| / |grad h_k(w^t; w^t)|
Server: as FedAvg, over the clients that were not dropped; nobody left = the model stays
mu:     +0.1 when the loss rises, -0.1 (not below 0) after 5 falls in a row; equal counts as a fall; either
        change starts the count again. The first loss has nothing to compare with.
        The loss is sum n_k/n_S F_k(w^t), what a server can see of it.
"""

from dataclasses import dataclass
from typing import Any

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, loss_and_gradient, norm, proximal

CASES: dict[str, dict[str, Any]] = {
    "mu 0": {"fedprox__mu": 0.0, "local_epochs": 2, "fraction_train": 1.0},
    "mu 1, everybody": {"fedprox__mu": 1.0, "local_epochs": 4, "fraction_train": 1.0},
    "few clients": {"fedprox__mu": 0.5, "fraction_train": 0.4, "num_server_rounds": 4},
    "stragglers kept": {"fedprox__mu": 0.5, "local_epochs": 5, "fraction_train": 1.0, "stragglers": 0.6},
    "stragglers dropped": {
        "fedprox__mu": 0.5, "local_epochs": 5, "fraction_train": 1.0, "stragglers": 0.6,
        "drop_stragglers": True,
    },
}  # fmt: skip


@dataclass
class FedProx(Reference):
    algorithm = "fedprox"
    active = {"fedprox.mu": 0.9, "fedprox.adaptive": True, "fedprox.measure-gamma": True}
    cases = {name: keys | {"fedprox__measure_gamma": True} for name, keys in CASES.items()}

    mu: float
    adaptive: bool = False

    def begin(self) -> None:
        self.adapted = Adaptive(self.mu)

    def round(self, r: Round) -> None:
        self.mu = self.adapted.mu if self.adaptive else self.mu
        prox = proximal(self.w, self.mu)
        trained = {k: r.sgd(k, self.w, prox) for k in r.cohort}
        self.gamma = {k: gamma(r.data[k], w_k, self.w, self.mu) for k, w_k in trained.items()}
        if trained:
            n_S = sum(len(r.data[k][1]) for k in r.cohort)
            losses = (len(r.data[k][1]) / n_S * loss_and_gradient(self.w, *r.data[k])[0] for k in r.cohort)
            self.adapted.see(sum(losses))
            self.w = r.mean(trained)

    def metrics(self) -> dict[str, float]:
        return {"proximal-mu": self.mu}

    def told(self) -> dict[str, dict[Client, float]]:
        return {"gamma": self.gamma}


def gamma(client: tuple, w: Params, start: Params, mu: float) -> float:
    """Return how inexactly the local problem was solved; 0 = exactly, 1 = no progress in this sense."""
    gradient = proximal(start, mu)
    return norm(gradient(w, *client)) / norm(gradient(start, *client))


class Adaptive:
    """The heuristic for mu: see() takes the loss of a round, mu is then that of the next."""

    def __init__(self, mu: float) -> None:
        self.mu = mu
        self.previous: float | None = None
        self.falls = 0

    def see(self, loss: float) -> None:
        if self.previous is not None:
            if loss > self.previous:
                self.mu += 0.1
                self.falls = 0
            else:
                self.falls += 1
                if self.falls == 5:
                    self.mu = max(0.0, self.mu - 0.1)
                    self.falls = 0
        self.previous = loss

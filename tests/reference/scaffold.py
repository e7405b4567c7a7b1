"""SCAFFOLD: Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1.

Client: y <- x; K times: y <- y - eta_l (g_i(y) - c_i + c)
        c_i^+ = g_i(x) (option I, all local data) or c_i - c + (x - y)/(K eta_l) (option II)
Server: x <- x + eta_g/|S| sum (y_i - x);  c <- c + 1/N sum (c_i^+ - c_i)

With heavy-ball momentum the corrected gradient enters v <- rho v + g, y <- y - eta_l v, and K becomes the sum
of the factors with which the gradients stand in (x - y)/eta_l.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.fednova import factors
from tests.reference.mlp import Client, Params, gradient, plus, zero


@dataclass
class Scaffold(Reference):
    """lost(t, k) = client k lost its c_k before round t."""

    algorithm = "scaffold"
    active = {"scaffold.server-lr": 0.9}
    cases = {
        "option II": {"local_epochs": 2, "fraction_train": 1.0},
        "option I": {"scaffold__option": "I", "local_epochs": 2},
        "few clients, a server lr": {
            "scaffold__server_lr": 0.7, "fraction_train": 0.4, "num_server_rounds": 6,
        },
        "stragglers": {"local_epochs": 5, "stragglers": 0.6, "fraction_train": 1.0},
        "momentum": {"local_epochs": 2, "momentum": 0.8, "learning_rate": 0.1},
        "full batches": {"local_epochs": 4, "batch_size": 0},
    }  # fmt: skip

    option: str = "II"
    server_lr: float = 1.0
    momentum: float = 0.0
    lost: Callable[[int, Client], bool] = lambda t, k: False

    def begin(self) -> None:
        self.control, self.own = zero(self.w), dict.fromkeys(self.data, zero(self.w))

    def round(self, r: Round) -> None:
        x, c, local = self.w, self.control, {}
        self.own |= {k: zero(x) for k in r.data if self.lost(r.t, k)}
        for i in r.cohort:
            c_i = self.own[i]

            def by(y: Params, X: np.ndarray, target: np.ndarray, c_i: Params = c_i) -> Params:
                return plus(plus(gradient(y, X, target), c_i, -1.0), c)

            local[i] = r.sgd(i, x, by, momentum=self.momentum)
            if self.option == "I":
                self.own[i] = gradient(x, *r.data[i])
            else:
                length = factors(len(r.steps(i)), self.momentum).sum() * r.eta
                self.own[i] = plus(plus(c_i, c, -1.0), plus(x, local[i], -1.0), 1.0 / length)
            self.control = plus(self.control, plus(self.own[i], c_i, -1.0), 1.0 / len(r.data))
        self.w = plus(x, plus(r.mean(local, plain=True), x, -1.0), self.server_lr)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"control": self.own}

    def server(self) -> dict[str, Params]:
        return {"control": self.control}

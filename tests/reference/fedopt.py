"""FedAdagrad, FedAdam, FedYogi: Reddi et al., ICLR 2021, Algorithm 2. FedAvgM: Hsu et al. 2019.

Client: as in FedAvg.  Server, on each number by itself, with Delta_t = sum_k (n_k / n_S) w_k - w^t:

adaptive  m <- beta1 m + (1 - beta1) Delta;  w <- w + eta m / (sqrt(v) + tau);  v = tau^2 at first
          Adagrad v <- v + Delta^2;  Adam v <- beta2 v + (1 - beta2) Delta^2;
          Yogi v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
FedAvgM   m <- beta m + Delta;  w <- w + eta m;  Nesterov: w <- w + eta (Delta + beta m)

Bias correction (Kingma & Ba, Adam): v = 0 at first; m / (1 - beta1^t) and v / (1 - beta2^t) in the step.
A sum of squares (Adagrad) has no such bias.
"""

import math

import numpy as np

from tests.reference import fedavg
from tests.reference.fedavg import Batches
from tests.reference.fedsgd import Client, Model, double


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    epochs: int,
    batches: Batches,
    server: "Server",
    lr_decay: float = 1.0,
) -> list[Model]:
    models = [double(w0)]
    for t in range(1, rounds + 1):
        _, mean = fedavg.run(
            clients, models[-1], rounds=1, selected=[selected[t - 1]], lr=lr * lr_decay ** (t - 1),
            epochs=epochs, batches=lambda _, k, epoch, t=t: batches(t, k, epoch),
        )  # fmt: skip
        models.append(server.step(models[-1], mean))
    return models


class Server:
    """The server optimiser, number by number; kind = "avgm", "adagrad", "adam" or "yogi"."""

    def __init__(
        self, kind: str, *, eta: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3,
        nesterov: bool = False, corrected: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.eta, self.beta1, self.beta2, self.tau = kind, eta, beta1, beta2, tau
        self.nesterov, self.corrected = nesterov, corrected
        self.m: dict[tuple[int, ...], float] = {}
        self.v: dict[tuple[int, ...], float] = {}
        self.t = 0

    def step(self, w: Model, mean: Model) -> Model:
        self.t += 1
        W, b = double(w)
        for part, (array, target) in enumerate(((W, mean[0]), (b, mean[1]))):
            for at in np.ndindex(array.shape):
                array[at] += self.added((part, *at), float(target[at] - array[at]))
        return W, b

    def added(self, at: tuple[int, ...], delta: float) -> float:
        m, v = self.m.get(at, 0.0), self.v.get(at, 0.0 if self.corrected else self.tau**2)
        if self.kind == "avgm":
            m = self.m[at] = self.beta1 * m + delta
            return self.eta * (delta + self.beta1 * m) if self.nesterov else self.eta * m
        m = self.beta1 * m + (1 - self.beta1) * delta
        if self.kind == "adagrad":
            v = v + delta**2
        elif self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * delta**2
        elif v > delta**2:
            v = v - (1 - self.beta2) * delta**2
        elif v < delta**2:
            v = v + (1 - self.beta2) * delta**2
        self.m[at], self.v[at] = m, v
        if self.corrected:
            m = m / (1 - self.beta1**self.t)
            if self.kind != "adagrad":
                v = v / (1 - self.beta2**self.t)
        return self.eta * m / (math.sqrt(v) + self.tau)

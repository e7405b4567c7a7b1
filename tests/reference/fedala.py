"""FedALA: Zhang et al., AAAI 2023, arXiv 2212.01197, section 3 and Algorithm 1.

Client: Theta_i = its model after its last local training, Theta = w^t
        Theta_hat = Theta_i + (Theta - Theta_i) * [1 in the lower layers, W_i in the top p layers]
        W_i <- clip(W_i - eta grad_{Theta_hat} L * (Theta - Theta_i), 0, 1), by minibatches of the slice;
        Theta_hat follows each step. W_i begins with ones and is kept.
        Before its first training Theta_i = w^0. The first time that the top layers of Theta_i are not those
        of Theta: epochs until the loss converges; later: one epoch. Where they are equal, Theta_hat = Theta.
        Then E epochs of SGD from Theta_hat; mu > 0 adds mu (w - Theta_hat) to each step.
Server: as in FedAvg
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, loss_and_gradient, proximal, top


def adapt(
    received: Params,
    own: Params,
    W: Params | None,
    client: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    *,
    batch_size: int,
    layers: int = 1,
    eta: float = 1.0,
    threshold: float = 0.01,
    window: int = 10,
    max_epochs: int = 100,
) -> tuple[Params, Params, list[float]]:
    """Return Theta_hat, W and the last loss of each epoch; W None = the start phase is still to come."""
    x, y = client
    upper = top(received, layers)
    away = {name: received[name] - own[name] for name in upper}
    starting = W is None
    W = {name: np.ones_like(received[name]) for name in received if name in upper} if W is None else W

    def mixed(W: Params) -> Params:
        return {n: own[n] + away[n] * W[n] if n in upper else received[n] for n in received}

    theta, losses = mixed(W), list[float]()
    size = batch_size or len(rows)
    while len(losses) < (max_epochs if starting else 1):
        for i in range(0, len(rows), size):
            batch = rows[i : i + size]
            loss, g = loss_and_gradient(theta, x[batch], y[batch])
            W = {name: np.clip(W[name] - eta * g[name] * away[name], 0.0, 1.0) for name in W}
            theta = mixed(W)
        losses.append(loss)
        if len(losses) > window and np.std(losses[-window:]) < threshold:
            break
    return theta, W, losses


@dataclass
class FedALA(Reference):
    """slice_rows(t, k) = the slice for round t; personal(k) is Theta_hat of round t + 1.

    own[i] = Theta_i, weights[i] = W_i, of those that have them.
    """

    algorithm, model = "fedala", "mlp"
    active = {"fedala.percent": 60.0, "fedala.max-epochs": 12}

    slice_rows: Callable[[int, Client], np.ndarray]
    batch_size: int
    mu: float = 0.0
    layers: int = 1
    eta: float = 1.0
    threshold: float = 0.01
    window: int = 10
    max_epochs: int = 100

    def begin(self) -> None:
        self.first = self.w
        self.own, self.weights = dict[Client, Params](), dict[Client, Params]()

    def receive(self, t: int, k: Client) -> tuple[Params, Params | None]:
        W, mine = self.weights.get(k), self.own.get(k, self.first)
        if all(np.array_equal(mine[name], self.w[name]) for name in top(self.w, self.layers)):
            return self.w, W
        return adapt(
            self.w, mine, W, self.data[k], self.slice_rows(t, k), batch_size=self.batch_size,
            layers=self.layers, eta=self.eta, threshold=self.threshold, window=self.window,
            max_epochs=self.max_epochs,
        )[:2]  # fmt: skip

    def round(self, r: Round) -> None:
        for k in r.cohort:
            theta, W = self.receive(r.t, k)
            if W is not None:
                self.weights[k] = W
            self.own[k] = r.sgd(k, theta, proximal(theta, self.mu))
        self.w = r.mean({k: self.own[k] for k in r.cohort})

    def personal(self, k: Client) -> Params:
        return self.receive(self.t + 1, k)[0]

"""FedFomo: Zhang et al., ICLR 2021, arXiv 2012.08565, section 3.

Client: theta_i = its model after its last local training, theta = before it (at first both are w^0)
        theta_n = a model that came down, and theta_i itself
        w_n = max(0, (L_i(theta) - L_i(theta_n)) / |theta_n - theta|) by the loss on validation rows,
        divided by their sum; all 0 where nothing is better
        theta_i <- theta + sum_n w_n (theta_n - theta), then E epochs of SGD
        "after": theta = theta_i, which is not compared with itself
Server: keeps every client's last model and the affinities P = diag(1, .., 1); P_i <- P_i + w_i
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, loss_and_gradient, norm, plus

Vector = dict[Client, float]


def weigh(
    theta: Params, others: dict[Client, Params], client: tuple[np.ndarray, np.ndarray], rows: np.ndarray
) -> Vector:
    """Return the normalised w_n; an equal model has w_n = 0."""
    x, y = client[0][rows], client[1][rows]
    loss = loss_and_gradient(theta, x, y)[0]
    w = {}
    for n, theta_n in others.items():
        away = plus(theta_n, theta, -1.0)
        distance = norm(away)
        better = loss - loss_and_gradient(theta_n, x, y)[0]
        w[n] = max(0.0, better / distance) if distance > 0 else 0.0
    total = sum(w.values())
    return {n: w_n / total for n, w_n in w.items()} if total > 0 else w


def everybody(t: int, i: Client, P_i: Vector, seen: list[Client]) -> list[Client]:
    """Return all the others that the server has seen."""
    return seen


@dataclass
class FedFomo(Reference):
    """validation_rows(t, k); choose(t, i, P_i, seen others) = whose models client i gets.

    Validation rows are used for the w_n alone; keep them out of the batches. local[k] = theta_k at the
    server, of those seen, and w their mean; affinity[i][j] = P_ij; weights[i][n] = w_n of the clients of the
    last round; before[k] = what theta_k's last training began from.
    """

    algorithm, model = "fedfomo", "mlp"
    active = {"fedfomo.download": 2}

    validation_rows: Callable[[int, Client], np.ndarray]
    choose: Callable[[int, Client, Vector, list[Client]], list[Client]] = everybody
    baseline: str = "before"

    def begin(self) -> None:
        self.start = self.w
        self.local, self.before = dict[Client, Params](), dict[Client, Params]()
        self.weights = dict[Client, Vector]()
        self.affinity = {i: {j: float(i == j) for j in self.data} for i in self.data}

    def round(self, r: Round) -> None:
        P, models, trained, first = self.affinity, self.local, {}, {}
        self.weights = {}
        for i in r.cohort:
            chosen = self.choose(r.t, i, P[i], [j for j in sorted(models) if j != i])
            listed = {j: models[j] for j in chosen}
            theta = base = models.get(i, self.start)
            if self.baseline == "before":
                listed[i] = theta
                theta = base = self.before.get(i, self.start)
            self.weights[i] = weigh(base, listed, r.data[i], self.validation_rows(r.t, i))
            for n, w_n in self.weights[i].items():
                theta = plus(theta, plus(listed[n], base, -1.0), w_n)
            first[i], trained[i] = theta, r.sgd(i, theta)
        self.local, self.before = models | trained, self.before | first
        self.affinity = {i: {j: P[i][j] + self.weights.get(i, {}).get(j, 0.0) for j in P[i]} for i in P}
        self.w = r.mean(self.local, plain=True)

    def personal(self, k: Client) -> Params:
        return self.local.get(k, self.start)

    def server(self) -> dict[str, Params]:
        return {f"models/{k}": w for k, w in self.local.items()}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.local, "before": self.before}

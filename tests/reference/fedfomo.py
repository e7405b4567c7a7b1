"""FedFomo: Zhang et al., ICLR 2021, arXiv 2012.08565, section 3. See `tests.reference.mlp` for the arguments.

Client: theta_i = its model after its last local training, theta = before it (at first both are w^0)
        theta_n = a model that came down, and theta_i itself
        w_n = max(0, (L_i(theta) - L_i(theta_n)) / |theta_n - theta|) by the loss on validation rows,
        divided by their sum; all 0 where nothing is better
        theta_i <- theta + sum_n w_n (theta_n - theta), then E epochs of SGD
        "after": theta = theta_i, which is not compared with itself
Server: keeps every client's last model and the affinities P = diag(1, .., 1); P_i <- P_i + w_i
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Params,
    dot,
    double,
    loss_and_gradient,
    passes,
    plus,
    sgd,
)

Vector = dict[Client, float]


@dataclass
class FomoTrace:
    """After round t: models[t][k] = theta_k at the server, of those seen; affinity[t][i][j] = P_ij.

    weights[t][i][n] = w_n of round t's clients; personal[t][k] = theta_k, w^0 of a client never seen;
    before[t][k] = what theta_k's last training began from.
    """

    models: list[dict[Client, Params]]
    weights: list[dict[Client, Vector]]
    affinity: list[dict[Client, Vector]]
    personal: list[dict[Client, Params]]
    before: list[dict[Client, Params]]


def weigh(
    theta: Params, others: dict[Client, Params], client: tuple[np.ndarray, np.ndarray], rows: np.ndarray
) -> Vector:
    """Return the normalised w_n; an equal model has w_n = 0."""
    x, y = client[0][rows], client[1][rows]
    loss = loss_and_gradient(theta, x, y)[0]
    w = {}
    for n, theta_n in others.items():
        away = plus(theta_n, theta, -1.0)
        distance = math.sqrt(dot(away, away))
        better = loss - loss_and_gradient(theta_n, x, y)[0]
        w[n] = max(0.0, better / distance) if distance > 0 else 0.0
    total = sum(w.values())
    return {n: w_n / total for n, w_n in w.items()} if total > 0 else w


def everybody(t: int, i: Client, P_i: Vector, seen: list[Client]) -> list[Client]:
    """Return all the others that the server has seen."""
    return seen


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    validation_rows: Callable[[int, Client], np.ndarray],
    epochs: int,
    lr: float,
    choose: Callable[[int, Client, Vector, list[Client]], list[Client]] = everybody,
    lr_decay: float = 1.0,
    baseline: str = "before",
) -> FomoTrace:
    """Run FedFomo; validation_rows(t, k); choose(t, i, P_i, seen others) = whose models client i gets.

    Validation rows are used for the w_n alone; keep them out of the batches.
    """
    start = double(w0)
    models: dict[Client, Params] = {}
    began: dict[Client, Params] = {}
    P = {i: {j: float(i == j) for j in sorted(data)} for i in sorted(data)}
    trace = FomoTrace([{}], [{}], [P], [dict.fromkeys(P, start)], [{}])
    for t, cohort in enumerate(cohorts, 1):
        trained, weights, first = {}, {}, {}
        for i in sorted(cohort):
            chosen = choose(t, i, P[i], [j for j in sorted(models) if j != i])
            listed = {j: models[j] for j in chosen}
            theta = base = models.get(i, start)
            if baseline == "before":
                listed[i] = theta
                theta = base = began.get(i, start)
            weights[i] = weigh(base, listed, data[i], validation_rows(t, i))
            for n, w_n in weights[i].items():
                theta = plus(theta, plus(listed[n], base, -1.0), w_n)
            first[i] = theta
            trained[i] = sgd(theta, data[i], passes(batches, t, i, 0, epochs), lr * lr_decay ** (t - 1))
        models, began = models | trained, began | first
        P = {i: {j: P[i][j] + weights.get(i, {}).get(j, 0.0) for j in P[i]} for i in P}
        trace.models.append(models)
        trace.weights.append(weights)
        trace.affinity.append(P)
        trace.personal.append({k: models.get(k, start) for k in P})
        trace.before.append(began)
    return trace

"""FedALA: Zhang et al., AAAI 2023, arXiv 2212.01197, section 3 and Algorithm 1.

Client: Theta_i = its model after its last local training, Theta = w^t
        Theta_hat = Theta_i + (Theta - Theta_i) * [1 in the lower layers, W_i in the top p layers]
        W_i <- clip(W_i - eta grad_{Theta_hat} L * (Theta - Theta_i), 0, 1), by minibatches of the slice;
        Theta_hat follows each step. W_i begins with ones and is kept.
        Before its first training Theta_i = w^0. The first time that the top layers of Theta_i are not those
        of Theta: epochs until the loss settles; later: one epoch. Where they are equal, Theta_hat = Theta.
        Then E epochs of SGD from Theta_hat; mu > 0 adds mu (w - Theta_hat) to each step.
Server: as in FedAvg
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Params,
    Trace,
    average,
    double,
    loss_and_gradient,
    passes,
    proximal,
    sgd,
    top,
)


@dataclass
class AlaTrace(Trace):
    """own[t][i] = Theta_i, weights[t][i] = W_i after round t, of those that have them."""

    own: list[dict[Client, Params]] = field(default_factory=lambda: [{}])
    weights: list[dict[Client, Params]] = field(default_factory=lambda: [{}])


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


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    slice_rows: Callable[[int, Client], np.ndarray],
    epochs: int,
    batch_size: int,
    lr: float,
    lr_decay: float = 1.0,
    mu: float = 0.0,
    **ala: Any,
) -> AlaTrace:
    """Run FedALA; slice_rows(t, k) = the slice for round t (that of the last round + 1 is asked for, too).

    personal[t][k] is Theta_hat of round t + 1. `ala` goes to `adapt`.
    """
    w, own, weights = double(w0), dict[Client, Params](), dict[Client, Params]()
    first, upper = w, top(w, ala.get("layers", 1))

    def receive(t: int, k: Client) -> tuple[Params, Params | None]:
        W, mine = weights.get(k), own.get(k, first)
        if all(np.array_equal(mine[name], w[name]) for name in upper):
            return w, W
        return adapt(w, mine, W, data[k], slice_rows(t, k), batch_size=batch_size, **ala)[:2]

    trace = AlaTrace([w], [dict.fromkeys(sorted(data), w)])
    for t, cohort in enumerate(cohorts, 1):
        for k in sorted(cohort):
            theta, W = receive(t, k)
            if W is not None:
                weights[k] = W
            steps = passes(batches, t, k, 0, epochs)
            own[k] = sgd(theta, data[k], steps, lr * lr_decay ** (t - 1), proximal(theta, mu))
        w = average([own[k] for k in sorted(cohort)], [len(data[k][1]) for k in sorted(cohort)])
        trace.models.append(w)
        trace.personal.append({k: receive(t + 1, k)[0] for k in sorted(data)})
        trace.own.append(dict(own))
        trace.weights.append(dict(weights))
    return trace

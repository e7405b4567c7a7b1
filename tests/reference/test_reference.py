"""The references themselves: against numeric derivatives, against each other, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.reference import fedavg, fedprox, fedsgd
from tests.reference.mlp import (
    Batches,
    Data,
    Params,
    average,
    loss_and_gradient,
    norm,
    numeric,
    passes,
    plus,
    proximal,
    sgd,
)

RNG = np.random.default_rng(11)
CLIENTS: Data = {k: (RNG.normal(size=(n, 3)), RNG.integers(0, 4, n)) for k, n in enumerate((2, 5, 3))}
W0: Params = {"1.weight": RNG.normal(size=(4, 3)), "1.bias": RNG.normal(size=4)}
ALL = [[0, 1, 2]] * 6


def whole(t: int, k: int, epoch: int) -> list[np.ndarray]:
    return [np.arange(len(CLIENTS[k][1]))]


def pairs(t: int, k: int, epoch: int) -> list[np.ndarray]:
    """Batches of two, the last one short, in an order that depends on everything."""
    order = np.random.default_rng([t, k, epoch]).permutation(len(CLIENTS[k][1]))
    return [order[i : i + 2] for i in range(0, len(order), 2)]


def same(a: Params, b: Params, tolerance: float = 1e-13) -> bool:
    return all(np.abs(a[name] - b[name]).max() <= tolerance for name in a)


def test_loss_and_gradient_by_hand() -> None:
    # w = 0: p = (1/2, 1/2) for both examples, loss log 2. Scores' error (p - onehot)/n:
    # x=1, y=0: (-1/4, 1/4); x=3, y=1: (1/4, -1/4). X^T error = 1*(-1/4) + 3*(1/4) = (1/2, -1/2); bias 0.
    w = {"1.weight": np.zeros((2, 1)), "1.bias": np.zeros(2)}
    loss, g = loss_and_gradient(w, np.array([[1.0], [3.0]]), np.array([0, 1]))
    assert loss == pytest.approx(math.log(2))
    assert g["1.weight"].tolist() == [[0.5], [-0.5]]
    assert g["1.bias"].tolist() == [0.0, 0.0]


def test_gradient_is_the_numeric_derivative_of_the_loss() -> None:
    X, y = CLIENTS[1]
    _, gradient = loss_and_gradient(W0, X, y)
    assert same(numeric(lambda v: loss_and_gradient(v, X, y)[0], W0), gradient, 1e-8)


def test_the_proximal_gradient_is_that_of_the_squared_norm_with_one_half() -> None:
    w, (X, y), mu = {"1.weight": W0["1.weight"] + 0.7, "1.bias": W0["1.bias"] - 0.4}, CLIENTS[0], 0.9

    def h(v: Params) -> float:
        return loss_and_gradient(v, X, y)[0] + mu / 2 * norm(plus(v, W0, -1.0)) ** 2

    assert same(numeric(h, w), proximal(W0, mu)(w, X, y), 1e-8)


def test_fedsgd_with_everybody_is_gradient_descent_on_the_pooled_data() -> None:
    X, y = (np.concatenate([c[i] for c in CLIENTS.values()]) for i in (0, 1))
    models, w = fedsgd.run(CLIENTS, W0, cohorts=ALL, lr=0.5, lr_decay=0.8).w, W0
    for t in range(6):
        w = plus(w, loss_and_gradient(w, X, y)[1], -0.5 * 0.8**t)
        assert same(models[t + 1], w)


@pytest.mark.parametrize("cohorts", [ALL, [[0, 2], [1], [1, 2], [0, 1], [2], [0, 1, 2]]])
def test_fedsgd_is_fedavg_with_one_full_batch_epoch(cohorts: list[list[int]]) -> None:
    one = fedsgd.run(CLIENTS, W0, cohorts=cohorts, lr=0.5, lr_decay=0.8)
    other = fedavg.run(CLIENTS, W0, cohorts=cohorts, lr=0.5, epochs=1, batches=whole, lr_decay=0.8)
    assert all(same(a, b) for a, b in zip(one.w, other.w, strict=True))


@pytest.mark.parametrize("batches", [whole, pairs])
def test_fedprox_with_mu_0_is_fedavg(batches: Batches) -> None:
    cohorts = [[0, 2], [1, 2], [0, 1, 2]]
    common = {"cohorts": cohorts, "lr": 0.3, "batches": batches}
    avg = fedavg.run(CLIENTS, W0, epochs=4, **common)
    prox = fedprox.run(CLIENTS, W0, mu=0.0, epochs=lambda t, k: 4, **common)
    assert all(same(a, b) for a, b in zip(avg.w, prox.w, strict=True))
    more = fedprox.run(CLIENTS, W0, mu=0.5, epochs=lambda t, k: 4, **common)
    assert not same(avg.w[1], more.w[1], 1e-4)


def test_weights_are_those_of_the_cohort() -> None:
    # (2 w_0 + 3 w_2) / 5 of the clients with 2 and 3 examples; client 1 is not there
    a, b = {"x": np.array([1.0, 0.0])}, {"x": np.array([6.0, 10.0])}
    assert average([a, b], [2, 3])["x"].tolist() == pytest.approx([4.0, 6.0])


def solved(k: int, mu: float, lr: float, epochs: int, batches: Batches = whole) -> Params:
    """Return what client k makes of W0 in round 1 under FedProx."""
    return sgd(W0, CLIENTS[k], passes(batches, 1, k, 0, epochs), lr, proximal(W0, mu))


def test_a_larger_mu_holds_the_clients_closer_to_where_they_started() -> None:
    moved = [norm(plus(solved(1, mu, 0.1, 20), W0, -1.0)) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert moved == sorted(moved, reverse=True)
    assert moved[3] < moved[0] / 2


def test_gamma_is_1_at_the_start_and_0_at_the_minimum() -> None:
    assert fedprox.gamma(CLIENTS[1], W0, W0, 0.5) == pytest.approx(1)
    assert fedprox.gamma(CLIENTS[1], solved(1, 0.5, 0.3, 2000), W0, 0.5) < 1e-9


def test_stragglers_work_less_and_nobody_left_keeps_the_model() -> None:
    common = {"lr": 0.3, "batches": pairs, "mu": 0.2}
    kept = fedprox.run(CLIENTS, W0, cohorts=[[0, 1]], epochs=lambda t, k: 1 if k == 0 else 3, **common)
    local = [solved(0, 0.2, 0.3, 1, pairs), solved(1, 0.2, 0.3, 3, pairs)]
    assert same(kept.w[1], average(local, [2, 5]))
    nobody = fedprox.run(CLIENTS, W0, cohorts=[[]], epochs=3, **common)
    assert same(nobody.w[1], W0)


def test_adaptive_mu_by_hand() -> None:
    # first loss: nothing; rise: +0.1; five falls (the equal one counts): -0.1; a rise starts again
    losses = [3.0, 3.1, 3.0, 2.9, 2.9, 2.8, 2.7, 2.6, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 2.1]
    wanted = [0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0]
    adaptive = fedprox.Adaptive(0.0)
    got = []
    for loss in losses:
        adaptive.see(loss)
        got.append(adaptive.mu)
    assert got == pytest.approx(wanted, abs=1e-12)


def test_adaptive_mu_stops_at_0() -> None:
    adaptive = fedprox.Adaptive(0.05)
    for loss in range(20, 0, -1):
        adaptive.see(float(loss))
    assert adaptive.mu == 0.0

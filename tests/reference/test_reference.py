"""The references themselves: against numeric derivatives, against each other, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.reference import fedavg, fedprox, fedsgd
from tests.reference.fedsgd import Client, Model, loss_and_gradient

RNG = np.random.default_rng(11)
CLIENTS: list[Client] = [(RNG.normal(size=(n, 3)), RNG.integers(0, 4, n)) for n in (2, 5, 3)]  # unequal sizes
W0: Model = (RNG.normal(size=(3, 4)), RNG.normal(size=4))
ALL = [[0, 1, 2]] * 6


def whole(t: int, k: int, epoch: int) -> list[np.ndarray]:
    return [np.arange(len(CLIENTS[k][1]))]


def pairs(t: int, k: int, epoch: int) -> list[np.ndarray]:
    """Batches of two, the last one short, in an order that depends on everything."""
    order = np.random.default_rng([t, k, epoch]).permutation(len(CLIENTS[k][1]))
    return [order[i : i + 2] for i in range(0, len(order), 2)]


def same(a: Model, b: Model, tolerance: float = 1e-13) -> bool:
    return all(np.abs(x - y).max() <= tolerance for x, y in zip(a, b, strict=True))


def test_loss_and_gradient_by_hand() -> None:
    # w = 0: p = (1/2, 1/2) for both examples, loss log 2. Scores' error (p - onehot)/n:
    # x=1, y=0: (-1/4, 1/4); x=3, y=1: (1/4, -1/4). X^T error = 1*(-1/4) + 3*(1/4) = (1/2, -1/2); bias 0.
    loss, (g_W, g_b) = loss_and_gradient(
        (np.zeros((1, 2)), np.zeros(2)), np.array([[1.0], [3.0]]), np.array([0, 1])
    )
    assert loss == pytest.approx(math.log(2))
    assert g_W.tolist() == [[0.5, -0.5]]
    assert g_b.tolist() == [0.0, 0.0]


def numeric(f: object, w: Model, h: float = 1e-6) -> Model:
    """Central differences of f at w."""
    out = tuple(np.zeros_like(a) for a in w)
    for part, array in zip(out, w, strict=True):
        for i in np.ndindex(array.shape):
            before = array[i]
            values = []
            for step in (h, -h):
                array[i] = before + step
                values.append(f(w))  # type: ignore[operator]
            array[i] = before
            part[i] = (values[0] - values[1]) / (2 * h)
    return out  # type: ignore[return-value]


def test_gradient_is_the_numeric_derivative_of_the_loss() -> None:
    w = (W0[0].copy(), W0[1].copy())
    X, y = CLIENTS[1]
    _, gradient = loss_and_gradient(w, X, y)
    assert same(numeric(lambda v: loss_and_gradient(v, X, y)[0], w), gradient, 1e-8)


def test_the_proximal_gradient_is_that_of_the_squared_norm_with_one_half() -> None:
    w, (X, y), mu = (W0[0] + 0.7, W0[1] - 0.4), CLIENTS[0], 0.9

    def h(v: Model) -> float:
        return loss_and_gradient(v, X, y)[0] + mu / 2 * fedprox.norm((v[0] - W0[0], v[1] - W0[1])) ** 2

    assert same(numeric(h, w), fedprox.prox_gradient(w, W0, mu, X, y), 1e-8)


def test_fedsgd_with_everybody_is_gradient_descent_on_the_pooled_data() -> None:
    X, y = np.concatenate([c[0] for c in CLIENTS]), np.concatenate([c[1] for c in CLIENTS])
    models = fedsgd.run(CLIENTS, W0, rounds=6, selected=ALL, lr=0.5, lr_decay=0.8)
    W, b = W0
    for t in range(6):
        _, (g_W, g_b) = loss_and_gradient((W, b), X, y)
        W, b = W - 0.5 * 0.8**t * g_W, b - 0.5 * 0.8**t * g_b
        assert same(models[t + 1], (W, b))


@pytest.mark.parametrize("cohorts", [ALL, [[0, 2], [1], [1, 2], [0, 1], [2], [0, 1, 2]]])
def test_fedsgd_is_fedavg_with_one_full_batch_epoch(cohorts: list[list[int]]) -> None:
    one = fedsgd.run(CLIENTS, W0, rounds=6, selected=cohorts, lr=0.5, lr_decay=0.8)
    other = fedavg.run(CLIENTS, W0, rounds=6, selected=cohorts, lr=0.5, epochs=1, batches=whole, lr_decay=0.8)
    assert all(same(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("batches", [whole, pairs])
def test_fedprox_with_mu_0_is_fedavg(batches: fedavg.Batches) -> None:
    cohorts = [[0, 2], [1, 2], [0, 1, 2]]
    common = {"rounds": 3, "selected": cohorts, "lr": 0.3, "batches": batches}
    avg = fedavg.run(CLIENTS, W0, epochs=4, **common)  # type: ignore[arg-type]
    prox = fedprox.run(CLIENTS, W0, mu=0.0, work=lambda t, k: 4, **common)  # type: ignore[arg-type]
    assert all(same(a, b) for a, b in zip(avg, prox.models, strict=True))
    more = fedprox.run(CLIENTS, W0, mu=0.5, work=lambda t, k: 4, **common)  # type: ignore[arg-type]
    assert not same(avg[1], more.models[1], 1e-4)


def test_weights_are_those_of_the_cohort() -> None:
    # (2 w_0 + 3 w_2) / 5 of the clients with 2 and 3 examples; client 1 is not there
    a, b = (np.array([1.0]), np.array([0.0])), (np.array([6.0]), np.array([10.0]))
    W, bias = fedavg.average([a, b], [2, 3])
    assert (float(W[0]), float(bias[0])) == pytest.approx((4.0, 6.0))


def test_a_larger_mu_holds_the_clients_closer_to_where_they_started() -> None:
    moved = [
        fedprox.norm(tuple(a - s for a, s in zip(fedprox.solve(
            CLIENTS[1], W0, 0.1, mu, 20, 1, 1, whole), W0, strict=True)))  # type: ignore[arg-type]
        for mu in (0.0, 0.1, 1.0, 5.0)
    ]  # fmt: skip
    assert moved == sorted(moved, reverse=True)
    assert moved[3] < moved[0] / 2


def test_gamma_is_1_at_the_start_and_0_at_the_minimum() -> None:
    assert fedprox.gamma(CLIENTS[1], W0, W0, 0.5) == pytest.approx(1)
    solved = fedprox.solve(CLIENTS[1], W0, 0.3, 0.5, 2000, 1, 1, whole)
    assert fedprox.gamma(CLIENTS[1], solved, W0, 0.5) < 1e-9


def test_stragglers_work_less_or_are_left_out_and_nobody_left_keeps_the_model() -> None:
    common = {"rounds": 1, "selected": [[0, 1]], "lr": 0.3, "batches": pairs, "mu": 0.2}
    kept = fedprox.run(CLIENTS, W0, work=lambda t, k: 1 if k == 0 else 3, **common)  # type: ignore[arg-type]
    w_0 = fedprox.solve(CLIENTS[0], W0, 0.3, 0.2, 1, 1, 0, pairs)
    w_1 = fedprox.solve(CLIENTS[1], W0, 0.3, 0.2, 3, 1, 1, pairs)
    assert same(kept.models[1], fedavg.average([w_0, w_1], [2, 5]))
    dropped = fedprox.run(
        CLIENTS, W0, work=lambda t, k: 3, dropped=lambda t, k: k == 0, **common  # type: ignore[arg-type]
    )  # fmt: skip
    assert same(dropped.models[1], w_1)
    nobody = fedprox.run(
        CLIENTS, W0, work=lambda t, k: 3, dropped=lambda t, k: True, **common  # type: ignore[arg-type]
    )  # fmt: skip
    assert same(nobody.models[1], W0)


def test_adaptive_mu_by_hand() -> None:
    # first loss: nothing; rise: +0.1; five falls (the equal one counts): -0.1; a rise starts anew
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

"""What the references are made of: by hand, and against numeric derivatives.

A reference is held to numbers by hand through the app, which equals it and has such tests of its own. Here
are those of algorithms whose own tests have none.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.reference import ditto, fednova, fedper, mlp
from tests.reference.mlp import Data, Params, average, gradient, loss_and_gradient, numeric, plus

RNG = np.random.default_rng(17)
SIZES = {"a": 3, "b": 6, "c": 5}
DATA: Data = {k: (RNG.normal(size=(n, 2, 2)), RNG.integers(0, 3, n)) for k, n in SIZES.items()}


def initial(hidden: int = 5) -> Params:
    shapes = {"1.weight": (hidden, 4), "1.bias": (hidden,), "3.weight": (3, hidden), "3.bias": (3,)}
    return {name: RNG.normal(size=shape) for name, shape in shapes.items()}


W0, W1 = initial(), initial()
HEAD = {"3.weight", "3.bias"}
BODY = {"1.weight", "1.bias"}


def whole(t: int, k: str, draw: int) -> list[np.ndarray]:
    return [np.arange(SIZES[k])]


def same(a: Params, b: Params, tolerance: float = 1e-12) -> bool:
    assert set(a) == set(b)
    return all(np.abs(a[name] - b[name]).max() <= tolerance for name in a)


# --------------------------------------------------------------------------------------- the model


def test_one_layer_by_hand() -> None:
    # w = 0: p = (1/2, 1/2) for both examples, loss log 2. Scores' error (p - onehot)/n:
    # x=1, y=0: (-1/4, 1/4); x=3, y=1: (1/4, -1/4). X^T error = 1*(-1/4) + 3*(1/4) = (1/2, -1/2); bias 0.
    w = {"1.weight": np.zeros((2, 1)), "1.bias": np.zeros(2)}
    loss, g = loss_and_gradient(w, np.array([[1.0], [3.0]]), np.array([0, 1]))
    assert loss == pytest.approx(math.log(2))
    assert g["1.weight"].tolist() == [[0.5], [-0.5]]
    assert g["1.bias"].tolist() == [0.0, 0.0]


def test_the_net_by_hand() -> None:
    # x = 2: pre-activations (2, -2) + (1, 1), z = (3, 0); scores (3, 0): p = (s, 1 - s), s = 1/(1 + e^-3).
    # y = 1: error = (s, -s). Only the first hidden unit learns: by its output 1 * s + 0 * (-s) = s.
    w = {"1.weight": np.array([[1.0], [-1.0]]), "1.bias": np.ones(2)}
    w |= {"3.weight": np.eye(2), "3.bias": np.zeros(2)}
    x, y, s = np.array([[2.0]]), np.array([1]), 1 / (1 + math.exp(-3))
    assert mlp.features(w, x).tolist() == [[3, 0]]
    loss, g = loss_and_gradient(w, x, y)
    assert loss == pytest.approx(-math.log(1 - s))
    assert g["3.weight"] == pytest.approx(np.array([[3 * s, 0], [-3 * s, 0]]))
    assert g["3.bias"] == pytest.approx(np.array([s, -s]))
    assert g["1.weight"] == pytest.approx(np.array([[2 * s], [0]]))
    assert g["1.bias"] == pytest.approx(np.array([s, 0]))


def test_gradients_are_the_numeric_derivatives() -> None:
    x, y = DATA["b"]
    for w0 in (W0, {"1.weight": RNG.normal(size=(3, 4)), "1.bias": RNG.normal(size=3)}):
        assert same(numeric(lambda w: loss_and_gradient(w, x, y)[0], w0), gradient(w0, x, y), 1e-8)

    def h(w: Params) -> float:
        away = plus(w, W1, -1.0)
        return loss_and_gradient(w, x, y)[0] + 0.7 / 2 * mlp.dot(away, away)

    assert same(numeric(h, W0), mlp.proximal(W1, 0.7)(W0, x, y), 1e-8)


def test_momentum_and_frozen_names_by_hand() -> None:
    def steep(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return {"one": np.array([1.0]), "two": np.array([3.0])}

    start = {"one": np.array([0.0]), "two": np.array([0.0])}
    # v = 1, then 0.5 * 1 + 1 = 1.5: 0 - 0.1 (1 + 1.5) = -0.25
    steps = [np.arange(3)] * 2
    w = mlp.sgd(start, DATA["a"], steps, 0.1, steep, names={"one"}, momentum=0.5)
    assert (w["one"].tolist(), w["two"].tolist()) == ([-0.25], [0.0])


def test_the_last_layers_and_the_mean() -> None:
    assert [mlp.top(W0, p) for p in (0, 1, 2)] == [set(), HEAD, HEAD | BODY]
    mean = average([{"w": np.array([1.0])}, {"w": np.array([6.0])}], [2, 3])
    assert mean["w"].tolist() == pytest.approx([4.0])


# ------------------------------------------------------------------- FedRep, Ditto, FedNova


def test_fedrep_by_hand_head_first_then_body() -> None:
    """One full batch each: h' = h - eta g_h(B, h), B' = B - eta g_B(B, h')."""
    trace = fedper.fedrep(
        DATA, W0, epochs=1, cohorts=[["b"]], batches=whole, lr=0.3, head_epochs=1
    )  # fmt: skip
    x, y = DATA["b"]
    g = gradient(W0, x, y)
    w = W0 | {name: W0[name] - 0.3 * g[name] for name in HEAD}
    g = gradient(w, x, y)
    w |= {name: w[name] - 0.3 * g[name] for name in BODY}
    assert same(trace.personal[1]["b"], w)


def test_a_step_of_ditto_by_hand_from_what_was_received() -> None:
    """b comes in round 2: v = w^t - eta grad F; in round 3: v <- v - eta (grad F(v) + lambda (v - w^t))."""
    trace = ditto.run(DATA, W0, cohorts=[["a"], ["b"], ["b"]], lam=0.7, batches=whole, epochs=1, lr=0.3)
    assert same(trace.personal[1]["b"], trace.models[1])
    v = plus(trace.models[1], gradient(trace.models[1], *DATA["b"]), -0.3)
    assert same(trace.personal[2]["b"], v)
    step = plus(gradient(v, *DATA["b"]), plus(v, trace.models[2], -1.0), 0.7)
    assert same(trace.personal[3]["b"], plus(v, step, -0.3))
    # w^2 is b's own step as well, so that the term is 0 here; a's model is another
    both = ditto.run(DATA, W0, cohorts=[["a", "b"]] * 2, lam=0.7, batches=whole, epochs=1, lr=0.3)
    v = plus(W0, gradient(W0, *DATA["b"]), -0.3)
    step = plus(gradient(v, *DATA["b"]), plus(v, both.models[1], -1.0), 0.7)
    assert same(both.personal[2]["b"], plus(v, step, -0.3))
    assert not same(both.personal[2]["b"], plus(v, gradient(v, *DATA["b"]), -0.3), 1e-3)


def test_the_factors_of_fednova_are_those_of_the_steps() -> None:
    """By hand, three steps: momentum 1/2 gives (1.75, 1.5, 1), the proximal term 0.1 (0.81, 0.9, 1)."""
    assert fednova.factors(3).tolist() == [1, 1, 1]
    assert fednova.factors(3, 0.5).tolist() == [1.75, 1.5, 1]
    assert fednova.factors(3, 0.0, 0.1) == pytest.approx([0.81, 0.9, 1])

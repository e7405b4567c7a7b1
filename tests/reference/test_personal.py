"""The references of the personalised algorithms: numeric derivatives, numbers by hand, and their limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.reference import apple, ditto, fedala, fedamp, fedfomo, fedper, fenda, mlp, moon, perfedavg, pfedme
from tests.reference.driver import Trace
from tests.reference.mlp import Data, Params, average, gradient, loss_and_gradient, numeric, plus

RNG = np.random.default_rng(17)
SIZES = {"a": 3, "b": 6, "c": 5}
DATA: Data = {k: (RNG.normal(size=(n, 2, 2)), RNG.integers(0, 3, n)) for k, n in SIZES.items()}


def initial(hidden: int = 5) -> Params:
    shapes = {"1.weight": (hidden, 4), "1.bias": (hidden,), "3.weight": (3, hidden), "3.bias": (3,)}
    return {name: RNG.normal(size=shape) for name, shape in shapes.items()}


W0, W1, W2 = initial(), initial(), initial()
HEAD = {"3.weight", "3.bias"}
BODY = {"1.weight", "1.bias"}
ALL = [["a", "b", "c"]] * 3
SOME = [["c", "a"], ["b"], ["b", "c"], ["a", "b", "c"]]


def pairs(t: int, k: str, draw: int) -> list[np.ndarray]:
    """Batches of two, the last one short, in an order that depends on everything."""
    order = np.random.default_rng([t, ord(k), draw]).permutation(SIZES[k])
    return [order[i : i + 2] for i in range(0, len(order), 2)]


def whole(t: int, k: str, draw: int) -> list[np.ndarray]:
    return [np.arange(SIZES[k])]


def rows_of(t: int, k: str) -> np.ndarray:
    """The slice of `k` for round t: all but one row, from an offset that changes."""
    return (np.arange(SIZES[k] - 1) + t) % SIZES[k]


COMMON: dict[str, Any] = {"batches": pairs, "epochs": 2, "lr": 0.2, "lr_decay": 0.9}


def same(a: Params, b: Params, tolerance: float = 1e-12) -> bool:
    assert set(a) == set(b)
    return all(np.abs(a[name] - b[name]).max() <= tolerance for name in a)


def fedavg(cohorts: list[list[str]] = SOME) -> list[Params]:
    """FedAvg once more, step by step, for the limits below."""
    models = [W0]
    for t, cohort in enumerate(cohorts, 1):
        total = {name: np.zeros_like(a) for name, a in W0.items()}
        for k in cohort:
            (x, y), w = DATA[k], dict(models[-1])
            for epoch in range(2):
                for rows in pairs(t, k, epoch):
                    g = loss_and_gradient(w, x[rows], y[rows])[1]
                    for name in w:
                        w[name] = w[name] - 0.2 * 0.9 ** (t - 1) * g[name]
            for name in w:
                total[name] += SIZES[k] / sum(SIZES[j] for j in cohort) * w[name]
        models.append(total)
    return models


def is_fedavg(trace: Trace) -> bool:
    return all(same(a, b) for a, b in zip(trace.models, fedavg(), strict=True))


# --------------------------------------------------------------------------------------- the model


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
    assert same(numeric(lambda w: loss_and_gradient(w, x, y)[0], W0), gradient(W0, x, y), 1e-8)

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


# ------------------------------------------------------------------- FedPer, FedRep, training alone


def test_without_private_layers_fedper_is_fedavg() -> None:
    trace = fedper.fedper(DATA, W0, layers=0, cohorts=SOME, **COMMON)
    assert is_fedavg(trace)
    assert all(same(trace.personal[4][k], trace.models[4]) for k in DATA)


def test_fedper_shares_the_body_and_keeps_every_head() -> None:
    trace = fedper.fedper(DATA, W0, cohorts=SOME, **COMMON)
    assert [set(w) for w in trace.models] == [BODY] * 5
    # b comes second: before, its head is that of w^0 below the shared part of now
    assert same(trace.personal[1]["b"], trace.models[1] | {name: W0[name] for name in HEAD})
    # a is not there in rounds 2 and 3: its head stays, the body moves under it
    for name in HEAD:
        assert np.array_equal(trace.personal[1]["a"][name], trace.personal[3]["a"][name])
        assert not np.allclose(trace.personal[1]["a"][name], trace.personal[1]["c"][name])
    assert not same(trace.models[1], trace.models[3], 1e-3)
    # round 2 has b alone: from the shared body and the head of w^0, on everything
    steps = mlp.passes(pairs, 2, "b", 0, 2)
    assert same(trace.personal[2]["b"], mlp.sgd(trace.personal[1]["b"], DATA["b"], steps, 0.2 * 0.9))


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


def test_fedrep_goes_on_drawing_in_its_second_phase() -> None:
    seen: list[tuple[int, str, int]] = []

    def watched(t: int, k: str, draw: int) -> list[np.ndarray]:
        seen.append((t, k, draw))
        return pairs(t, k, draw)

    fedper.fedrep(DATA, W0, epochs=2, head_epochs=3, cohorts=[["c"]], batches=watched, lr=0.1)
    assert seen == [(1, "c", draw) for draw in range(5)]
    seen.clear()
    fedper.fedrep(DATA, W0, epochs=2, cohorts=[["c", "a"]], batches=watched, lr=0.1)
    assert seen == [(1, k, draw) for k in "ac" for draw in range(4)]


def test_training_alone_does_not_see_the_others() -> None:
    trace = fedper.local_only(DATA, W0, cohorts=SOME, **COMMON)
    assert trace.models == [{}] * 5
    w = W0
    for t in (2, 3, 4):
        w = mlp.sgd(w, DATA["b"], mlp.passes(pairs, t, "b", 0, 2), 0.2 * 0.9 ** (t - 1))
    assert same(trace.personal[4]["b"], w)
    assert same(trace.personal[1]["b"], W0)


# -------------------------------------------------------------------------------------------- FENDA


def test_a_twin_is_one_net_of_twice_the_width_and_only_shares_half() -> None:
    """Both extractors' rows under each other are the first layer of one net."""

    def one(w: Params) -> Params:
        first = {
            f"1.{n}": np.concatenate([w[f"shared.1.{n}"], w[f"local.1.{n}"]]) for n in ("weight", "bias")
        }
        return first | {"3.weight": w["head.weight"], "3.bias": w["head.bias"]}

    w0 = {f"{part}.{name}": w[name] for part, w in (("shared", W0), ("local", W1)) for name in BODY}
    w0 |= {"head.weight": RNG.normal(size=(3, 10)), "head.bias": RNG.normal(size=3)}
    x, y = DATA["b"]
    loss, g = fenda.loss_and_gradient(w0, x, y)
    other_loss, other = loss_and_gradient(one(w0), x, y)
    assert loss == pytest.approx(other_loss)
    assert same(one(g), other)
    trace = fenda.run(DATA, w0, cohorts=[["a", "b"]], **COMMON)
    local = {k: mlp.sgd(one(w0), DATA[k], mlp.passes(pairs, 1, k, 0, 2), 0.2) for k in "ab"}
    assert set(trace.models[1]) == {"shared.1.weight", "shared.1.bias"}
    shared = (3 * local["a"]["1.weight"][:5] + 6 * local["b"]["1.weight"][:5]) / 9
    assert trace.models[1]["shared.1.weight"] == pytest.approx(shared)
    for k in "ab":
        assert trace.personal[1][k]["local.1.weight"] == pytest.approx(local[k]["1.weight"][5:])
        assert trace.personal[1][k]["head.bias"] == pytest.approx(local[k]["3.bias"])
    assert np.array_equal(trace.personal[1]["c"]["local.1.bias"], W1["1.bias"])


# ------------------------------------------------------------------------------------------- FedALA


def test_with_w_frozen_at_one_or_no_layer_fedala_is_fedavg() -> None:
    for knobs in ({"eta": 0.0}, {"layers": 0}):
        trace = fedala.run(DATA, W0, cohorts=SOME, slice_rows=rows_of, batch_size=2, **knobs, **COMMON)
        assert is_fedavg(trace)
        assert all(same(trace.personal[4][k], trace.models[4]) for k in DATA)


def test_the_step_of_w_is_down_the_derivative_of_the_loss_by_w() -> None:
    """One epoch of one batch: W = clip(1 - eta dL/dW, 0, 1) with Theta_hat(W) in the loss."""
    client, eta = DATA["b"], 0.01

    def loss(W: Params) -> float:
        theta = W0 | {name: W1[name] + (W0[name] - W1[name]) * W[name] for name in HEAD}
        return loss_and_gradient(theta, *client)[0]

    half = {name: np.full_like(W0[name], 0.5) for name in ("3.weight", "3.bias")}
    theta, W, losses = fedala.adapt(W0, W1, half, client, np.arange(6), batch_size=0, eta=eta)
    slope = numeric(loss, half)
    assert same(W, plus(half, slope, -eta), 1e-9)
    assert losses == [pytest.approx(loss(half))]
    for name in W0:
        mixed = W1[name] + (W0[name] - W1[name]) * W[name] if name in HEAD else W0[name]
        assert theta[name] == pytest.approx(mixed)
    _, W, _ = fedala.adapt(W0, W1, half, client, np.arange(6), batch_size=0, eta=1e6)
    at_the_ends = np.where(slope["3.weight"] > 0, 0.0, 1.0)
    assert np.array_equal(W["3.weight"], at_the_ends)


def test_the_start_phase_lasts_until_the_loss_settles() -> None:
    rows = np.arange(6)

    def epochs(W: Params | None, **knobs: Any) -> int:
        return len(fedala.adapt(W0, W1, W, DATA["b"], rows, batch_size=4, **knobs)[2])

    # with eta 0 the losses are equal from the first on, and window + 1 are asked for
    assert epochs(None, eta=0.0, window=4) == 5
    assert epochs(None, eta=0.0, threshold=0.0, max_epochs=23) == 23
    _, W, losses = fedala.adapt(W0, W1, None, DATA["b"], rows, batch_size=4, eta=0.2)
    settled = [n for n in range(11, len(losses) + 1) if np.std(losses[n - 10 : n]) < 0.01]
    assert settled == [len(losses)]
    assert 11 < len(losses) < 100
    assert epochs(W) == 1


def test_the_recorded_loss_is_that_of_the_last_batch() -> None:
    _, _, losses = fedala.adapt(W0, W1, None, DATA["b"], np.array([5, 0, 3]), batch_size=2, eta=0.0)
    x, y = DATA["b"]
    assert losses[0] == pytest.approx(loss_and_gradient(W0, x[[3]], y[[3]])[0])


def test_fedala_mixes_from_the_second_round_on_and_evaluation_keeps_nothing() -> None:
    knobs: dict[str, Any] = {"eta": 1.0, "batch_size": 2, "max_epochs": 15}
    trace = fedala.run(DATA, W0, cohorts=SOME, slice_rows=rows_of, **knobs, **COMMON)
    plain = fedavg()
    assert [same(a, b) for a, b in zip(trace.models, plain, strict=True)] == [True, True, False, False, False]
    # in round 1 everybody has w^0; b comes in round 2, still with w^0, and round 3 is the start phase of c
    assert [set(W) for W in trace.weights] == [set(), set(), {"b"}, {"b", "c"}, {"a", "b", "c"}]
    want, W, losses = fedala.adapt(trace.models[1], W0, None, DATA["b"], rows_of(2, "b"), **knobs)
    assert len(losses) > 1
    assert same(trace.weights[2]["b"], W)
    assert same(trace.personal[1]["b"], want)
    assert same(trace.own[2]["b"], mlp.sgd(want, DATA["b"], mlp.passes(pairs, 2, "b", 0, 2), 0.2 * 0.9))
    assert same(trace.personal[0]["b"], W0)
    want, W, losses = fedala.adapt(
        trace.models[2], trace.own[2]["c"], None, DATA["c"], rows_of(3, "c"), **knobs
    )  # fmt: skip
    assert len(losses) > 1
    assert same(trace.weights[3]["c"], W)
    assert same(trace.personal[2]["c"], want)
    assert same(trace.own[3]["c"], mlp.sgd(want, DATA["c"], mlp.passes(pairs, 3, "c", 0, 2), 0.2 * 0.9**2))
    # round 4 goes on from the kept W, by one epoch
    want, W, losses = fedala.adapt(
        trace.models[3], trace.own[3]["c"], W, DATA["c"], rows_of(4, "c"), **knobs
    )  # fmt: skip
    assert len(losses) == 1
    assert same(trace.weights[4]["c"], W)


def test_the_proximal_term_of_fedala_holds_at_what_was_mixed() -> None:
    """Two full-batch steps from Theta_hat: the term is 0 in the first."""
    trace = fedala.run(
        DATA, W0, cohorts=[["b", "c"], ["c"]], slice_rows=rows_of, batch_size=2, epochs=2, batches=whole,
        lr=0.1, mu=0.8,
    )  # fmt: skip
    theta = trace.personal[1]["c"]
    w = plus(theta, gradient(theta, *DATA["c"]), -0.1)
    w = plus(w, plus(gradient(w, *DATA["c"]), plus(w, theta, -1.0), 0.8), -0.1)
    assert same(trace.own[2]["c"], w)
    assert not same(theta, trace.models[1], 1e-3)


# -------------------------------------------------------------------------------------------- Ditto


def test_ditto_with_lambda_0_is_training_alone_beside_fedavg() -> None:
    cohorts = [*ALL[:1], *SOME]
    trace = ditto.run(DATA, W0, cohorts=cohorts, lam=0.0, **COMMON)
    alone = fedper.local_only(DATA, W0, cohorts=cohorts, **COMMON)
    assert all(same(trace.personal[t][k], alone.personal[t][k]) for t in range(6) for k in DATA)


def test_ditto_trains_its_own_model_first_and_leaves_the_global_one_alone() -> None:
    seen: list[int] = []

    def swapped(t: int, k: str, draw: int) -> list[np.ndarray]:
        """Give the global epochs, the draws 3 and 4, the batches that FedAvg has."""
        seen.append(draw)
        return pairs(t, k, draw - 3 if draw >= 3 else draw + 50)

    knobs = COMMON | {"batches": swapped}
    trace = ditto.run(DATA, W0, cohorts=SOME, lam=0.7, personal_epochs=3, **knobs)
    assert is_fedavg(trace)
    assert seen[:5] == [0, 1, 2, 3, 4]


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


# --------------------------------------------------------------------------------------------- MOON


@pytest.mark.parametrize("previous", [[W2], [W2, W0], [initial(), W2, W2]])
def test_the_contrastive_gradient_is_the_numeric_derivative(previous: list[Params]) -> None:
    x, _ = DATA["b"]
    _, g = moon.contrastive(W1, x, W0, previous, 0.5)
    assert same(numeric(lambda w: moon.contrastive(w, x, W0, previous, 0.5)[0], W1), g, 1e-8)
    assert max(np.abs(a).max() for a in g.values()) > 1e-3


def test_the_contrastive_loss_by_hand() -> None:
    # z = (1, 0), z_glob = (3, 0), z_prev = (0, 2): cosines 1 and 0, T = 0.5: -log(e^2 / (e^2 + e^0))
    def net(first: float, second: float) -> Params:
        return W0 | {"1.weight": np.array([[first], [second]]), "1.bias": np.zeros(2)}

    loss, _ = moon.contrastive(net(1, -1), np.array([[1.0]]), net(3, 0), [net(0, 2)], 0.5)
    assert loss == pytest.approx(math.log(1 + math.exp(-2)))


def test_equal_models_give_the_constant_log_2_without_gradient() -> None:
    loss, g = moon.contrastive(W1, DATA["b"][0], W0, [W0], 0.5)
    assert loss == pytest.approx(math.log(2))
    assert same(g, {name: np.zeros_like(a) for name, a in W1.items()})


def test_moon_without_mu_or_without_a_previous_model_is_fedavg() -> None:
    assert is_fedavg(moon.run(DATA, W0, cohorts=SOME, mu=0.0, **COMMON))
    trace = moon.run(DATA, W0, cohorts=SOME, mu=5.0, **COMMON)
    # b is new in round 2, c's second time is round 3
    plain = fedavg()
    assert [same(a, b) for a, b in zip(trace.models, plain, strict=True)] == [True, True, True, False, False]


def test_the_buffer_holds_the_last_local_models() -> None:
    trace = moon.run(DATA, W0, cohorts=[["b"]] * 3, mu=1.0, buffer=2, **COMMON)
    # alone, b's local models are the global ones
    assert [len(kept.get("b", [])) for kept in trace.previous] == [0, 1, 2, 2]
    for old, w in zip(trace.previous[3]["b"], trace.models[2:], strict=True):
        assert same(old, w)


# --------------------------------------------------------------------------------------- Per-FedAvg


def test_hf_is_the_gradient_of_the_loss_after_one_step() -> None:
    """Of F(w) = f(w - alpha grad f(w; D); D'): (I - alpha H) g'."""
    x, y = DATA["c"]  # 5 examples: D is 2 of them, D' 3

    def meta(w: Params) -> float:
        return loss_and_gradient(plus(w, gradient(w, x[:2], y[:2]), -0.1), x[2:], y[2:])[0]

    exact = numeric(meta, W0)
    assert same(perfedavg.meta_gradient(W0, x, y, 0.1, "hf"), exact, 1e-8)
    first_order = perfedavg.meta_gradient(W0, x, y, 0.1, "fo")
    assert same(first_order, gradient(plus(W0, gradient(W0, x[:2], y[:2]), -0.1), x[2:], y[2:]))
    assert not same(first_order, exact, 1e-3)


def test_a_batch_of_one_serves_both_steps() -> None:
    x, y = (a[:1] for a in DATA["a"])
    got = perfedavg.meta_gradient(W0, x, y, 0.1, "fo")
    assert same(got, gradient(plus(W0, gradient(W0, x, y), -0.1), x, y))


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_per_fedavg_with_alpha_0_is_fedavg_on_the_second_halves(form: str) -> None:
    def halves(t: int, k: str, draw: int) -> list[np.ndarray]:
        return [rows[len(rows) // 2 :] for rows in pairs(t, k, draw)]

    trace = perfedavg.run(DATA, W0, cohorts=SOME, alpha=0.0, form=form, **COMMON)
    other = fedper.fedper(DATA, W0, layers=0, cohorts=SOME, plain=True, **(COMMON | {"batches": halves}))
    assert all(same(a, b) for a, b in zip(trace.models, other.models, strict=True))


def test_a_client_of_per_fedavg_adapts_by_one_step_on_all_its_data() -> None:
    trace = perfedavg.run(DATA, W0, cohorts=SOME, alpha=0.3, **COMMON)
    w = trace.models[2]
    assert same(trace.personal[2]["a"], plus(w, gradient(w, *DATA["a"]), -0.3))


# ------------------------------------------------------------------------------------------- pFedMe


def test_with_many_inner_steps_theta_is_the_proximal_point() -> None:
    """Then grad f(theta) + lambda (theta - w) = 0, and the step of w is one along grad f(theta)."""
    trace = pfedme.run(
        DATA, W0, cohorts=[["b"]], batches=whole, epochs=1, lr=0.01, lam=3.0, steps=4000, inner_lr=0.05
    )  # fmt: skip
    theta = trace.personal[1]["b"]
    rest = plus(gradient(theta, *DATA["b"]), plus(theta, W0, -1.0), 3.0)
    assert max(np.abs(a).max() for a in rest.values()) < 1e-10
    assert same(trace.models[1], plus(W0, gradient(theta, *DATA["b"]), -0.01), 1e-10)
    assert not same(theta, W0, 1e-2)


def test_pfedme_by_hand_with_the_warm_start() -> None:
    """Two batches, K = 1: theta_1 = w - i g(w), w_1 = w - eta lambda (w - theta_1);
    theta_2 = theta_1 - i (g(theta_1) + lambda (theta_1 - w_1)), w_2 = w_1 - eta lambda (w_1 - theta_2).
    """
    eta, lam, i = 0.02, 5.0, 0.1
    knobs: dict[str, Any] = {"epochs": 2, "lr": eta, "lam": lam, "steps": 1, "inner_lr": i, "batches": whole}
    trace = pfedme.run(DATA, W0, cohorts=[["b"], ["b"]], **knobs)
    theta_1 = plus(W0, gradient(W0, *DATA["b"]), -i)
    w_1 = plus(W0, plus(W0, theta_1, -1.0), -eta * lam)
    theta_2 = plus(theta_1, plus(gradient(theta_1, *DATA["b"]), plus(theta_1, w_1, -1.0), lam), -i)
    assert same(trace.personal[1]["b"], theta_2)
    assert same(trace.models[1], plus(w_1, plus(w_1, theta_2, -1.0), -eta * lam))
    # the next round begins with theta = w^t again, whatever theta was
    again = pfedme.run(DATA, trace.models[1], cohorts=[["b"]], **knobs)
    assert same(trace.personal[2]["b"], again.personal[1]["b"])


def test_the_server_of_pfedme_goes_a_part_of_the_way_to_the_mean() -> None:
    def after(**knobs: Any) -> Params:
        return pfedme.run(DATA, W0, cohorts=[["a", "b"]], inner_lr=0.1, **knobs, **COMMON).models[1]

    a, b = (pfedme.run(DATA, W0, cohorts=[[k]], inner_lr=0.1, **COMMON).models[1] for k in "ab")
    assert same(after(), average([a, b], [1, 1]))
    assert same(after(uniform=False), average([a, b], [3, 6]))
    assert same(after(beta=0.5), average([W0, average([a, b], [1, 1])], [1, 1]))
    assert same(after(beta=2.0), plus(plus(a, b), W0, -1.0))


# -------------------------------------------------------------------------------------------- APPLE


def test_the_penalty_fades_by_half_a_cosine() -> None:
    assert [apple.coefficient(r, 4) for r in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert apple.coefficient(1, 4) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert apple.coefficient(0, 0) == 0


def test_both_gradients_of_apple_are_numeric_derivatives() -> None:
    core, p, p0 = {"a": W0, "b": W1, "c": W2}, {"a": 0.2, "b": 0.5, "c": -0.1}, {"a": 0.3, "b": 0.3, "c": 0.4}
    x, y = DATA["b"]

    def loss(core: dict[str, Params], p: dict[str, float]) -> float:
        penalty = sum((p[j] - p0[j]) ** 2 for j in p)
        return loss_and_gradient(apple.mix(core, p), x, y)[0] + 0.6 / 2 * penalty

    g = gradient(apple.mix(core, p), x, y)
    by_core = numeric(lambda w: loss(core | {"b": w}, p), W1)
    assert same(by_core, {name: 0.5 * a for name, a in g.items()}, 1e-8)
    by_p = apple.p_gradient(g, core, p, p0, 0.6)
    for j in p:
        slope = (loss(core, p | {j: p[j] + 1e-6}) - loss(core, p | {j: p[j] - 1e-6})) / 2e-6
        assert by_p[j] == pytest.approx(slope, abs=1e-8)


def test_a_round_of_apple_by_hand() -> None:
    """All w_j = w^0 and p = p0 = (3, 6, 5)/14, so that w^p = w^0 and the penalty has no slope."""
    trace = apple.run(
        DATA, W0, cohorts=[["b"], ["a"]], batches=whole, epochs=1, lr=0.3, L=4, dr_lr=0.01, mu=0.5
    )  # fmt: skip
    g = gradient(W0, *DATA["b"])
    assert same(trace.core[1]["b"], plus(W0, g, -0.3 * 6 / 14))
    want = {k: n / 14 - 0.01 * mlp.dot(g, W0) for k, n in SIZES.items()}
    assert trace.p[1]["b"] == pytest.approx(want)
    assert same(trace.personal[1]["b"], apple.mix(trace.core[1], want))
    assert same(trace.personal[1]["a"], W0)
    # then a, new: from p0 and the core models of now
    p0 = {k: n / 14 for k, n in SIZES.items()}
    g = gradient(apple.mix(trace.core[1], p0), *DATA["a"])
    assert same(trace.core[2]["a"], plus(W0, g, -0.3 * 3 / 14))
    assert trace.p[2]["a"]["b"] == pytest.approx(6 / 14 - 0.01 * mlp.dot(g, trace.core[1]["b"]))
    # b was not asked: its model and p stay those of its own round
    assert trace.p[2]["b"] == trace.p[1]["b"]
    assert same(trace.personal[2]["b"], trace.personal[1]["b"])


def test_p_is_kept_and_the_penalty_counts_rounds_from_0() -> None:
    """Two full-batch steps in round 1, where lambda(0) = 1, and two in round 2, where lambda(1) = 1/2."""
    trace = apple.run(
        DATA, W0, cohorts=[["b"], ["b"]], batches=whole, epochs=2, lr=0.3, L=2, dr_lr=0.01, mu=5.0
    )  # fmt: skip
    p0 = {k: n / 14 for k, n in SIZES.items()}
    p, w = dict(p0), W0
    for weight in (5.0, 5.0, 2.5, 2.5):
        core = {"a": W0, "b": w, "c": W0}
        g = gradient(apple.mix(core, p), *DATA["b"])
        w = plus(w, g, -0.3 * p["b"])
        p = {j: p[j] - 0.01 * (mlp.dot(g, core[j]) + weight * (p[j] - p0[j])) for j in p}
    assert trace.p[2]["b"] == pytest.approx(p)
    assert same(trace.core[2]["b"], w)


def test_the_penalty_pulls_p_back_to_p0_in_later_steps() -> None:
    common: dict[str, Any] = {"cohorts": [["b"]] * 3, "dr_lr": 0.01} | COMMON
    moved = []
    for mu in (0.0, 1.0, 20.0):
        p = apple.run(DATA, W0, L=100, mu=mu, **common).p[3]["b"]
        moved.append(sum((p[k] - n / 14) ** 2 for k, n in SIZES.items()))
    assert moved[0] > moved[1] > moved[2]
    free = apple.run(DATA, W0, L=0, mu=20.0, **common).p[3]["b"]
    assert free == pytest.approx(apple.run(DATA, W0, L=100, mu=0.0, **common).p[3]["b"])


def test_apple_alone_is_sgd() -> None:
    trace = apple.run({"b": DATA["b"]}, W0, cohorts=[["b"]], L=1, dr_lr=0.0, **COMMON)
    alone = mlp.sgd(W0, DATA["b"], mlp.passes(pairs, 1, "b", 0, 2), 0.2)
    assert same(trace.core[1]["b"], alone)
    assert same(trace.personal[1]["b"], alone)


# ------------------------------------------------------------------------------------------ FedFomo


def test_the_weights_of_fedfomo_by_hand() -> None:
    """Better by distance, nothing for worse, for equal and for nothing better; the sum is 1."""
    rows, (x, y) = np.array([0, 2, 4]), DATA["b"]
    g = gradient(W0, x[rows], y[rows])
    near, far, worse = plus(W0, g, -0.05), plus(W0, g, -0.5), plus(W0, g, 0.5)

    def score(w: Params) -> float:
        away = math.sqrt(sum(((w[name] - W0[name]) ** 2).sum() for name in w))
        return (loss_and_gradient(W0, x[rows], y[rows])[0] - loss_and_gradient(w, x[rows], y[rows])[0]) / away

    assert score(near) > 0 > score(worse)
    assert score(far) > 0
    got = fedfomo.weigh(W0, {"n": near, "f": far, "w": worse, "e": W0}, DATA["b"], rows)
    total = score(near) + score(far)
    assert got == pytest.approx({"n": score(near) / total, "f": score(far) / total, "w": 0, "e": 0})
    assert fedfomo.weigh(W0, {"w": worse, "e": W0}, DATA["b"], rows) == {"w": 0, "e": 0}


def test_fedfomo_where_nothing_came_down_is_training_alone() -> None:
    common: dict[str, Any] = {"cohorts": SOME, "validation_rows": rows_of} | COMMON
    trace = fedfomo.run(DATA, W0, choose=lambda t, i, P_i, seen: [], baseline="after", **common)
    alone = fedper.local_only(DATA, W0, cohorts=SOME, **COMMON)
    assert all(same(trace.personal[t][k], alone.personal[t][k]) for t in range(5) for k in DATA)
    assert trace.affinity[4] == trace.affinity[0]


def test_one_better_model_is_taken_whole_and_remembered() -> None:
    """b, new, starts at w^0; a has trained on b's own rows, so that its model is better."""
    data = {"a": DATA["b"], "b": DATA["b"], "c": DATA["c"]}
    rows = np.arange(6)
    calls: list[tuple[Any, ...]] = []

    def choose(t: int, i: str, P_i: dict[str, float], seen: list[str]) -> list[str]:
        calls.append((t, i, P_i, seen))
        return seen

    trace = fedfomo.run(
        data, W0, cohorts=[["a"], ["b"], ["b"]], epochs=1, lr=0.1, choose=choose,
        batches=lambda t, k, draw: [rows], validation_rows=lambda t, k: rows, baseline="after",
    )  # fmt: skip
    assert trace.weights == [{}, {"a": {}}, {"b": {"a": 1.0}}, {"b": {"a": 0.0}}]
    a = plus(W0, gradient(W0, *DATA["b"]), -0.1)
    b = plus(a, gradient(a, *DATA["b"]), -0.1)
    assert same(trace.local[2]["b"], b)
    # by round 3 b's own model is the better one
    assert same(trace.local[3]["b"], plus(b, gradient(b, *DATA["b"]), -0.1))
    assert [t["b"] for t in trace.affinity] == [
        {"a": 0, "b": 1, "c": 0}, {"a": 0, "b": 1, "c": 0}, {"a": 1, "b": 1, "c": 0}, {"a": 1, "b": 1, "c": 0}
    ]  # fmt: skip
    assert calls == [
        (1, "a", {"a": 1, "b": 0, "c": 0}, []),
        (2, "b", {"a": 0, "b": 1, "c": 0}, ["a"]),
        (3, "b", {"a": 1, "b": 1, "c": 0}, ["a"]),
    ]
    assert same(trace.personal[3]["c"], W0)


def test_several_better_models_are_weighed() -> None:
    """b is new at w^0, and both others' models are better; the weights add up to 1, so that w^0 is gone."""
    knobs = COMMON | {"validation_rows": rows_of}
    trace = fedfomo.run(DATA, W0, cohorts=[["a", "c"], ["b"]], baseline="after", **knobs)
    others, weights = trace.local[1], trace.weights[2]["b"]
    assert min(weights["a"], weights["c"]) > 0.1
    want = {name: weights["a"] * others["a"][name] + weights["c"] * others["c"][name] for name in W0}
    steps = mlp.passes(pairs, 2, "b", 0, 2)
    assert same(trace.local[2]["b"], mlp.sgd(want, DATA["b"], steps, 0.2 * 0.9))
    assert weights == fedfomo.weigh(W0, others, DATA["b"], rows_of(2, "b"))


def test_against_the_model_before_its_training_fedfomo_lists_its_own() -> None:
    """b trains in rounds 1 and 2, a with it in round 1; then b weighs its own model and a's against w^0."""
    knobs = COMMON | {"validation_rows": rows_of}
    trace = fedfomo.run(DATA, W0, cohorts=[["a", "b"], ["b"]], **knobs)
    assert trace.weights[1] == {"a": {"a": 0.0}, "b": {"b": 0.0}}
    assert same(trace.before[1]["b"], W0)
    listed = {"a": trace.local[1]["a"], "b": trace.local[1]["b"]}
    want = fedfomo.weigh(W0, listed, DATA["b"], rows_of(2, "b"))
    assert trace.weights[2]["b"] == want
    assert want["b"] > 0
    mixed = {n: W0[n] + sum(want[j] * (listed[j][n] - W0[n]) for j in listed) for n in W0}
    assert same(trace.before[2]["b"], mixed)
    steps = mlp.passes(pairs, 2, "b", 0, 2)
    assert same(trace.local[2]["b"], mlp.sgd(mixed, DATA["b"], steps, 0.2 * 0.9))
    assert trace.affinity[2]["b"] == {"a": want["a"], "b": 1 + want["b"], "c": 0}


# ------------------------------------------------------------------------------------------- FedAMP


def test_the_messages_of_fedamp_by_hand() -> None:
    """w = (0, 0), (1, 0), (0, 3): squared distances 1, 9, 10; alpha = 2, sigma = 4: xi = e^(-d/4)/2."""
    models = {k: {"w": np.array(w)} for k, w in {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 3.0]}.items()}
    start = {"w": np.array([7.0, 7.0])}
    ab, ac, bc = (math.exp(-d / 4) / 2 for d in (1, 9, 10))
    assert fedamp.attention(models["a"], models["b"], 2.0, 4.0) == pytest.approx(ab)
    u = {k: fedamp.message(models, k, start, 2.0, 4.0)["w"].tolist() for k in "abc"}
    assert u["a"] == pytest.approx([ab, 3 * ac])
    assert u["b"] == pytest.approx([1 - ab - bc, 3 * bc])
    assert u["c"] == pytest.approx([bc, 3 * (1 - ac - bc)])
    assert fedamp.message(models, "new", start, 2.0, 4.0)["w"].tolist() == pytest.approx([1 / 3, 1])
    assert fedamp.message({}, "new", start, 2.0, 4.0) is start


def test_the_attention_is_the_slope_of_the_attraction() -> None:
    """u_i = w_i - alpha/2 dA/dw_i summed over the pairs: one step down the attraction of (w_i, w_j)."""
    alpha, sigma = 0.8, 30.0

    def attraction(w: Params) -> float:
        away = plus(w, W1, -1.0)
        return 1 - math.exp(-mlp.dot(away, away) / sigma)

    got = fedamp.message({"a": W0, "b": W1}, "a", W2, alpha, sigma)
    assert same(got, plus(W0, numeric(attraction, W0), -alpha / 2), 1e-9)


def test_fedamp_without_attention_or_pull_is_training_alone() -> None:
    cohorts = [*ALL[:1], *SOME]
    trace = fedamp.run(DATA, W0, cohorts=cohorts, alpha=1.0, sigma=1e-4, lam=0.0, **COMMON)
    alone = fedper.local_only(DATA, W0, cohorts=cohorts, **COMMON)
    assert all(same(trace.personal[t][k], alone.personal[t][k]) for t in range(6) for k in DATA)


def test_a_client_of_fedamp_by_hand_new_and_known() -> None:
    """Two full-batch steps: w = u - eta g(u), then w - eta (g(w) + lambda/alpha (w - u))."""
    knobs = {"batches": whole, "epochs": 2, "lr": 0.3, "alpha": 0.5, "sigma": 40.0, "lam": 0.2}
    trace = fedamp.run(DATA, W0, cohorts=[["a", "c"], ["b"], ["a"]], **knobs)  # type: ignore[arg-type]

    def trained(u: Params, k: str) -> Params:
        w = plus(u, gradient(u, *DATA[k]), -0.3)
        return plus(w, plus(gradient(w, *DATA[k]), plus(w, u, -1.0), 0.4), -0.3)

    assert same(trace.local[1]["a"], trained(W0, "a"))
    mean = average([trace.local[1]["a"], trace.local[1]["c"]], [1, 1])
    assert same(trace.cloud[1]["b"], mean)
    assert same(trace.local[2]["b"], trained(mean, "b"))
    assert same(trace.personal[1]["b"], W0)
    u = fedamp.message(trace.local[2], "a", W0, 0.5, 40.0)
    assert same(trace.local[3]["a"], trained(u, "a"))
    assert trace.local[3]["c"] is trace.local[1]["c"]
    assert not same(u, trace.local[2]["a"], 1e-3)

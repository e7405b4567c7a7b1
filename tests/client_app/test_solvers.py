"""The solvers by hand, on models of one number; and what measuring must not change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.solvers import SOLVERS, Solver
from client_app.training.loop import LocalTask, train
from task.config.algorithm_sections import FedProxConfig, ScaffoldConfig
from task.config.knobs import Config
from task.numerics.arrays import Arrays, state_of
from task.wire.messages import ClientUpdate
from tests.support.models import ALONE, Noisy, OneNumber, blobs, flat, one, sigmoid, solver_of, task_on


def solver(name: str, *, mu: float = 0.0, **fedprox: Any) -> Solver:
    config = Config(fedprox=FedProxConfig(**fedprox))
    return SOLVERS[name](config, {"lr": 0.1, "proximal-mu": mu}, {}, [{}])


def solve(
    name: str, task: LocalTask, *, seed: int = 3, **knobs: Any
) -> tuple[ClientUpdate, dict[str, Arrays]]:
    """Do what the ClientApp does for one client."""
    s = solver(name, **knobs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        s.begin(task)
        stats = train(task, s) if s.trains else []
        (finished,) = s.finish(task, stats)
        return finished


def test_sgd_uploads_the_model_after_its_steps() -> None:
    # w_1 = 0 + 0.5 * 2 sigmoid(0) = 0.5;  w_2 = 0.5 + 0.5 * 2 sigmoid(-1) = 0.768941...
    upload, kept = solve("sgd", one(epochs=2, lr=0.5))
    assert upload.arrays.keys() == {"arrays"}
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([0.5 + sigmoid(-1)])
    assert upload.arrays["arrays"]["w"].dtype == np.float32
    # the mean of the losses at w = 0 and w = 0.5
    assert upload.scalars == {
        "num-examples": 1, "train-loss": pytest.approx((math.log(2) + math.log1p(math.exp(-1))) / 2),
    }  # fmt: skip
    assert kept == {}


def test_fedsgd_uploads_the_gradient_and_does_not_step() -> None:
    # two examples: x = 2, y = 1 gives -2 sigmoid(0) = -1; x = 1, y = 0 gives 1 sigmoid(0) = 0.5
    task = task_on(OneNumber(), torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), batch_size=1, epochs=5)
    upload, kept = solve("fedsgd", task)
    assert upload.arrays.keys() == {"gradient"}
    assert upload.arrays["gradient"]["w"].tolist() == pytest.approx([(-1 + 0.5) / 2])
    assert upload.scalars == {"num-examples": 2, "train-loss": pytest.approx(math.log(2))}
    assert task.params[0].item() == 0.0
    assert kept == {}


def test_fedprox_adds_mu_times_the_distance_to_each_gradient() -> None:
    """By hand: the squared term mu/2 |w - w^t|^2 has the gradient mu (w - w^t), 0 at the first step.

    w_1 = 0.5 (as plain SGD); w_2 = 0.5 - 0.5 (-2 sigmoid(-1) + mu 0.5).
    """
    mu = 0.8
    upload, _ = solve("fedprox", one(epochs=2, lr=0.5), mu=mu)
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([0.5 + sigmoid(-1) - 0.5 * mu * 0.5])
    # mu |w - w^t| unsquared would give 0.5 + sigmoid(-1) - 0.5 * mu / 2 whatever the distance
    farther, _ = solve("fedprox", one(epochs=2, lr=1.0), mu=mu)
    # w_1 = 1; w_2 = 1 + 2 sigmoid(-2) - mu * 1
    assert farther.arrays["arrays"]["w"].tolist() == pytest.approx([1 + 2 * sigmoid(-2) - mu])


def test_fedprox_pulls_towards_where_the_round_began_not_towards_0() -> None:
    # from w^t = 3: w_1 = 3 + 2 sigmoid(-6) = 3 + d; w_2 = w_1 + 2 sigmoid(-2 w_1) - mu d
    d = 2 * sigmoid(-6)
    upload, _ = solve("fedprox", one(3.0, epochs=2, lr=1.0), mu=0.5)
    wanted = 3 + d + 2 * sigmoid(-2 * (3 + d)) - 0.5 * d
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([wanted], rel=1e-6)


def test_fedprox_with_a_large_mu_stays_near_the_start() -> None:
    # without the term (or with one that is identically 0) 200 steps lead to w > 2
    far_away = solve("fedprox", one(epochs=200, lr=0.1), mu=0.0)[0].arrays["arrays"]["w"][0]
    near = solve("fedprox", one(epochs=200, lr=0.1), mu=9.0)[0].arrays["arrays"]["w"][0]
    assert far_away > 1.5
    # stationary: 2 sigmoid(-2w) = 9 w
    assert 2 * sigmoid(-2 * near) == pytest.approx(9 * near, rel=1e-4)


def test_gamma_and_loss_before_by_hand() -> None:
    # grad h(w_k) = -2 sigmoid(-2 * 0.5) + mu 0.5; grad h(w^t) = F'(0) = -1
    upload, _ = solve("fedprox", one(lr=0.5), mu=0.8, measure_gamma=True)
    assert upload.scalars["gamma"] == pytest.approx(abs(-2 * sigmoid(-1) + 0.8 * 0.5))
    assert upload.scalars["loss-before"] == pytest.approx(math.log(2))


def test_gamma_is_1_without_progress_and_falls_with_work() -> None:
    # lr 0: w_k = w^t, ratio 1. From w = 2 the proximal minimum is met after many steps.
    still, _ = solve("fedprox", one(2.0, lr=0.0), mu=0.5, measure_gamma=True)
    assert still.scalars["gamma"] == pytest.approx(1)
    gammas = [
        solve("fedprox", one(2.0, epochs=e), mu=0.5, measure_gamma=True)[0].scalars["gamma"]
        for e in (1, 5, 25, 400)
    ]
    assert gammas == sorted(gammas, reverse=True)
    assert gammas[-1] < 1e-3


def test_gamma_uses_the_plain_gradient_of_all_data_below() -> None:
    # two examples, B = 1: gamma is over both, not over the last batch
    x, y = torch.tensor([2.0, 1.0]), torch.tensor([1, 0])
    task = task_on(OneNumber(), x, y, batch_size=1, lr=0.3)
    upload, _ = solve("fedprox", task, mu=0.4, measure_gamma=True)
    w = float(upload.arrays["arrays"]["w"][0])
    after = (-2 * sigmoid(-2 * w) + sigmoid(w)) / 2 + 0.4 * w
    assert upload.scalars["gamma"] == pytest.approx(abs(after) / 0.25, rel=1e-5)


@pytest.mark.parametrize(
    ("gamma", "adaptive", "wanted"),
    [
        (True, False, {"gamma", "loss-before"}), (True, True, {"gamma", "loss-before"}),
        (False, True, {"loss-before"}), (False, False, set()),
    ],
)  # fmt: skip
def test_what_is_measured_is_what_was_asked_for(gamma: bool, adaptive: bool, wanted: set[str]) -> None:
    upload, _ = solve("fedprox", one(), measure_gamma=gamma, adaptive=adaptive)
    assert upload.scalars.keys() - {"num-examples", "train-loss"} == wanted


def test_a_client_that_is_at_its_minimum_has_no_gamma() -> None:
    # x = 0: the gradient is 0 everywhere; 0 / 0 must not become a NaN that quarantines the client
    task = task_on(OneNumber(), torch.tensor([0.0]), torch.tensor([1]))
    upload, _ = solve("fedprox", task, mu=0.5, measure_gamma=True)
    assert all(math.isfinite(v) for v in upload.scalars.values())


MEASURING: dict[str, tuple[Config, dict[str, float]]] = {
    "fedprox": (Config(), {"proximal-mu": 0.0}),
    "adaptive-tau": (Config(), {"local-steps": 5}),
    "scaffold": (Config(scaffold=ScaffoldConfig(option="I")), {}),
}


@pytest.mark.parametrize("name", MEASURING)
def test_measuring_changes_nothing_of_what_is_measured(name: str) -> None:
    """With dropout and batch norm too: the same masks are drawn, the running statistics are not touched."""
    states = []
    config, scalars = MEASURING[name]
    for kind in ("sgd", name):
        task = task_on(Noisy(), *blobs(23), epochs=2, batch_size=5, momentum=0.5, local_steps=5)
        own = {n: task.received[n] for n in task.program.names}
        zeros = {n: np.zeros_like(a) for n, a in own.items()}
        kept = (
            {"local-model": {n: a + np.float32(0.1) for n, a in own.items()}}
            if kind == "adaptive-tau"
            else {}
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            made = SOLVERS[kind](config, {"lr": task.lr, **scalars}, {"control": zeros}, [kept])
            made.begin(task)
            ((upload, _),) = made.finish(task, train(task, made))
        states.append(upload.arrays["arrays"])
    assert all(np.array_equal(a, states[1][n]) for n, a in states[0].items())


def test_state_holds_buffers_and_gradients_do_not() -> None:
    model = Noisy()
    upload, _ = solve("sgd", task_on(model, *blobs(8)))
    assert upload.arrays["arrays"].keys() == set(model.state_dict())
    assert upload.arrays["arrays"]["norm.num_batches_tracked"].dtype == np.int64
    upload, _ = solve("fedsgd", task_on(model, *blobs(8)))
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert upload.arrays["gradient"].keys() == trainable


def test_uploads_do_not_share_memory_with_the_model() -> None:
    task = one(lr=0.5)
    upload, _ = solve("sgd", task)
    with torch.no_grad():
        task.params[0].add_(100.0)
    assert upload.arrays["arrays"]["w"].tolist() == [0.5]


def test_tensors_and_named_arrays_are_parallel() -> None:
    task = task_on(Noisy(), *blobs(4))
    (arrays,) = task.named(task.params)
    assert list(arrays) == ["norm.weight", "norm.bias", "out.weight", "out.bias"]
    values = zip(arrays.values(), task.params, strict=True)
    assert all(torch.equal(torch.from_numpy(a), b[0]) for a, b in values)


def test_the_global_generators_are_left_alone() -> None:
    """The loop draws its order from the task's generator; dropout is the ClientApp's business."""
    before, rows = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    model = nn.Sequential(nn.Linear(3, 2))
    torch.set_rng_state(before)
    for name in ALONE:
        task = task_on(model, *blobs(23), batch_size=4)
        with torch.random.fork_rng(devices=[]):
            s = solver_of(name, task)
            s.begin(task)
            s.finish(task, s.run(task) if s.trains else [])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], rows)  # type: ignore[index]
    assert state_of(model).keys() == {"0.weight", "0.bias"}
    assert len(flat(model)) == 8

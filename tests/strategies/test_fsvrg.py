"""FSVRG: both halves by hand, the pipeline against the reference, and where it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.choice import program_of
from client_app.training.loop import LocalTask, train
from strategies.engine.state import AggregatedReplies
from strategies.rules.fsvrg import FSVRGSparseState, FSVRGState, server_update, sparse_update
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.resolve.read import read_config
from task.wire.messages import ClientUpdate
from tests.reference.fsvrg import FSVRG, SparseFSVRG
from tests.support.federation import (
    Data,
    far,
    linear,
    loss_and_gradient,
    write_owners,
)
from tests.support.models import Noisy, OneNumber, blobs, sigmoid, task_on
from tests.support.personal import against_reference, close, reference_of
from tests.support.rules import w


def solve(task: LocalTask, name: str = "fsvrg", **arrays: Arrays) -> ClientUpdate:
    solver = SOLVERS[name](Config(), {"lr": task.lr}, arrays, [{}])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        solver.begin(task)
        stats = train(task, solver) if solver.trains else []
        ((upload, _),) = solver.finish(task, stats)
    return upload


# ---------------------------------------------------------------------------------------- client by hand


def two(start: float = 0.0, **options: Any) -> LocalTask:
    """Examples x = 2, y = 1 and x = 1, y = 0: f_1' = -2 sigmoid(-2w), f_2' = sigmoid(w)."""
    return task_on(OneNumber(start), torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), **options)


def test_one_full_batch_step_is_a_step_along_g() -> None:
    # at w^t both gradients cancel: w = 0.3 - h g
    upload = solve(two(0.3, batch_size=0, lr=0.5), gradient=w(0.7))
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([0.3 - 0.5 * 0.7])


def test_single_steps_by_hand() -> None:
    """h_k = h / 2; the first step is along g alone, the second adds f_i'(w) - f_i'(w^t) of the other one."""
    upload = solve(two(batch_size=1, lr=0.6), gradient=w(-0.9))
    first = 0.3 * 0.9
    second = {
        i: first - 0.3 * (slope(first) - slope(0.0) - 0.9)
        for i, slope in enumerate((lambda v: -2 * sigmoid(-2 * v), lambda v: sigmoid(v)))
    }
    got = float(upload.arrays["arrays"]["w"][0])
    assert min(abs(got - want) for want in second.values()) < 1e-6
    assert abs(second[0] - second[1]) > 1e-2


def test_a_short_last_batch_takes_the_steps_of_its_examples() -> None:
    """n = 3, B = 2: step sizes 2 h/3 and h/3; with f constant (x = 0) only g counts: one pass is worth h."""
    task = task_on(OneNumber(), torch.zeros(3), torch.tensor([1, 0, 1]), batch_size=2, lr=0.6, epochs=2)
    upload = solve(task, gradient=w(1.0))
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([-2 * 0.6], rel=1e-6)


def test_step_size_0_changes_nothing() -> None:
    upload = solve(two(0.25, batch_size=1, lr=0.0), gradient=w(1.0))
    assert upload.arrays["arrays"]["w"].tolist() == [0.25]


def test_weight_decay_belongs_to_the_objective() -> None:
    # f = 0 gradients (x = 0): w <- w - h/n_k (g + wd w), twice
    task = task_on(
        OneNumber(1.0), torch.zeros(2), torch.tensor([1, 0]), batch_size=1, lr=0.4, weight_decay=0.5
    )
    upload = solve(task, gradient=w(0.0))
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([(1 - 0.2 * 0.5) ** 2], rel=1e-6)


def test_dropout_and_statistics_are_frozen() -> None:
    x, y = blobs(9)
    task = task_on(Noisy(), x, y, batch_size=3, lr=0.3, epochs=2)
    before = {n: a.copy() for n, a in task.received.items()}
    g = {n: np.zeros_like(before[n]) for n in task.program.names}
    got = solve(task, gradient=g).arrays["arrays"]
    # g = 0 and the differences vanish at w^t: nothing may move, in spite of dropout and batch norm
    assert all(np.array_equal(before[n], a) for n, a in got.items())


def test_the_full_gradient_is_deterministic_and_the_received_statistics_hold() -> None:
    x, y = blobs(9)
    first, second = (solve(task_on(Noisy(), x, y), "gradient").arrays["gradient"] for _ in range(2))
    training = solve(task_on(Noisy(), x, y), "fedsgd").arrays["gradient"]
    assert all(np.array_equal(first[n], second[n]) for n in first)
    assert not np.allclose(first["out.weight"], training["out.weight"])
    model = Noisy().eval()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    (want,) = torch.autograd.grad(loss, [model.out.weight])
    assert np.allclose(first["out.weight"], want.numpy(), atol=1e-6)


def sparse_task(x: Any, y: Any, **train: Any) -> LocalTask:
    from client_app.training.loop import Examples
    from task.numerics.seeds import rng_for

    model = build_model("logistic", (len(x[0]),), 2, seed=1)
    program, _ = program_of(model, 4)
    examples = Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y), [len(x)])
    rngs = [rng_for(1, "batches", 1, "a")]
    return LocalTask(program, state_of(model), examples, [1], 0.5, TrainConfig(**train), rngs)


def test_counts_by_hand() -> None:
    # feature 0 in all four examples, 1 in one, 2 in none
    task = sparse_task([[1, 0, 0], [2, 0, 0], [-1, 3, 0], [1, 0, 0]], [0, 1, 0, 1])
    upload = solve(task, "feature-counts")
    assert upload.arrays["frequency"]["columns"].tolist() == [1.0, 0.25, 0.0]
    assert upload.arrays["presence"]["columns"].tolist() == [0.25, 0.25, 0.0]
    assert upload.arrays["gradient"].keys() == {"1.weight", "1.bias"}


def test_s_scales_the_difference_and_not_g() -> None:
    """Own share of feature 1 is 1/4, of all 3/4: S = 3 there, 1 for a feature that the client lacks."""
    x, y = [[1, 0, 0], [2, 0, 0], [-1, 3, 0], [1, 0, 0]], [0, 1, 0, 1]
    g = {"1.weight": np.full((2, 3), 0.1, np.float32), "1.bias": np.full(2, -0.2, np.float32)}
    shares = {"columns": np.array([0.5, 0.75, 0.6], np.float32)}
    task = sparse_task(x, y, batch_size=0)
    task.epochs = [2]
    start = linear(task.received)
    upload = solve(task, "fsvrg-sparse", gradient=g, frequency=shares)
    S, X = np.array([0.5, 3.0, 1.0]), np.array(x, np.float64)
    W, b = start
    for _ in range(2):
        (_, (a, c)), (_, (a0, c0)) = (loss_and_gradient(m, X, np.array(y)) for m in ((W, b), start))
        W, b = W - 0.5 * (S[:, None] * (a - a0) + 0.1), b - 0.5 * ((c - c0) - 0.2)
    assert far(linear(upload.arrays["arrays"]), (W, b)) < 1e-6


# ---------------------------------------------------------------------------------------- server by hand


def test_server_replaces_the_model_and_forgets_g() -> None:
    state = FSVRGState(w(9, 9), gradient=w(3, 4))
    new, metrics = server_update(
        state, AggregatedReplies({"arrays": w(1, 2)}, ("a",), np.array([1])), Config()
    )
    assert new.arrays["w"].tolist() == [1.0, 2.0]
    assert new.gradient == {}
    assert metrics == {"gradient-norm": 5.0}


def test_a_lengthens_the_step_of_rare_features() -> None:
    """K = 4, omega = (4, 1, 0): A = (1, 4, 1) for the columns of the first layer, 1 for the bias."""
    model = {"W": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    mean = {"W": np.full((2, 3), 0.5, np.float32), "b": np.full(2, 0.5, np.float32)}
    omega = {"columns": np.array([4.0, np.float32(1 / 3) * 3, 0.0], np.float32)}
    state = FSVRGSparseState(model, gradient=w(0), presence=omega, frequency=omega, participants=4)
    reduced = AggregatedReplies({"arrays": mean}, tuple("abcd"), np.ones(4, np.int64), trainable=("W", "b"))
    new, metrics = sparse_update(state, reduced, Config())
    assert new.arrays["W"].tolist() == [[0.5, 2.0, 0.5]] * 2
    assert new.arrays["b"].tolist() == [0.5, 0.5]
    assert new.arrays["W"].dtype == np.float32
    assert metrics["largest-a"] == 4.0
    assert (new.presence, new.frequency, new.gradient) == ({}, {}, {})
    assert reduced.arrays["arrays"]["W"].tolist() == [[0.5] * 3] * 2  # pure


# ---------------------------------------------------------------------------------------- the pipeline


def write_sparse(path: Path) -> Data:
    """Owners some of whom lack some features."""
    data = write_owners(path)
    with np.load(path) as file:
        arrays = dict(file)
    rng = np.random.default_rng(8)
    x = arrays["x"] * (rng.random(arrays["x"].shape) < 0.5)
    x[(arrays["client"] == "anna") | (arrays["client"] == "dora"), 1] = 0
    x[arrays["client"] != "emil", 3] = 0
    arrays["x"] = x.astype(np.float32)
    np.savez(path, **arrays)
    return {n: (arrays["x"][arrays["client"] == n], data[n][1]) for n in data}


@pytest.mark.parametrize("case", sorted(SparseFSVRG.cases))
def test_the_pipeline_equals_the_reference_where_owners_lack_features(case: str, tmp_path: Path) -> None:
    write_sparse(tmp_path / "owners.npz")
    keys = {
        "learning_rate": 0.5,
        **SparseFSVRG.cases[case],
        "local_test_fraction": 0.0,
        "fraction_evaluate": 0.0,
    }
    run, trace = against_reference(tmp_path, SparseFSVRG, **keys)
    if "fraction_train" in keys:
        assert run.played.rows[1]["metrics"]["largest-a"] == 5.0  # feature 3 is emil's alone
        assert not close(reference_of(run, FSVRG)(run.cohorts).w[-1], trace.w[-1], 1e-3)


@pytest.mark.parametrize("model", ["cnn", "char-lstm"])
def test_the_sparse_form_needs_a_linear_first_layer(model: str) -> None:
    with pytest.raises(ConfigError, match='"model": fsvrg-sparse scales the columns'):
        read_config({"algorithm": "fsvrg-sparse", "model": model})

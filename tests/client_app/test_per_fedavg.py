"""Per-FedAvg against its slow reference and by hand, on a model of one number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers.per_fedavg import PerFedAvgSolver
from client_app.training.loop import Examples, LocalTask, train
from client_app.training.programs import Batch, Single
from task.config.knobs import Config
from task.config.personal_sections import PerFedAvgConfig
from task.numerics.arrays import state_of
from tests.support.models import Bytes, Noisy, OneNumber, blobs, sigmoid, task_on


def solver_of(alpha: float = 0.1, form: str = "fo") -> PerFedAvgSolver:
    knobs = PerFedAvgConfig(alpha=alpha, form=form)
    return PerFedAvgSolver(Config(per_fedavg=knobs), {}, {}, [{}])


# --------------------------------------------------------------------------------------------- by hand


def pair(w: float = 0.0, **options: Any) -> LocalTask:
    """D is x = 2 of class 1, -2 sigmoid(-2w) its gradient; D' is x = 1 of class 0, with sigmoid(w)."""
    return task_on(OneNumber(w), torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), batch_size=0, **options)


@pytest.mark.parametrize(("form", "curvature"), [("fo", 0.0), ("hf", 1.0)])
def test_a_step_by_hand(form: str, curvature: float) -> None:
    # w~ = 0 + 0.4 * 2 sigmoid(0) = 0.4, g' = sigmoid(0.4); on D f'' = 4 sigmoid(0)^2 = 1 at w = 0
    task, solver = pair(lr=0.5), solver_of(0.4, form)
    (stats,) = train(task, solver)
    want = -0.5 * (1 - 0.4 * curvature) * sigmoid(0.4)
    assert task.states()[0]["w"].tolist() == pytest.approx([want], rel=1e-6)
    assert stats["train-loss"] == pytest.approx(math.log1p(math.exp(0.4)))


def test_the_hessian_is_exact_by_hand() -> None:
    w, alpha = 0.3, 0.4
    task = task_on(OneNumber(w).double(), torch.tensor([2.0, 1.0]).double(), torch.tensor([1, 0]))
    batch = Batch(task.examples.x[None], task.examples.y[None], torch.ones(1))
    w = float(task.params[0])
    meta = sigmoid(w + alpha * 2 * sigmoid(-2 * w))
    hessian = 4 * sigmoid(2 * w) * sigmoid(-2 * w)
    _, gradient = solver_of(alpha, "hf").gradient(task, batch)
    assert gradient.tensors()[0].item() == pytest.approx((1 - alpha * hessian) * meta, rel=1e-14)


class Kink(torch.nn.Module):
    """Scores (0, relu(w x)): next to w x = 0 a small step takes the gradient across the kink."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([w]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = torch.relu(self.w * x.flatten())
        return torch.stack([torch.zeros_like(score), score], 1)


def test_a_kink_beside_w_does_not_count() -> None:
    """At w = 1e-5, below the kink on the other side, f = log(1 + e^-w) on D and log(1 + e^w) on D'.

    A difference of gradients over a step of 1e-3 would see the jump of 1/2 as a curvature of hundreds.
    """
    w, alpha = 1e-5, 0.1
    task = task_on(Kink(w), torch.tensor([1.0, 1.0]), torch.tensor([1, 0]))
    batch = Batch(task.examples.x[None], task.examples.y[None], torch.tensor([0.5]))
    _, gradient = solver_of(alpha, "hf").gradient(task, batch)
    meta = sigmoid(w + alpha * sigmoid(-w))
    assert gradient.tensors()[0].item() == pytest.approx((1 - alpha / 4) * meta, rel=1e-6)


class Recurrent(torch.nn.Module):
    """Bytes by an LSTM: logits [b, 5, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = torch.nn.Embedding(5, 3), torch.nn.Linear(4, 5)
        self.lstm = torch.nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.lstm(self.embedding(x))[0])
        return logits.transpose(1, 2)


def convolutional() -> torch.nn.Module:
    layers = torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.MaxPool2d(2), torch.nn.Tanh()
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(27, 4))


@pytest.mark.parametrize("kind", [Recurrent, convolutional])
def test_every_kind_of_layer_has_its_second_derivative(kind: Any) -> None:
    """By central differences in float64; batch normalisation as in training."""
    torch.manual_seed(4)
    net, text = kind().double(), kind is Recurrent
    x = torch.randint(5, (12, 6)) if text else torch.randn(12, 1, 8, 8, dtype=torch.float64)
    y = torch.randint(4, (12, 6) if text else (12,))
    slope, numeric = slopes(net, x, y)
    assert numeric == pytest.approx(slope, rel=1e-5)


def slopes(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return the derivative of the loss after the step, along a random direction: exact and numeric."""
    task = task_on(net, x, y)
    task.program.train(True)
    batch = Batch(task.examples.x[None], y[None], torch.full((1,), 1 / y.numel()))
    start = [p.clone() for p in task.params]
    _, gradient = solver_of(0.3, "hf").gradient(task, batch)
    direction = [torch.randn(p.shape, dtype=p.dtype) for p in start]

    def loss(step: float) -> float:
        task.params = [p + step * d for p, d in zip(start, direction, strict=True)]
        return float(solver_of(0.3).gradient(task, batch)[0])

    slope = sum(float((g * d).sum()) for g, d in zip(gradient.tensors(), direction, strict=True))
    return slope, (loss(1e-5) - loss(-1e-5)) / 2e-5


def test_its_gradient_is_that_of_the_loss_after_the_step() -> None:
    """With the Hessian, on a net, in float64: by central differences."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    x, y = blobs(7)
    slope, numeric = slopes(net, x.double(), y)
    assert numeric == pytest.approx(slope, rel=1e-6)


def test_one_example_is_both_halves() -> None:
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), lr=0.5)
    train(task, solver_of(0.4))
    # w~ = 0.4, g' = -2 sigmoid(-0.8)
    assert task.states()[0]["w"].tolist() == pytest.approx([0.5 * 2 * sigmoid(-0.8)])


def test_the_parts_of_text_are_weighed_by_their_bytes() -> None:
    """At alpha = 0 the loss is the mean over the bytes of D' that count; padding does not."""
    x = torch.tensor([[0, 1, 2], [3, 4, 0], [1, 1, 1]])
    y = torch.tensor([[1, -100, -100], [4, 0, -100], [2, 3, 4]])
    model = Bytes()
    task = task_on(model, x, y)
    loss, _ = solver_of(0.0).gradient(task, Batch(x[None], y[None], torch.tensor([1 / 6])))
    want = torch.nn.functional.cross_entropy(model(x[1:]), y[1:])
    assert float(loss) == pytest.approx(float(want.detach()))


# ---------------------------------------------------------------------------------------- its own model


def test_a_client_adapts_by_one_step_on_all_its_data() -> None:
    task = pair(0.2)
    solver_of(0.4).personalise(task)
    w = 0.2 - 0.4 * (-2 * sigmoid(-0.4) + sigmoid(0.2)) / 2
    assert task.states()[0]["w"].tolist() == pytest.approx([w])
    # and what it is measured with after training is w_k, adapted; what goes up is w_k
    task, solver = pair(0.2, lr=0.5), solver_of(0.4)
    ((upload, keep),) = solver.finish(task, train(task, solver))
    w = float(upload.arrays["arrays"]["w"][0])
    assert keep == {}
    (own,) = solver.own_models(task)
    assert own["w"].tolist() == pytest.approx([w - 0.4 * (-2 * sigmoid(-2 * w) + sigmoid(w)) / 2], abs=1e-6)
    assert float(upload.arrays["arrays"]["w"][0]) == w


def test_adapting_draws_nothing_and_leaves_the_statistics_alone() -> None:
    received = state_of(Noisy())
    before = torch.get_rng_state()
    task = task_on(Noisy(), *blobs(11))
    solver_of(0.4).personalise(task)
    assert torch.equal(torch.get_rng_state(), before)
    (state,) = task.states()
    moved = {n for n, a in state.items() if not np.array_equal(a, received[n])}
    assert moved == {"norm.weight", "norm.bias", "out.weight", "out.bias"}


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_statistics_move_with_the_first_halves_at_w_alone(form: str) -> None:
    model = Noisy()
    x, y = blobs(8)
    task = LocalTask(
        Single(model),
        state_of(model),
        Examples(x, y, [8]),
        [1],
        0.1,
        Config().train,
        [np.random.default_rng(1)],
    )
    task.program.train(True)
    solver_of(0.4, form).gradient(task, Batch(x[None], y[None], torch.tensor([1 / 8])))
    (state,) = task.states()
    assert state["norm.num_batches_tracked"] == 1
    want = 0.1 * model.frozen(x[:4]).mean(0).detach()
    assert state["norm.running_mean"] == pytest.approx(want.numpy(), rel=1e-5)

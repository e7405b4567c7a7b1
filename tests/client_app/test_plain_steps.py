"""Plain SGD steps that a program takes itself: the same bits, with one gradient in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from client_app.solvers import solver_of
from client_app.solvers.sgd import Solver
from client_app.training.loop import train
from client_app.training.programs import Batch, Single
from task.config.knobs import Config
from task.numerics import pages
from task.numerics.arrays import sha256, state_of
from task.resolve.read import read_config
from tests.support.models import task_on

CLASSES = 3


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6),
        nn.Linear(6, CLASSES),
    )  # fmt: skip


def one_layer_twice() -> nn.Module:
    again = nn.Linear(8, 8)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), again, nn.ReLU(), again, nn.Linear(8, CLASSES))


class ReadsNumbers(nn.Module):
    """Reads a weight in a way that autograd does not see: its backward pass would find moved numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(36, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x.flatten(1))) @ self.last.weight.data
        return out


def examples(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(n, 1, 6, 6, generator=draw), torch.randint(0, CLASSES, (n,), generator=draw)


def solver(**keys: Any) -> Solver:
    config = read_config(keys) if keys else Config()
    kind = solver_of("fedprox" if "algorithm" in keys else "sgd")
    return kind(config, {"proximal-mu": 0.5}, {}, [{}])


def trained(
    model: nn.Module, how: Solver, frozen: tuple[str, ...] = (), **config: Any
) -> tuple[str, list[dict[str, float]]]:
    """Return the SHA-256 of what a copy of a model becomes, and the losses."""
    torch.manual_seed(5)
    copy = deepcopy(model)
    stats = train(task_on(copy, *examples(), batch_size=5, epochs=2, **config), how, frozen=frozen)
    return sha256(state_of(copy)), stats


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the models here for large ones."""
    monkeypatch.setattr(pages, "LARGE", 1)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return, for each step of plain SGD that a program is asked for, whether it took it."""
    taken, ours = [], Single.stepped

    def counting(self: Single, params: list[torch.Tensor], batch: Batch, lr: float) -> torch.Tensor | None:
        loss = ours(self, params, batch, lr)
        taken.append(loss is not None)
        return loss

    monkeypatch.setattr(Single, "stepped", counting)
    return taken


@pytest.mark.parametrize("make", [perceptron, convolutions, one_layer_twice])
def test_the_bits_are_those_of_whole_gradients(
    make: Callable[[], nn.Module], steps: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    found = trained(model, solver())
    assert steps
    assert all(steps)
    monkeypatch.setattr(Single, "stepped", lambda *args: None)
    assert trained(model, solver()) == found


def test_one_gradient_is_there_at_a_time() -> None:
    model, there = perceptron(), list[int]()
    leaves: list[Any] = list(model.parameters())
    for leaf in leaves:  # before the step's own hook
        leaf.register_post_accumulate_grad_hook(
            lambda _: there.append(sum(p.grad is not None for p in leaves))
        )
    train(task_on(model, *examples(), batch_size=24), solver())
    assert there == [1] * len(leaves)
    assert not any(p.grad is not None for p in leaves)


def test_a_step_that_fails_leaves_no_gradient() -> None:
    model = perceptron()

    def fail(_: torch.Tensor) -> None:
        raise MemoryError

    first: Any = next(model.parameters())
    first.register_post_accumulate_grad_hook(fail)  # the last one of the pass
    with pytest.raises(MemoryError):
        train(task_on(model, *examples(), batch_size=24), solver())
    assert not any(p.grad is not None for p in model.parameters())


def test_a_small_model_takes_whole_gradients(steps: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LARGE", 1 << 24)
    trained(perceptron(), solver())
    assert steps
    assert not any(steps)


def test_a_module_of_another_s_code_takes_whole_gradients(steps: list[bool]) -> None:
    trained(ReadsNumbers(), solver())
    assert steps
    assert not any(steps)


@pytest.mark.parametrize(
    ("keys", "config", "frozen"),
    [
        ({"algorithm": "fedprox"}, {}, ()),
        ({"sam.rho": 0.1}, {}, ()),
        ({}, {"momentum": 0.9}, ()),
        ({}, {"weight_decay": 0.1}, ()),
        ({}, {"clip_norm": 0.1}, ()),
        ({}, {}, ("1.weight",)),
    ],
)
def test_what_needs_all_of_a_gradient_gets_it(
    keys: Mapping[str, Any], config: Mapping[str, Any], frozen: tuple[str, ...], steps: list[bool]
) -> None:
    trained(perceptron(), solver(**keys), frozen, **config)
    assert steps == []

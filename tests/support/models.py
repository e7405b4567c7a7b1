"""Tiny torch models with known numbers, and local tasks on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from client_app.solvers import SOLVERS, Solver
from client_app.training.loop import Examples, LocalTask
from client_app.training.programs import Single
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.numerics import seeds
from task.numerics.arrays import state_of
from task.numerics.seeds import rng_for
from task.wire import messages as wire
from task.wire.layouts import Forms
from tests.support.horizontal import HORIZONTAL


class OneNumber(nn.Module):
    """Logistic regression with one parameter w: logits (0, w x), so that p(y=1) = sigmoid(w x).

    Loss of (x, y=1) is log(1 + e^(-w x)), its derivative -x sigmoid(-w x).
    """

    def __init__(self, w: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.reshape(-1, 1) * self.w
        return torch.cat([torch.zeros_like(score), score], 1)


class Noisy(nn.Module):
    """A net with dropout, batch norm (running statistics, an integer counter) and a frozen layer."""

    def __init__(self, features: int = 3, classes: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.frozen = nn.Linear(features, features).requires_grad_(False)
            self.norm = nn.BatchNorm1d(features)
            self.drop = nn.Dropout(0.5)
            self.out = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.drop(self.norm(self.frozen(x))))
        return out


class Bytes(nn.Module):
    """A text model: embedding and one linear layer, logits [B, C, T]."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.embed = nn.Embedding(classes, 3)
            self.out = nn.Linear(3, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.embed(x))
        return out.transpose(1, 2)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def one(w: float = 0.0, **options: Any) -> LocalTask:
    """Return the task of one example x = 2 of class 1: F(w) = log(1 + e^(-2w)), F'(w) = -2 sigmoid(-2w)."""
    return task_on(OneNumber(w), torch.tensor([2.0]), torch.tensor([1]), **options)


def blobs(n: int, features: int = 3, classes: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return n random examples."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, features)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, classes, n))


def task_on(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    epochs: int = 1,
    lr: float = 0.1,
    client: str = "a",
    server_round: int = 1,
    **train: Any,
) -> LocalTask:
    """Return a local task; `train` are fields of `TrainConfig`."""
    rng = rng_for(1, seeds.BATCHES, server_round, client)
    examples = Examples(x, y, [len(x)])
    return LocalTask(Single(model), state_of(model), examples, [epochs], lr, TrainConfig(**train), [rng])


def solver_of(name: str, task: LocalTask) -> Solver:
    """Return a solver of client "a", which keeps nothing, as it may be sent ones and the model itself."""
    forms = Forms(task.received, tuple(task.program.names), clients=2)
    scalars = {"lr": task.lr} | {s.name: 1.0 for e in _entries(name) for s in e.down_scalars}
    records = {f.name: forms.like(f.layout) for e in _entries(name) for f in e.down if f.to == "all"}
    own = {
        f.name: dict.fromkeys("ab", task.received) for e in _entries(name) for f in e.down if f.to == "each"
    }
    order = wire.TrainOrder(1, {}, clients=("a",), epochs=(0,), population=("a", "b"))
    return SOLVERS[name](Config(), scalars, records, [{}], [own], order)


def _entries(solver: str) -> list[Algorithm]:
    return [e for a in HORIZONTAL.values() for e in (a, *a.phases.values()) if e.solver == solver]


# Solvers that can be given made-up records; those of tables that all share need the run's data.
ALONE = [n for n in SOLVERS if not any(r.layout.of == "shared-table" for e in _entries(n) for r in e.down)]


def flat(model: nn.Module) -> torch.Tensor:
    """Return all parameters in one vector, copied."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()

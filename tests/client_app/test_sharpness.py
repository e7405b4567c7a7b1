"""Sharpness-aware steps: FedSAM's variants on two parabolas, in a stack, and with moving statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from client_app.solvers import SOLVERS
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask, train
from client_app.training.programs import Dense
from client_app.training.sharpness import gradient_of
from task.config.algorithm_sections import FedCMConfig, FedDynConfig, SamConfig
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.numerics.arrays import state_of
from task.numerics.seeds import rng_for
from tests.support.models import Noisy, blobs, task_on


class Parabola:
    """A program whose loss is c (x - a)^2 / 2 of its one number; only what the loop needs."""

    names, stacks = ("w",), False

    def __init__(self, c: float, a: float) -> None:
        self.c, self.a = c, a

    def gradient(self, params: list[torch.Tensor], batch: Any, frozen: Any = ()) -> Any:
        (x,) = params
        return (self.c / 2 * (x - self.a) ** 2).flatten(), Dense([self.c * (x - self.a)])


class OneTask:
    """A local task of one number, float64, as far as solvers look at it."""

    frozen: Any = ()

    def __init__(self, program: Parabola, x: float) -> None:
        self.program, self.params = program, [torch.tensor([[x]], dtype=torch.float64)]
        self.start, self.memory = [torch.tensor([[x]], dtype=torch.float64)], {}


def local(c: float, a: float, x: float, solver: Any, tau: int = 2, eta: float = 0.1) -> float:
    """Return w_k after two full steps from x."""
    task: Any = OneTask(Parabola(c, a), x)
    solver._momentum = [torch.tensor([[getattr(solver, "m", 0.0)]], dtype=torch.float64)]
    task.memory["gradient"] = [torch.tensor([[getattr(solver, "g", 0.0)]], dtype=torch.float64)]
    for _ in range(tau):
        _, gradient = gradient_of(solver, task, None)  # type: ignore[arg-type]
        step = gradient.tensors()[0] + sum(f * t[0] for f, t in solver.terms(task))
        task.params = [task.params[0] - eta * step]
    return float(task.params[0])


def pair(x: float, make: Any) -> list[float]:
    return [local(1, 0, x, make(0)), local(3, 4, x, make(1))]


def solver(name: str, config: Config) -> Any:
    return SOLVERS[name](config, {}, {}, [])


@pytest.mark.parametrize(
    ("form", "first", "rest"),
    [
        ("normalised", [1.0455, 1.715575, 2.151124], 2.96),
        ("plain", [1.2558, 1.986801, 2.412317], 3.0050251),
    ],
)
def test_fedsam(form: str, first: list[float], rest: float) -> None:
    config, path = Config(sam=SamConfig(rho=0.1, form=form)), [0.0]
    for _ in range(300):
        path.append(sum(pair(path[-1], lambda k: solver("sgd", config))) / 2)
    assert path[1:4] == pytest.approx(first, abs=1e-6)
    assert path[-1] == pytest.approx(rest, abs=1e-6)


def test_mofedsam_is_fedcm_with_it() -> None:
    config, path, m = Config(sam=SamConfig(rho=0.1), fedcm=FedCMConfig(alpha=0.1)), [0.0], 0.0
    for _ in range(900):
        made = solver("fedcm", config)
        made.m = m
        path.append(sum(pair(path[-1], lambda k, made=made: made)) / 2)
        m = (path[-2] - path[-1]) / (0.1 * 2)
    assert path[1:4] == pytest.approx([0.121155, 0.344478, 0.650013], abs=1e-6)
    assert path[-1] == pytest.approx(3.0420253, abs=1e-6)


@pytest.mark.parametrize(
    ("rho", "first", "rest"),
    [(0.0, [2.028, 3.624239, 4.391542], 3.0), (0.1, [2.496, 4.126387, 4.588769], 3.12)],
)
def test_fedspeed_is_feddyn_with_it(rho: float, first: list[float], rest: float) -> None:
    alpha, path, h, own = 0.1, [0.0], 0.0, [0.0, 0.0]
    config = Config(sam=SamConfig(rho=rho, form="plain"), feddyn=FedDynConfig(alpha=alpha))
    for _ in range(1500):
        x = path[-1]

        def make(k: int, own: list[float] = own) -> Any:
            made = solver("feddyn", config)
            made.g = own[k]
            return made

        ends = pair(x, make)
        own = [g - alpha * (end - x) for g, end in zip(own, ends, strict=True)]
        h -= alpha * (sum(ends) / 2 - x)
        path.append(sum(ends) / 2 - h / alpha)
    assert path[1:4] == pytest.approx(first, abs=1e-6)
    assert path[-1] == pytest.approx(rest, abs=1e-6)


def test_the_adaptive_ascent_by_hand() -> None:
    """T = |w| + 0.01 = 2.01 of a weight, g = c (x - a) = 3 (2 - 4): e = rho T^2 g / |T g| = -rho T."""

    class Weight(Parabola):
        names = ("layer.weight",)

    task: Any = OneTask(Weight(3, 4), 2.0)
    made = solver("sgd", Config(sam=SamConfig(rho=0.5, form="adaptive")))
    _, gradient = gradient_of(made, task, None)  # type: ignore[arg-type]
    assert float(gradient.tensors()[0]) == pytest.approx(3 * (2 - 0.5 * 2.01 - 4))


@pytest.mark.parametrize("form", ["normalised", "adaptive"])
@pytest.mark.parametrize("name", ["sgd", "fedlc", "fedntd"])
def test_the_norm_is_each_clients_own_and_a_stack_changes_nothing(form: str, name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y = blobs(12, classes=3)
    start = {n: a.copy() for n, a in state_of(model).items()}
    config = Config(sam=SamConfig(rho=0.3, form=form))

    def trained(rows: list[slice], stack: int) -> list[dict[str, Any]]:
        sizes = [r.stop - r.start for r in rows]
        examples = Examples(torch.cat([x[r] for r in rows]), torch.cat([y[r] for r in rows]), sizes)
        rngs = [rng_for(1, 0, 1, str(r.start)) for r in rows]
        knobs = TrainConfig(batch_size=2)
        program, _ = program_of(model, stack)
        task = LocalTask(program, start, examples, [2] * len(rows), 0.5, knobs, rngs)
        made = SOLVERS[name](config, {}, {}, [{}] * len(rows))
        made.begin(task)
        train(task, made)
        return [{n: a.copy() for n, a in s.items()} for s in task.states()]

    halves = [slice(0, 6), slice(6, 12)]
    together = trained(halves, 8)
    for both, r in zip(together, halves, strict=True):
        (alone,) = trained([r], 8)
        (apart,) = trained([r], 1)
        assert all((both[n] == alone[n]).all() for n in both)
        assert all(abs(both[n] - apart[n]).max() < 1e-6 for n in both)


def test_running_statistics_move_once() -> None:
    """In the first pass of the step: as without it, from the same parameters."""
    got = []
    for rho in (0.0, 0.5):
        model = Noisy()
        x, y = blobs(4)
        task = task_on(model, x, y, batch_size=0)
        train(task, SOLVERS["sgd"](Config(sam=SamConfig(rho=rho)), {}, {}, []))
        got.append(task.states()[0])
    assert all((got[0][n] == got[1][n]).all() for n in got[0] if "running" in n or "num" in n)
    assert any((got[0][n] != got[1][n]).any() for n in got[0])


def test_fedlc_and_fedntd_by_hand() -> None:
    from client_app.solvers.fedntd import distilled

    # counts (16, 1), tau 1: shifts (-0.5, -1) of logits (0, 0)
    loss = torch.nn.functional.cross_entropy(
        torch.tensor([[-0.5, -1.0]] * 2), torch.tensor([0, 1]), reduction="none"
    )
    assert loss.tolist() == pytest.approx([0.474077, 0.974077], abs=1e-6)
    z, teacher, y = (torch.tensor(v) for v in ([[[2.0, 1, 0]]], [[[1.0, 0, 1]]], [[0]]))
    assert distilled(z, teacher, y, 1.0).item() == pytest.approx(0.462117, abs=1e-6)
    assert distilled(z, teacher, y, 3.0).item() == pytest.approx(0.495421, abs=1e-6)
    assert distilled(z, teacher, torch.tensor([[-100]]), 1.0).item() == 0
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    task = task_on(model, torch.zeros(17, 1), torch.tensor([0] * 16 + [1]), batch_size=0, lr=1.0)
    made = SOLVERS["fedlc"](Config(), {}, {}, [])
    made.begin(task)
    (stats,) = train(task, made)
    assert stats["train-loss"] == pytest.approx(0.693147, abs=1e-6)  # the plain loss
    p0 = 1 / (1 + 2.718281828**-0.5)  # of shifts -0.5 and -1
    assert task.states()[0]["1.bias"].tolist() == pytest.approx([16 / 17 - p0, p0 - 16 / 17], abs=1e-6)

"""Local optimizers: torch.optim's numbers, whoever trains together, with fresh state in each round."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.solvers.sgd import Solver
from client_app.training.choice import program_of
from client_app.training.local_optimizer import check_optimizer, clip
from client_app.training.loop import Examples, LocalTask, train
from task.config.algorithm_sections import AdamConfig
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.numerics import seeds
from task.numerics.arrays import state_of
from task.numerics.seeds import rng_for
from task.resolve.read import read_config
from tests.support.models import blobs

ADAM = AdamConfig(beta1=0.8, beta2=0.95, epsilon=1e-6)
BETAS = {"betas": (0.8, 0.95), "eps": 1e-6}
LR = 0.05
Torch = Callable[[Any], torch.optim.Optimizer]
CASES: dict[str, tuple[dict[str, Any], Torch]] = {
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, LR, **BETAS)),
    "adam, L2": (
        {"optimizer": "adam", "weight_decay": 0.1},
        lambda p: torch.optim.Adam(p, LR, weight_decay=0.1, **BETAS),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1, **BETAS),
    ),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, LR, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, LR, 0.9)),
    "decay": ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, LR, weight_decay=0.3)),
    "momentum, decay": (
        {"momentum": 0.5, "weight_decay": 0.3},
        lambda p: torch.optim.SGD(p, LR, 0.5, weight_decay=0.3),
    ),
    "clipped": (
        {"clip_norm": 0.2, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, LR, weight_decay=0.1),
    ),
    "clipped adam": (
        {"clip_norm": 0.2, "optimizer": "adam"},
        lambda p: torch.optim.Adam(p, LR, **BETAS),
    ),
    "own": ({"optimizer": "torch.optim:RAdam"}, lambda p: torch.optim.RAdam(p, LR)),
}


def perceptron() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3))


def task_of(stack: int, sizes: list[int], clients: str, **keys: Any) -> LocalTask:
    model = perceptron()
    program, _ = program_of(model, stack)
    data = [blobs(n, classes=3, seed=ord(c)) for n, c in zip(sizes, clients, strict=True)]
    x, y = torch.cat([d[0] for d in data]), torch.cat([d[1] for d in data])
    config = TrainConfig(batch_size=4, **keys)
    rngs = [rng_for(1, seeds.BATCHES, 1, c) for c in clients]
    received = state_of(model)
    return LocalTask(program, received, Examples(x, y, sizes), [2] * len(sizes), LR, config, rngs)


def trained(task: LocalTask, times: int = 1) -> list[dict[str, np.ndarray]]:
    for _ in range(times):
        train(task, Solver(Config(adam=ADAM), {}, {}, [{}] * task.clients))
    return task.states()


def by_torch(task: LocalTask, make: Torch, clip_norm: float = 0.0) -> dict[str, np.ndarray]:
    """Train one client's task with torch's own optimizer."""
    model, data = deepcopy(perceptron()), task.examples
    optimizer, rng = make(model.parameters()), rng_for(1, seeds.BATCHES, 1, "a")
    for _ in range(task.epochs[0]):
        order = torch.from_numpy(rng.permutation(data.sizes[0]))
        for rows in order.split(4):
            optimizer.zero_grad()
            cross_entropy(model(data.x[rows]), data.y[rows]).backward()
            if clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stack", [1, 8])
def test_the_steps_are_those_of_torch(case: str, stack: int) -> None:
    """A decay in the wrong place, a missing bias correction, a norm over single tensors: all move it."""
    keys, make = CASES[case]
    (got,) = trained(task_of(1 if case == "own" else stack, [18], "a", **keys))
    wanted = by_torch(task_of(1, [18], "a"), make, keys.get("clip_norm", 0.0))
    for name, a in wanted.items():
        np.testing.assert_allclose(got[name], a, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", [c for c in CASES if c != "own"])
def test_a_client_takes_the_same_steps_whoever_trains_with_it(case: str) -> None:
    """State that is not cut with the clients that are done, or a norm over all clients, would differ."""
    keys, _ = CASES[case]
    sizes, names = [18, 13, 9, 4, 1], "abcde"
    together = trained(task_of(8, sizes, names, **keys))
    for k, (n, name) in enumerate(zip(sizes, names, strict=True)):
        (alone,) = trained(task_of(8, [n], name, **keys))
        assert all(np.array_equal(together[k][key], a) for key, a in alone.items())


def test_the_state_is_fresh_in_each_training() -> None:
    """With the previous round's moments, the first step of the second training is longer or shorter."""
    task = task_of(1, [4], "a", optimizer="adam")
    before = trained(task)[0]
    task.load([before])
    task.examples = Examples(*blobs(4, classes=3, seed=7), [4])
    task.epochs = [1]
    (after,) = trained(task)
    # Each first step of Adam is lr * g / (|g| + eps): lr in every coordinate with a gradient.
    moved = np.abs(after["1.weight"] - before["1.weight"])
    assert np.all((moved < 1e-3) | (np.abs(moved - LR) < 1e-3))


def test_only_the_parameters_that_move_count_in_the_norm() -> None:
    clipped = task_of(1, [4], "a", clip_norm=0.01)
    start = state_of(clipped.program.model)
    train(clipped, Solver(Config(), {}, {}, [{}]), epochs=1, frozen={"1.weight", "1.bias"})
    (got,) = clipped.states()
    moved = np.sqrt(sum(np.square(got[n] - start[n]).sum() for n in ("3.weight", "3.bias")))
    assert moved == pytest.approx(LR * 0.01, rel=1e-3)
    assert np.array_equal(got["1.weight"], start["1.weight"])


def test_clip_by_hand() -> None:
    """(3, 4) has norm 5 and is scaled to 1; (0.3, 0.4) stays."""
    grads = [torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])]
    clip(grads, 1.0)
    assert torch.allclose(grads[0], torch.tensor([[0.6], [0.3]]))
    assert torch.allclose(grads[1], torch.tensor([[0.8], [0.4]]))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("torch.optim:Nothing", "Nothing"),
        ("no_such_module_at_all:make", "no_such_module_at_all"),
        ("math:pi", "got float"),
        ("math:fabs", "(params, lr)"),
        ("builtins:print", "torch.optim.Optimizer"),
        ("torch.optim:LBFGS", "no argument"),
    ],
)
def test_what_makes_no_optimizer_is_refused(reference: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r'"optimizer"') as refused:
        check_optimizer(reference)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"optimizer": "adamm"}, '"adam"'),
        ({"optimizer": "adam", "momentum": 0.9}, '"momentum"'),
        ({"nesterov": True}, '"nesterov"'),
        ({"adam.beta1": 0.5}, '"adam.beta1"'),
        ({"optimizer": "torch.optim:SGD", "weight-decay": 0.1}, '"weight-decay"'),
        ({"algorithm": "fednova", "optimizer": "torch.optim:SGD"}, "weight that SGD gives"),
    ],
)
def test_what_would_have_no_effect_or_a_wrong_one_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys)
    assert said in str(refused.value)


def test_nesterovs_weight_of_the_steps() -> None:
    """Along a constant gradient 1 with rho 0.5: v = 1, 1.5; steps 1 + 0.5 v = 1.5, 1.75."""
    from client_app.solvers.fednova import step_weight

    assert step_weight(2, 0.5, nesterov=True) == 3.25
    assert step_weight(2, 0.5) == 2.5

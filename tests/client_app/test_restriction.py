"""Restricted training: steps under a mask are masked steps, and steps in the range of A are steps on B."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from client_app.solvers.fedprox import FedProxSolver
from client_app.solvers.sgd import Solver
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask, train
from client_app.training.restriction import RESTRICTIONS
from task.codecs.structured import factor, positions, rank
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.seeds import rng_for
from tests.support.models import blobs

IMAGE = (1, 16, 16)
LR, KEEP, SEED = 0.1, 0.25, 11
# mu of FedProx, momentum, weight decay, bound on the gradient's norm
CASES: dict[str, dict[str, float]] = {
    "plain": {},
    "momentum": {"momentum": 0.8},
    "decay": {"weight_decay": 0.3},
    "momentum and decay": {"momentum": 0.5, "weight_decay": 0.3},
}


def task_of(model: str, stack: int, sizes: list[int], kind: str, **keys: Any) -> LocalTask:
    module = build_model(model, IMAGE, 4, seed=2)
    start = state_of(module)
    program, _ = program_of(module, stack)
    rows = [blobs(n, 256, 4, seed=k) for k, n in enumerate(sizes)]
    x, y = torch.cat([x for x, _ in rows]).view(-1, *IMAGE), torch.cat([y for _, y in rows])
    rngs = [rng_for(1, "batches", 1, str(k)) for k in range(len(sizes))]
    config = TrainConfig(batch_size=4, **keys)
    task = LocalTask(program, start, Examples(x, y, sizes), [2] * len(sizes), LR, config, rngs)
    if kind != "none":
        seeds = [SEED + k for k in range(len(sizes))]
        task.restriction = RESTRICTIONS[kind](program.names, task.params, seeds, KEEP)
    return task


def trained(task: LocalTask, mu: float = 0.0) -> list[Arrays]:
    solver = FedProxSolver if mu else Solver
    train(task, solver(Config(), {"proximal-mu": mu}, {}, [{}] * task.clients))
    return task.states()


def by_hand(
    task: LocalTask, kind: str, momentum: float = 0.0, weight_decay: float = 0.0, mu: float = 0.0
) -> Arrays:
    """Train the first client with autograd: values under the mask, or B, are leaves of torch's own SGD."""
    module = task.program.model
    start = {n: torch.from_numpy(a.copy()) for n, a in task.received.items()}
    leaves: dict[str, torch.Tensor] = {}

    def model() -> dict[str, torch.Tensor]:
        made = {}
        for n, w in start.items():
            if kind == "mask":
                at = torch.from_numpy(positions(SEED, n, w.shape, KEEP))
                leaves.setdefault(n, w.reshape(-1)[at].clone().requires_grad_())
                made[n] = w.reshape(-1).index_put((at,), leaves[n]).view_as(w)
            elif not rank(w.shape, KEEP):
                leaves.setdefault(n, w.clone().requires_grad_())
                made[n] = leaves[n]
            else:
                A = torch.from_numpy(factor(SEED, n, w.shape, KEEP))
                leaves.setdefault(n, torch.zeros(A.shape[1], len(w), requires_grad=True))
                made[n] = w + (A @ leaves[n]).T.view_as(w)
        return made

    model()
    optimizer = torch.optim.SGD(leaves.values(), lr=task.lr, momentum=momentum)
    rng = rng_for(1, "batches", 1, "0")
    for _ in range(task.epochs[0]):
        for rows in torch.from_numpy(rng.permutation(task.examples.sizes[0])).split(4):
            optimizer.zero_grad()
            made = model()
            loss = cross_entropy(
                functional_call(module, made, (task.examples.x[rows],)), task.examples.y[rows]
            )
            loss = loss + sum(weight_decay / 2 * w.square().sum() for w in made.values())
            loss = loss + sum(mu / 2 * (w - start[n]).square().sum() for n, w in made.items())
            loss.backward()
            optimizer.step()
    return {n: w.detach().numpy() for n, w in model().items()}


@pytest.mark.parametrize("kind", RESTRICTIONS)
@pytest.mark.parametrize(("model", "stack"), [("mlp", 1), ("mlp", 8), ("lenet", 1), ("lenet", 8)])
@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_sgd_on_the_numbers_that_are_sent(
    kind: str, model: str, stack: int, case: str
) -> None:
    """A restriction at the end only, a decay outside it, a factor transposed: all of them end elsewhere."""
    task = task_of(model, stack, [10], kind, **CASES[case])
    (got,) = trained(task)
    wanted = by_hand(task, kind, **CASES[case])
    for name, a in wanted.items():
        np.testing.assert_allclose(got[name], a, rtol=0, atol=2e-6, err_msg=name)
    moved = max(np.abs(a - task.received[n]).max() for n, a in wanted.items())
    assert moved > 1e-3


@pytest.mark.parametrize("kind", RESTRICTIONS)
@pytest.mark.parametrize("stack", [1, 8])
def test_a_solvers_terms_are_restricted_too(kind: str, stack: int) -> None:
    task = task_of("mlp", stack, [10], kind)
    (got,) = trained(task, mu=2.0)
    for name, a in by_hand(task, kind, mu=2.0).items():
        np.testing.assert_allclose(got[name], a, rtol=0, atol=2e-6)


@pytest.mark.parametrize("keys", [*CASES.values(), {"clip_norm": 0.1}])
def test_nothing_moves_outside_the_mask_and_the_vectors_are_free(keys: dict[str, float]) -> None:
    task = task_of("lenet", 8, [10, 7], "mask", **keys)
    for k, got in enumerate(trained(task)):
        for name, w in task.received.items():
            inside = np.zeros(w.size, bool)
            inside[positions(SEED + k, name, w.shape, KEEP)] = True
            assert inside.sum() == (round(KEEP * w.size) if w.ndim > 1 else w.size)
            same = got[name].reshape(-1) == w.reshape(-1)
            assert same[~inside].all()
            assert not same[inside].all()


def test_masking_in_each_step_is_not_masking_the_result() -> None:
    task = task_of("mlp", 8, [10], "mask")
    (free,), (got,) = trained(task_of("mlp", 8, [10], "none")), trained(task)
    at = positions(SEED, "1.weight", free["1.weight"].shape, KEEP)
    assert np.abs(free["1.weight"].reshape(-1)[at] - got["1.weight"].reshape(-1)[at]).max() > 1e-5


def test_an_update_of_low_rank_lies_in_the_range_of_the_clients_own_a() -> None:
    task = task_of("lenet", 8, [10, 7], "low-rank")
    for k, got in enumerate(trained(task)):
        for name, w in task.received.items():
            if r := rank(w.shape, KEEP):
                H = (got[name] - w).reshape(len(w), -1).T.astype(np.float64)
                A, other = (factor(SEED + s, name, w.shape, KEEP).astype(np.float64) for s in (k, k + 1))
                assert A.shape == (H.shape[0], r)
                left = [H - a @ np.linalg.lstsq(a, H, rcond=None)[0] for a in (A, other)]
                assert np.abs(left[0]).max() < 1e-6
                assert np.abs(left[1]).max() > 1e-4


@pytest.mark.parametrize("kind", RESTRICTIONS)
def test_a_client_takes_the_same_steps_whoever_trains_with_it(kind: str) -> None:
    """Masks that are not cut with the clients that are done, or drawn for the cohort, would differ."""
    together = trained(task_of("2nn", 8, [18, 9, 4], kind))
    (alone,) = trained(task_of("2nn", 8, [18], kind))
    assert all(np.array_equal(together[0][n], a) for n, a in alone.items())


def test_both_kinds_take_steps_of_one_expected_length() -> None:
    """E[A A^T] = E[M] = keep I."""
    shape = (1, 40)
    draws = [factor(seed, "w", shape, KEEP).astype(np.float64) for seed in range(2000)]
    mean = sum(a @ a.T for a in draws) / len(draws)
    assert np.abs(mean - KEEP * np.eye(40)).max() < 5 * np.sqrt(2 * KEEP / 40 / len(draws))
    inside = np.bincount(
        np.concatenate([positions(s, "w", (4, 10), KEEP) for s in range(2000)]), minlength=40
    )
    assert np.abs(inside / 2000 - KEEP).max() < 5 * np.sqrt(KEEP / 2000)


def test_a_space_depends_on_the_seed_and_the_tensor() -> None:
    one = positions(1, "w", (9, 9), KEEP).tolist()
    assert one == positions(1, "w", (9, 9), KEEP).tolist()
    assert one != positions(2, "w", (9, 9), KEEP).tolist()
    assert one != positions(1, "v", (9, 9), KEEP).tolist()

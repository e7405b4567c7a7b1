"""DP-SGD and its epsilon are those of Opacus, which has neither code nor authors in common with ours."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from client_app.training.private import ROUNDED, PrivateSteps, private_program
from client_app.training.programs import Batch, Single
from client_app.training.stacked import Perceptron
from task.models import build_model
from task.numerics.arrays import state_of
from task.privacy.accounting import epsilon
from task.privacy.noise import Stream, derived

MODELS = {"logistic": Perceptron, "mlp": Perceptron, "2nn": Perceptron, "cnn": Single, "fasttext": Single}
FULL = ("cnn", "fasttext")  # most of the seconds
EXAMPLES = 7
FLOAT32 = 5e-7  # of two ways to add up the products of a layer; 4e-7 is the most of them all here
SMALL = 1e-6  # Opacus adds it to each norm


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    y = torch.randint(0, 4, (EXAMPLES,), generator=rng)
    if name != "fasttext":
        return torch.randn(EXAMPLES, 1, 28, 28, generator=rng), y
    return torch.randint(0, 50, (EXAMPLES, 12), generator=rng), y


def by_opacus(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return Opacus's clipped sum, the norms that it divides by, and the exact norms of its gradients."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=bound,
        expected_batch_size=1,
    )
    nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    each = [g.flatten(1) for g in optimizer.grad_samples]
    exact = torch.stack([g.double().square().sum(1) for g in each]).sum(0).sqrt()
    theirs = torch.stack([g.norm(2, dim=-1) for g in each], 1).norm(2, dim=1)
    optimizer.clip_and_accumulate()
    return [p.summed_grad for p in optimizer.params], theirs, exact


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of Opacus's hooks on a first layer
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n in FULL else ()) for n in MODELS]
)
def test_the_clipped_sum_is_that_of_opacus(name: str) -> None:
    """It differs by what is known to differ: our margin, their `SMALL`, and their norm in float32.

    That norm is the largest part for `cnn`, whose first linear layer has 1.6 million numbers: 1.1e-5.
    """
    torch.manual_seed(3)
    shape = (12,) if name == "fasttext" else (1, 28, 28)
    model = build_model(name, shape, 4, 4)
    program = private_program(model, Single(model))
    assert isinstance(program, MODELS[name])
    params, (x, y) = program.load(state_of(model), 1), batch_of(name)
    plain = program.model if isinstance(program, Single) else model  # PyTorch's own layers
    *_, exact = by_opacus(copy.deepcopy(plain), x, y, 1.0)
    for bound in (0.05, float(exact.median()), 1e6):  # clips all, half, none
        steps = PrivateSteps(bound, 1.0, EXAMPLES, Stream(derived(bytes(32), "test")))
        got = steps.clipped(program, params, Batch(x[None], y[None], torch.ones(1)))
        want, theirs, exact = by_opacus(copy.deepcopy(plain), x, y, bound)
        allowed = FLOAT32
        if bound < 1e6:
            allowed += 1 - ROUNDED + SMALL / float(exact.min())
            allowed += float((theirs.double() / exact - 1).abs().max())
        top = max(float(w.abs().max()) for w in want)
        for g, w in zip(got, want, strict=True):
            assert float((g[0].double() - w.double()).abs().max()) < allowed * top, bound


@pytest.mark.parametrize(
    ("q", "z", "steps", "delta"),
    [
        (100 / 6000, 1.384, 1200, 1e-5),  # recipe mnist-dp-hospitals at 2, and at 8
        pytest.param(100 / 6000, 0.708, 1200, 1e-5, marks=pytest.mark.full),
        (0.1, 2.25, 100, 1e-5),  # recipe mnist-dp-logistic at 2, and at 8
        pytest.param(0.1, 0.936, 100, 1e-5, marks=pytest.mark.full),
        pytest.param(0.03, 1.115, 100, 1e-6, marks=pytest.mark.full),
        pytest.param(0.5, 4.0, 100, 1e-4, marks=pytest.mark.full),
    ],
)
def test_epsilon_is_that_of_opacus(q: float, z: float, steps: int, delta: float) -> None:
    """It lies between the proven bounds of its PRV accountant, 0.02 apart, and near its estimate."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(z, q, steps)]
    found = epsilon([(q, z)] * steps, delta)
    law = prv._get_dprv(eps_error=0.01, delta_error=delta / 1000)
    low, estimate, high = law.compute_epsilon(delta, delta / 1000, 0.01)
    assert low < found < high
    assert found == pytest.approx(estimate, rel=1e-3)
    assert found < rdp.get_epsilon(delta=delta)

"""Mixed precision: near float32, float32 parameters and statistics, and no 16 bits where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_app.solvers.sgd import Solver
from client_app.training.loop import train
from client_app.training.precision import Mixed, check_precision, in_precision
from client_app.training.programs import Batch, Single
from client_app.training.stacked import Layers, Perceptron
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import state_of
from tests.support.models import Noisy, blobs, task_on

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


def perceptron() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kind", [Perceptron, Layers, Single])
def test_gradients_are_near_those_of_float32_and_float32(precision: str, device: str, kind: type) -> None:
    """A backward pass that is written out would not be cast; a loss scale left in would be 2^14 off."""
    model = perceptron().to(device)
    clients = 1 if kind is Single else 3
    x, y = blobs(4 * clients, classes=3)
    scale = torch.full((clients,), 0.25, device=device)
    batch = Batch(x.view(clients, 4, 3).to(device), y.view(clients, 4).to(device), scale)
    exact, program = kind(model), in_precision(kind(model), precision)
    params = exact.load(state_of(model), clients)
    loss, gradient = exact.gradient(params, batch)
    near, other = program.gradient(params, batch)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, loss, rtol=0.02, atol=0.02)
    for a, b in zip(gradient.tensors(), other.tensors(), strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(b, a, rtol=0.05, atol=0.01)
    assert any(not torch.equal(a, b) for a, b in zip(gradient.tensors(), other.tensors(), strict=True))


def test_running_statistics_move_once_and_stay_float32_where_a_gradient_overflows() -> None:
    """A batch that is done again with a smaller loss scale must not count twice."""
    model = Noisy()
    x, y = blobs(8)
    program = Mixed(Single(model), torch.float16)
    with torch.no_grad():
        model.out.weight.mul_(3e3)  # its gradient overflows at the first loss scale
    params = program.load(state_of(model), 1)
    program.train(True)
    passes: list[object] = []
    model.register_forward_hook(lambda *given: passes.append(given))
    _, gradient = program.gradient(params, Batch(x[None], y[None], torch.tensor([100.0])))
    assert all(t.isfinite().all() for t in gradient.tensors())
    assert len(passes) > 1
    assert int(model.norm.num_batches_tracked) == 1
    assert model.norm.running_mean is not None
    assert model.norm.running_mean.dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_training_in_bfloat16_learns_what_float32_does(device: str) -> None:
    """Steps in 16 bits would lose what is smaller than a hundredth of a parameter."""
    found = []
    for precision in ("float32", "bfloat16"):
        model = perceptron().to(device)
        x, _ = blobs(64, classes=3)
        y = x.argmax(1)
        task = task_on(model, x.to(device), y.to(device), epochs=8, lr=0.1)
        task.program = in_precision(task.program, precision)
        stats = train(task, Solver(Config(), {}, {}, [{}]))
        found.append(stats[0]["train-loss"])
        assert all(a.dtype == np.float32 for a in task.states()[0].values())
    assert found[1] == pytest.approx(found[0], rel=0.05)


def test_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match='"precision": expected a CUDA GPU'):
        check_precision("bfloat16", torch.device("cpu"))
    check_precision("float32", torch.device("cpu"))

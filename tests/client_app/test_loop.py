"""The one training loop: which steps it takes, on which batches, with which numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.solvers.sgd import Solver
from client_app.training.choice import program_of
from client_app.training.loop import CHUNK, Examples, LocalTask, first_batch, full_gradient, norms, train
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.numerics import seeds
from task.numerics.arrays import state_of
from task.numerics.seeds import rng_for
from tests.support.models import Bytes, Noisy, OneNumber, blobs, flat, task_on


def plain() -> Solver:
    return Solver(Config(), {}, {}, [{}])


class Seen(nn.Module):
    """Linear model that keeps the batches it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.batches: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches.append(x.detach().reshape(-1).int().tolist())
        out: torch.Tensor = self.layer(x)
        return out


def numbered(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n).float().reshape(-1, 1), torch.zeros(n, dtype=torch.int64)


def batches(n: int, *, epochs: int = 1, **train_config: Any) -> list[list[int]]:
    model = Seen()
    train(task_on(model, *numbered(n), epochs=epochs, lr=0.0, **train_config), plain())
    return model.batches


@pytest.mark.parametrize(
    ("n", "epochs", "batch", "steps", "wanted"),
    [
        (7, 1, 3, 0, [3, 3, 1]),  # the short last batch is a batch
        (7, 2, 3, 0, [3, 3, 1, 3, 3, 1]),
        (6, 2, 3, 0, [3, 3, 3, 3]),
        (7, 1, 0, 0, [7]),  # B = infinity
        (7, 3, 0, 0, [7, 7, 7]),
        (7, 1, 100, 0, [7]),
        (7, 1, 1, 0, [1] * 7),
        (1, 2, 10, 0, [1, 1]),
        (7, 1, 3, 5, [3, 3, 1, 3, 3]),  # local-steps instead of epochs, over as many passes as it takes
        (7, 9, 3, 2, [3, 3]),
        (7, 1, 0, 4, [7, 7, 7, 7]),
    ],
)
def test_steps_and_batch_sizes(n: int, epochs: int, batch: int, steps: int, wanted: list[int]) -> None:
    assert [len(b) for b in batches(n, epochs=epochs, batch_size=batch, local_steps=steps)] == wanted


def test_each_epoch_has_every_example_once_in_the_order_of_the_seeds() -> None:
    got = batches(7, epochs=2, batch_size=3)
    rng = rng_for(1, seeds.BATCHES, 1, "a")
    for epoch in (got[:3], got[3:]):
        assert [i for b in epoch for i in b] == rng.permutation(7).tolist()


def test_the_order_depends_on_client_and_round_and_on_nothing_else() -> None:
    def order(client: str, server_round: int) -> list[list[int]]:
        model = Seen()
        train(task_on(model, *numbered(20), client=client, server_round=server_round, batch_size=4), plain())
        return model.batches

    assert order("a", 1) == order("a", 1)
    assert order("a", 1) != order("b", 1)
    assert order("a", 1) != order("a", 2)


@pytest.mark.parametrize(("n", "batch", "wanted"), [(13, 3, [3, 3]), (11, 3, [11]), (6, 0, [6])])
def test_few_rows_are_read_alone_and_many_at_once(n: int, batch: int, wanted: list[int]) -> None:
    (x, y), asked = numbered(n), list[int]()

    def read(rows: np.ndarray) -> torch.Tensor:
        asked.append(len(rows))
        return x[rows]

    found = []
    for given in (x, read):
        torch.manual_seed(1)
        model = Seen()
        task = task_on(model, x, y, epochs=1, lr=0.5, batch_size=batch, local_steps=2)
        task.examples = Examples(given, y, [n])
        train(task, plain())
        found.append((model.batches, [p.tolist() for p in task.params]))
    assert found[0] == found[1]
    assert asked == wanted
    assert torch.equal(task.examples.x, x)
    assert torch.equal(task.examples.of(torch.tensor([4, 2])), x[[4, 2]])


def test_one_step_by_hand() -> None:
    # w = 0, x = 2, y = 1: loss log 2, gradient -x sigmoid(0) = -1; w <- 0 + 0.5 * 1
    model = OneNumber()
    (stats,) = train(task_on(model, torch.tensor([2.0]), torch.tensor([1]), lr=0.5), plain())
    assert model.w.item() == pytest.approx(0.5)
    assert stats["train-loss"] == pytest.approx(math.log(2))


def test_train_loss_is_the_mean_over_examples_not_over_batches() -> None:
    # lr 0: w = 1 stays. Losses of x = 1, 2, 3 (y = 1): log(1 + e^-x); batches of 2 and 1.
    x = torch.tensor([1.0, 2.0, 3.0])
    (stats,) = train(task_on(OneNumber(1.0), x, torch.ones(3).long(), lr=0.0, batch_size=2), plain())
    assert stats["train-loss"] == pytest.approx(sum(math.log1p(math.exp(-v)) for v in (1, 2, 3)) / 3)


def test_momentum_is_fresh_every_round() -> None:
    # gradient at w = 0 is -1 (x = 2, y = 1). If the velocity of the first call lived on, the second step
    # from w = 0 would be 0.5 * (1 + 0.9 * 1) = 0.95 and not 0.5.
    model = OneNumber()
    for _ in range(2):
        with torch.no_grad():
            model.w.zero_()
        train(task_on(model, torch.tensor([2.0]), torch.tensor([1]), lr=0.5, momentum=0.9), plain())
        assert model.w.item() == pytest.approx(0.5)


def test_no_gradient_is_computed_for_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(8)
    task = task_on(nn.Sequential(nn.Linear(x.shape[1], 4), nn.ReLU(), nn.Linear(4, 3)), x, y)
    wanted: list[int] = []
    grad = torch.autograd.grad

    def counting(loss: Any, inputs: Any) -> Any:
        wanted.append(len(inputs))
        return grad(loss, inputs)

    monkeypatch.setattr(torch.autograd, "grad", counting)
    train(task, plain(), epochs=1, frozen=task.program.names[:2])
    assert {*wanted} == {2}
    wanted.clear()
    train(task, plain(), epochs=1)
    assert {*wanted} == {4}


def test_frozen_parameters_do_not_move_and_buffers_do() -> None:
    model = Noisy()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    train(task_on(model, *blobs(8), epochs=2, batch_size=4), plain())
    after = model.state_dict()
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert not {k for k in changed if k.startswith("frozen")}
    assert {"out.weight", "norm.weight", "norm.running_mean", "norm.num_batches_tracked"} <= changed


@pytest.mark.parametrize("n", [1, 7, CHUNK, CHUNK + 1, 2 * CHUNK + 77])
def test_full_gradient_is_autograds_of_the_mean_loss(n: int) -> None:
    model, (x, y) = nn.Linear(3, 2), blobs(n)
    (loss,), grads = full_gradient(task_on(model, x, y))
    mean = cross_entropy(model(x), y)
    wanted = torch.autograd.grad(mean, list(model.parameters()))
    assert loss == pytest.approx(float(mean.detach()), rel=1e-5)
    for got, want in zip(grads, wanted, strict=True):
        assert torch.allclose(got[0], want, rtol=1e-5, atol=1e-7)


def test_full_gradient_of_text_leaves_padding_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.training.loop.CHUNK", 4)
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 5, (10, 6)))
    y = torch.from_numpy(rng.integers(0, 5, (10, 6)))
    y[:7, 2:] = -100  # chunks of very unequal numbers of targets
    model = Bytes()
    (loss,), grads = full_gradient(task_on(model, x, y))
    mean = cross_entropy(model(x), y)  # over the targets that count, all chunks together
    assert loss == pytest.approx(float(mean.detach()), rel=1e-5)
    for got, want in zip(grads, torch.autograd.grad(mean, list(model.parameters())), strict=True):
        assert torch.allclose(got[0], want, rtol=1e-5, atol=1e-7)


def test_full_gradient_leaves_the_parameters_alone() -> None:
    model = nn.Linear(3, 2)
    before = flat(model)
    full_gradient(task_on(model, *blobs(9)))
    assert torch.equal(flat(model), before)
    assert all(p.grad is None for p in model.parameters())


def test_norm_is_over_all_tensors_together() -> None:
    # sqrt(3^2 + 4^2 + 12^2) = 13
    assert norms([torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[12.0], [0.0]])]) == [13, 1]


def test_the_start_is_a_copy_and_has_no_gradient() -> None:
    model = OneNumber(1.0)
    task = task_on(model, torch.tensor([2.0]), torch.tensor([1]))
    train(task, plain())
    assert model.w.item() != 1.0
    assert (task.start[0].item(), task.start[0].requires_grad) == (1.0, False)


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_tensor_of_the_cpu_is_mixed_with_those_of_a_gpu(
    stack: int, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: fake CUDA tensors know their device and nothing else, so that training comes as far
    as the first number that it needs from the GPU (the loss, at the end).
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    # the autograd engine itself wants a device
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, params: [torch.zeros_like(p) for p in params])
    with FakeTensorMode():
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2, device="cuda"))
        received = {"1.weight": np.zeros((2, 3), np.float32), "1.bias": np.zeros(2, np.float32)}
        program, most = program_of(model, stack)
        K = min(most, 2)
        x, y = torch.zeros(8, 3, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
        config = TrainConfig(batch_size=3, momentum=momentum, weight_decay=0.1)
        rngs = [np.random.default_rng(0)] * K
        task = LocalTask(program, received, Examples(x, y, [8 // K] * K), [1] * K, 0.1, config, rngs)
        with pytest.raises(RuntimeError, match="numpy"):
            train(task, plain())


@pytest.mark.parametrize(("size", "copied"), [(0, False), (4, False), (3, True), (5, True)])
def test_a_batch_that_is_all_the_examples_is_not_copied(size: int, copied: bool) -> None:
    """A batch of 5 is padded, so that it cannot be the examples themselves."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3))
    x, y = blobs(8, classes=3)
    config = TrainConfig(batch_size=size)
    rngs = [rng_for(1, seeds.BATCHES, 1, c) for c in "ab"]
    program, _ = program_of(model, 2)
    task = LocalTask(program, state_of(model), Examples(x, y, [4, 4]), [1, 1], 0.1, config, rngs)
    batch = first_batch(task)
    assert (batch.x.data_ptr() != x.data_ptr()) == copied
    if not copied:
        assert torch.equal(batch.x.reshape(x.shape), x)
        assert batch.y.tolist() == [y[:4].tolist(), y[4:].tolist()]


def test_training_imports_neither_dynamo_nor_torchvision() -> None:
    """Three seconds and 150 MB in every process; Flower starts one for every message."""
    script = (
        "import sys, torch\n"
        "from tests.support.models import ALONE, solver_of, task_on\n"
        "import client_app.app\n"
        "from task.models import build_model\n"
        "build_model('2nn', (1, 28, 28), 10, 1)\n"
        "x, y = torch.tensor([[2.0]]), torch.tensor([1])\n"
        "task = task_on(torch.nn.Sequential(torch.nn.Linear(1, 2)), x, y, momentum=0.9, weight_decay=0.1)\n"
        "for name in ALONE:\n"
        "    s = solver_of(name, task)\n"
        "    s.begin(task); s.finish(task, s.run(task))\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'torchvision', 'sklearn', 'matplotlib', 'ray')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

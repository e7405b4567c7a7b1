"""MOON against its slow reference, by hand, and where it is FedAvg."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.solvers.moon import Grouped, MoonSolver, contrastive
from client_app.solvers.sgd import Solver
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask, train
from client_app.training.programs import Batch, Dense, Factored, Program, Single
from task.config.knobs import Config
from task.config.personal_sections import MoonConfig
from task.config.sections import TrainConfig
from task.errors import ConfigError, FieldError
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.seeds import rng_for
from task.resolve.run_model import parts_of
from tests.reference.driver import Trace
from tests.reference.moon import Moon
from tests.support.federation import far
from tests.support.models import Noisy, blobs
from tests.support.personal import Case, case_of, reference_of


def reference(run: Case, cohorts: list[list[str]], **knobs: Any) -> Trace:
    """Return the reference, whose clients may also begin again."""
    again = run.train | {f"{c} again": data for c, data in run.train.items()}
    return reference_of(run, Moon, again, **knobs)(cohorts)


def played(folder: Path, mu: float = 3.0, T: float = 0.4, buffer: int = 1, **more: Any) -> Case:
    return case_of(folder, "moon", moon__mu=mu, moon__temperature=T, moon__buffer=buffer, **more)


# ---------------------------------------------------------------------------------------- one client

SIZES = [9, 8, 5]
IMAGE = (1, 16, 16)


def net(seed: int = 2) -> nn.Module:
    return build_model("mlp", (6,), 3, seed=seed)


def images(seed: int = 2) -> nn.Module:
    return build_model("moon-cnn", IMAGE, 3, seed=seed)


def examples(sizes: list[int], shape: tuple[int, ...] = (6,)) -> Examples:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(sum(sizes), *shape)).astype(np.float32)
    return Examples(torch.from_numpy(x), torch.from_numpy(rng.integers(0, 3, sum(sizes))), sizes)


def record(*models: Arrays) -> dict[str, Arrays]:
    """Return what a client kept, the newest model first."""
    return {"previous": {f"{i}/{n}": a for i, model in enumerate(models) for n, a in model.items()}}


def task_of(program: Program, received: Arrays, data: Examples, names: str, **knobs: Any) -> LocalTask:
    config = TrainConfig(**{"batch_size": 4, **knobs})
    rngs = [rng_for(1, "batches", 1, c) for c in names]
    return LocalTask(program, received, data, [2] * len(names), 0.1, config, rngs)


def solver_of(kept: list[dict[str, Arrays]], mu: float = 2.0, T: float = 0.5, buffer: int = 4) -> MoonSolver:
    return MoonSolver(Config(moon=MoonConfig(mu=mu, temperature=T, buffer=buffer)), {}, {}, kept)


def trained(task: LocalTask, solver: Solver) -> list[Arrays]:
    solver.begin(task)
    train(task, solver)
    return [{n: a.copy() for n, a in state.items()} for state in task.states()]


def test_a_new_client_is_fedavgs_to_the_last_bit_whoever_is_beside_it() -> None:
    program, _ = program_of(net(), 3)
    data, received = examples(SIZES), state_of(net())
    plain = trained(task_of(program, received, data, "abc"), Solver(Config(), {}, {}, [{}] * 3))
    one, two = record(state_of(net(3))), record(state_of(net(4)), state_of(net(3)))
    for kept in ([{}, one, {}], [two, {}, one], [one, one, {}]):
        mixed = trained(task_of(program, received, data, "abc"), solver_of(kept))
        same = [all(np.array_equal(a[n], b[n]) for n in a) for a, b in zip(mixed, plain, strict=True)]
        assert same == [not k for k in kept]


@pytest.mark.parametrize("model", [net, images])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_unlike_clients_of_a_stack_are_what_they_are_alone(model: Any, momentum: float) -> None:
    """None, one and two negatives; short batches; clients that are done before others."""
    data = examples(SIZES, (6,) if model is net else IMAGE)
    kept = [record(state_of(model(3)), state_of(model(4))), {}, record(state_of(model(5)))]
    received = state_of(model())
    together, _ = program_of(model(), 3)
    stacked = trained(task_of(together, received, data, "abc", momentum=momentum), solver_of(kept))
    for k, c in enumerate("abc"):
        rows = slice(int(data.offsets[k]), int(data.offsets[k + 1]))
        mine = Examples(data.x[rows], data.y[rows], [SIZES[k]])
        task = task_of(Single(model()), received, mine, c, momentum=momentum)
        (alone,) = trained(task, solver_of([kept[k]]))
        assert far(tuple(stacked[k].values()), tuple(alone.values())) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_the_gradient_is_the_numeric_derivative_of_the_loss(stack: int, padded: bool) -> None:
    """In float64, by central differences along random directions, for each client."""

    def double(seed: int) -> nn.Module:
        return build_model("mlp", (6,), 3, seed=seed).double()

    program, K = program_of(double(2), stack)
    data = examples([4] * K)
    data.x = data.x.double()
    received = state_of(double(2))
    task = task_of(program, received, data, "abc"[:K])
    kept = [record(*(state_of(double(10 + k + j)) for j in range(2 - k % 2))) for k in range(K)]
    solver = solver_of(kept, mu=3.0)
    solver.begin(task)
    rng = torch.Generator().manual_seed(1)
    w = [p + 0.1 * torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in task.params]
    y = data.y.view(K, 4).clone()
    if padded:
        y[-1, 3:] = -100
    counts = (y >= 0).sum(1)
    batch = Batch(data.x.view(K, 4, 6), y, 1 / counts.double(), padded, torch.arange(4 * K).view(K, 4))

    def at(params: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        task.params = params
        loss, gradient = solver.gradient(task, batch)
        return loss, gradient.tensors()

    loss, gradient = at(w)
    assert loss.dtype == torch.float64
    for _ in range(3):
        u = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in w]
        ahead, behind = (at([p + s * d for p, d in zip(w, u, strict=True)])[0] for s in (1e-6, -1e-6))
        slope = sum((g * d).flatten(1).sum(1) for g, d in zip(gradient, u, strict=True))
        torch.testing.assert_close((ahead - behind) / 2e-6, slope, rtol=1e-6, atol=1e-7)


def test_the_contrastive_loss_by_hand() -> None:
    # cosines of z = (1, 0): 1 with (3, 0), 0 with (0, 2), -1 with (-1, 0), sqrt(1/2) with (1, 1)
    z = torch.tensor([[1.0, 0.0]])
    units = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.5**0.5, 0.5**0.5]]])
    want = math.log(1 + math.exp(-2))
    assert contrastive(z, units[:, :2], 0.5).tolist() == pytest.approx([want])
    assert contrastive(7 * z, units[:, :2], 0.5).tolist() == pytest.approx([want])  # lengths do not matter
    want = math.log(1 + math.exp(-2) + math.exp(-4) + math.exp(2**0.5 - 2))
    assert contrastive(z, units, 0.5).tolist() == pytest.approx([want])
    want = math.log(1 + math.exp(-4))
    assert contrastive(z, units[:, 1:3], 0.25).tolist() == pytest.approx([want], rel=1e-5)


def test_features_of_length_0_have_the_cosine_0_and_no_gradient() -> None:
    z = torch.zeros(1, 2, requires_grad=True)
    loss = contrastive(z.relu(), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), 0.5)
    assert loss.tolist() == pytest.approx([math.log(2)])
    (g,) = torch.autograd.grad(loss.sum(), z)
    assert g.tolist() == [[0.0, 0.0]]


def chain(seed: int) -> nn.Sequential:
    """Return layers with batch normalisation and dropout among them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(5)
        norm.running_mean, norm.running_var = torch.rand(5), 1 + torch.rand(5)
        return nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))


def test_models_that_stand_still_are_in_evaluation_and_leave_no_trace() -> None:
    x, y = blobs(12)
    received, old = state_of(chain(1)), state_of(chain(2))
    task = task_of(Single(chain(3)), received, Examples(x, y, [12]), "a")
    solver = solver_of([record(old)])
    before = torch.get_rng_state()
    solver.begin(task)
    assert torch.equal(torch.get_rng_state(), before)  # no dropout was drawn
    for i, model in enumerate((chain(1), chain(2))):
        z = model.eval()[:-1](x).detach()
        want = z / z.norm(dim=1, keepdim=True).clamp(min=1e-8)
        torch.testing.assert_close(solver._directions[:, i], want)
    # training begins with the received model, and its statistics move by the trained model's batches alone
    (state,) = task.states()
    assert all(np.array_equal(state[n], a) for n, a in received.items())
    task.program.train(True)
    solver.gradient(task, Batch(x[None, :4], y[None, :4], torch.tensor([0.25]), rows=torch.arange(4)[None]))
    hidden = chain(1)[0](x[:4]).mean(0).detach()
    want = 0.9 * received["1.running_mean"] + 0.1 * hidden.numpy()
    assert task.states()[0]["1.running_mean"] == pytest.approx(want, rel=1e-5)
    assert task.states()[0]["1.num_batches_tracked"] == 1


def test_the_newest_models_are_kept_in_front_and_no_more_than_the_buffer() -> None:
    received, old = state_of(net()), [state_of(net(s)) for s in (3, 4, 5)]
    for buffer, kept, want in (
        (1, [], 0), (1, old[:1], 0), (2, old[:1], 1), (2, old[:2], 1), (2, old, 1), (5, old, 3),
    ):  # fmt: skip
        task = task_of(Single(net()), received, examples([9]), "a")
        solver = solver_of([record(*kept) if kept else {}], buffer=buffer)
        solver.begin(task)
        stats = train(task, solver)
        ((upload, keep),) = solver.finish(task, stats)
        wanted = record(upload.arrays["arrays"], *old[:want])["previous"]
        assert keep["previous"].keys() == wanted.keys()
        assert all(np.array_equal(a, wanted[n]) for n, a in keep["previous"].items())


def test_the_training_loss_is_the_whole_one(tmp_path: Path) -> None:
    """Without progress, and so with z_glob = z_prev, it is FedAvg's plus mu log 2 from round 2 on."""
    more = {"learning_rate": 1e-12, "fraction_train": 1.0, "num_server_rounds": 2}
    losses = [
        [row["train_loss"] for row in run.played.rows[1:]]
        for run in (played(tmp_path, mu=2.0, **more), case_of(tmp_path, "fedavg", **more))
    ]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] - losses[1][1] == pytest.approx(2 * math.log(2), abs=1e-5)


def test_groups_are_put_together_in_the_clients_order() -> None:
    rng = torch.Generator().manual_seed(1)
    h, delta = torch.rand(2, 3, 4, generator=rng), torch.rand(2, 3, 5, generator=rng)
    dense = [torch.rand(1, 5, 4, generator=rng), torch.rand(1, 5, generator=rng)]
    grouped = Grouped([torch.tensor([0, 2]), torch.tensor([1])], [Factored([h], [delta]), Dense(dense)])
    W, b = grouped.tensors()
    assert torch.equal(W[1], dense[0][0])
    assert torch.equal(b[1], dense[1][0])
    torch.testing.assert_close(W[2], delta[1].T @ h[1])
    torch.testing.assert_close(b[0], delta[0].sum(0))
    into = [torch.ones(3, 5, 4), torch.ones(3, 5)]
    grouped.add_to(into, -2.0)
    torch.testing.assert_close(into[0], 1 - 2 * W)
    torch.testing.assert_close(into[1], 1 - 2 * b)


# ------------------------------------------------------------------------------------------- refusals


def test_a_model_without_a_last_linear_layer_is_refused_before_round_1() -> None:
    model = Noisy()
    with pytest.raises(ConfigError, match=r'"model": MOON needs a chain of layers .*moon-cnn'):
        parts_of(model, Config(algorithm="moon"))
    assert parts_of(model, Config(algorithm="moon", moon=MoonConfig(mu=0.0))).shared  # not needed there


def test_kept_models_of_another_form_are_refused() -> None:
    other = state_of(build_model("mlp", (5,), 3, seed=1))
    task = task_of(Single(net()), state_of(net()), examples([4]), "a")
    expected = r"previous/1/1.weight.*float32\[64, 6\].*float32\[64, 5\]"
    with pytest.raises(FieldError, match=expected):
        solver_of([record(state_of(net()), other)]).begin(task)
    short = {n: a for n, a in state_of(net()).items() if n != "3.bias"}
    with pytest.raises(FieldError, match=r"previous/0.*missing \['3.bias'\]"):
        solver_of([record(short)]).begin(task)

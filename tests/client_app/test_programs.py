"""Cohorts as one program: the same numbers as each client alone, whoever else is in the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.answer import answer
from client_app.data.node import open_node
from client_app.solvers import Solver
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask, full_gradient, train
from client_app.training.programs import Batch, Program, Single
from client_app.training.stacked import Layers, Perceptron
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.models import MODELS, build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.seeds import rng_for
from task.resolve.read import read_config
from tests.support.federation import far, owners_config, play, read_by, write_owners
from tests.support.horizontal import HORIZONTAL
from tests.support.models import Noisy, blobs
from tests.support.nodes import order, read
from tests.test_catalogue import ACTIVE

IMAGE = (1, 16, 16)
STACKED = ["2nn", "cnn", "lenet", "logistic", "mlp", "pfl-cnn"]


def model_of(name: str) -> nn.Module:
    return build_model(name, IMAGE, 4, seed=2)


def data(sizes: list[int], shape: tuple[int, ...] = IMAGE) -> Examples:
    rng = np.random.default_rng(4)
    n = sum(sizes)
    x = torch.from_numpy(rng.normal(size=(n, *shape)).astype(np.float32))
    return Examples(x, torch.from_numpy(rng.integers(0, 4, n)), sizes)


def part(examples: Examples, k: int) -> Examples:
    rows = slice(int(examples.offsets[k]), int(examples.offsets[k + 1]))
    return Examples(examples.x[rows], examples.y[rows], [examples.sizes[k]])


def task_of(program: Program, received: Arrays, examples: Examples, names: str, **knobs: Any) -> LocalTask:
    epochs = knobs.pop("epochs", [2] * len(names))
    config = TrainConfig(**{"batch_size": 4, **knobs})
    return LocalTask(
        program, received, examples, epochs, 0.1, config, [rng_for(1, "batches", 1, c) for c in names]
    )


def plain(K: int) -> Solver:
    return Solver(Config(), {}, {}, [{}] * K)


def trained(program: Program, received: Arrays, examples: Examples, names: str, **knobs: Any) -> list[Arrays]:
    task = task_of(program, received, examples, names, **knobs)
    train(task, plain(len(names)))
    return [{k: a.copy() for k, a in state.items()} for state in program.states(task.params)]


def apart(got: Arrays, want: Arrays) -> float:
    """Return the largest difference of two models, relative to the largest number of `want`."""
    assert list(got) == list(want)
    return far(tuple(got.values()), tuple(want.values()))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- which program


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_has_its_program(name: str) -> None:
    text = {"char-lstm": 256, "fasttext": 4}
    model = build_model(name, (80,) if name in text else (1, 28, 28), text.get(name, 256), seed=1)
    wanted: dict[str, type[Program]] = dict.fromkeys(("cnn", "lenet", "moon-cnn", "pfl-cnn"), Layers)
    wanted |= dict.fromkeys(("char-lstm", "cnn-bn", "cvae", "mlp-bn", "vae"), Single)
    wanted |= dict.fromkeys(("fasttext", "resnet18", "resnet18-bn", "tf-cnn"), Single)
    assert type(program_of(model, 4)[0]) is wanted.get(name, Perceptron)
    assert type(program_of(model, 1)[0]) is Single


def test_what_a_stack_cannot_do_trains_alone() -> None:
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    frozen[1].bias.requires_grad_(False)
    others = [
        Noisy(), frozen, nn.Sequential(nn.Linear(3, 2), nn.Dropout()),
        nn.Sequential(nn.Linear(3, 2, bias=False)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 2)), nn.Sequential(nn.ReLU()),
        build_model("2nn", IMAGE, 4, seed=2, twin=True),
    ]  # fmt: skip
    for model in others:
        program, most = program_of(model, 0)
        assert (type(program), most) == (Single, 1)
    # two linear layers without ReLU between them: autograd does it
    assert type(program_of(nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 2)), 2)[0]) is Layers


# ------------------------------------------------------------------------------------------- gradient


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize("padded", [False, True])
def test_loss_and_gradient_are_autograds(name: str, padded: bool) -> None:
    model = model_of(name)
    program, _ = program_of(model, 3)
    params = program.load(state_of(model), 3)
    for k, p in enumerate(params):
        p += 0.01 * k * torch.randn(p.shape, generator=torch.Generator().manual_seed(k))
    examples = data([5, 5, 5])
    x, y = examples.x.view(3, 5, *IMAGE), examples.y.view(3, 5).clone()
    valid = [5, 5, 5]
    if padded:
        y[1, 3:], y[2, 1:] = -100, -100
        valid = [5, 3, 1]
    batch = Batch(x, y, torch.tensor([1 / v for v in valid]), padded)
    loss, gradient = program.gradient(params, batch)
    for k in range(3):
        with torch.no_grad():
            for p, q in zip(model.parameters(), params, strict=True):
                p.copy_(q[k])
        want = cross_entropy(model(x[k, : valid[k]]), y[k, : valid[k]])
        grads = torch.autograd.grad(want, list(model.parameters()))
        assert float(loss[k]) == pytest.approx(float(want.detach()), rel=1e-5)
        for got, g in zip(gradient.tensors(), grads, strict=True):
            assert torch.allclose(got[k], g, rtol=1e-4, atol=1e-6)
        assert torch.allclose(program.logits(params, x)[k], model(x[k]), rtol=1e-4, atol=1e-6)
    into = [torch.ones_like(p) for p in params]
    gradient.add_to(into, -0.5)
    for a, g in zip(into, gradient.tensors(), strict=True):
        assert torch.allclose(a, 1 - 0.5 * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("name", STACKED)
def test_what_is_frozen_changes_nothing_of_the_rest_of_the_gradient(name: str, stack: int) -> None:
    model = model_of(name)
    program, k = program_of(model, stack)
    params = program.load(state_of(model), k)
    examples = data([5] * k)
    batch = Batch(examples.x.view(k, 5, *IMAGE), examples.y.view(k, 5), torch.full((k,), 0.2))
    loss, whole = program.gradient(params, batch)
    for frozen in (program.names[-2:], program.names[:-2]):
        if len(frozen) == len(program.names):
            continue  # a model of one layer
        again, part = program.gradient(params, batch, frozen)
        assert torch.equal(loss, again)
        for n, want, got in zip(program.names, whole.tensors(), part.tensors(), strict=True):
            assert got.shape == want.shape
            assert n in frozen or torch.equal(got, want)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("phase", ["head", "body"])
def test_running_statistics_move_though_parameters_are_frozen(phase: str) -> None:
    model = Noisy()
    program = Single(model)
    own = program.load(state_of(model), 1)
    program.train(True)
    x, y = blobs(8)
    frozen = program.names[:-2] if phase == "head" else program.names[-2:]
    program.gradient(own, Batch(x[None], y[None], torch.tensor([1 / 8])), frozen)
    assert int(model.norm.num_batches_tracked) == 1


def test_a_single_program_takes_parameters_that_are_not_the_models() -> None:
    model = Noisy()
    program = Single(model)
    own = program.load(state_of(model), 1)
    before = state_of(model)
    x, y = blobs(8)
    program.train(False)
    batch = Batch(x[None], y[None], torch.tensor([1 / 8]))
    moved = [p + 0.5 for p in own]
    loss, gradient = program.gradient(moved, batch)
    assert all(np.array_equal(before[k], a) for k, a in state_of(model).items())
    for p, q in zip(own, moved, strict=True):
        p.copy_(q)
    again, same = program.gradient(own, batch)
    assert torch.equal(loss, again)
    assert all(torch.equal(a, b) for a, b in zip(gradient.tensors(), same.tensors(), strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_move_at_the_programs_own_parameters_alone(training: bool) -> None:
    """Foreign ones are normalised in the same way; in evaluation nothing moves at all."""
    model = Noisy()
    model.drop.p = 0.0
    program = Single(model)
    own = program.load(state_of(model), 1)
    leaves = [p.detach().requires_grad_() for p in own]  # as a solver differentiates by itself
    foreign = [p.clone() for p in own]
    x, y = blobs(8)
    batch = Batch(x[None], y[None], torch.tensor([1 / 8]))
    hidden = model.frozen(x).detach()
    still = torch.zeros(3), torch.ones(3), torch.tensor(0)
    moved = 0.1 * hidden.mean(0), 0.9 + 0.1 * hidden.var(0), torch.tensor(1)
    program.train(training)

    def check(call: Callable[[], torch.Tensor], want: tuple[torch.Tensor, ...]) -> torch.Tensor:
        model.norm.reset_running_stats()
        out = call()
        for got, buffer in zip(model.norm.buffers(), want, strict=True):
            torch.testing.assert_close(got, buffer)
        return out

    at_own = moved if training else still
    loss = check(lambda: program.gradient(own, batch)[0], at_own)
    assert torch.equal(check(lambda: program.gradient([p[:1] for p in own], batch)[0], at_own), loss)
    assert torch.equal(check(lambda: program.gradient(foreign, batch)[0], still), loss)
    logits = check(lambda: program.logits(leaves, batch.x), at_own)
    assert torch.equal(check(lambda: program.logits(foreign, batch.x), still), logits)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("name", ["cnn-bn", "lenet", "logistic", "mlp", "moon-cnn"])
def test_features_are_what_the_last_layer_reads(name: str, stack: int) -> None:
    model = model_of(name)
    assert isinstance(model, nn.Sequential)
    program, K = program_of(model, stack)
    program.train(False)
    assert (1 if name == "cnn-bn" else stack) == K
    params = [p.clone() for p in program.load(state_of(model), K)]
    for k, p in enumerate(q[k] for q in params for k in range(K)):
        p += 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k))
    x = data([5] * K).x.view(K, 5, *IMAGE)
    leaves = [p.requires_grad_() for p in params]
    z, logits = program.features(leaves, x)
    assert torch.equal(logits, program.logits(leaves, x))
    got = torch.autograd.grad(z.square().sum() + logits.sum(), leaves)
    for k in range(K):
        with torch.no_grad():
            for p, q in zip(model.parameters(), params, strict=True):
                p.copy_(q[k])
        want_z = model[:-1](x[k])
        assert torch.allclose(z[k], want_z, rtol=1e-4, atol=1e-6)
        want = torch.autograd.grad(want_z.square().sum() + model(x[k]).sum(), list(model.parameters()))
        for g, w in zip(got, want, strict=True):
            assert torch.allclose(g[k], w, rtol=1e-3, atol=1e-4 * float(w.abs().max()))


def test_features_need_a_chain_that_ends_with_a_linear_layer() -> None:
    relu_last = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.ReLU())
    twice = nn.Sequential(Noisy(), nn.ReLU())
    for model, kind, x in ((relu_last, Layers, data([5]).x), (twice, Single, data([5], (3,)).x)):
        program, _ = program_of(model, 2)
        assert type(program) is kind
        with pytest.raises(ConfigError, match="MOON needs a chain of layers"):
            program.features(program.load(state_of(model), 1), x[None])


def test_features_leave_no_hook_behind() -> None:
    model = model_of("mlp")
    program = Single(model)
    params = program.load(state_of(model), 1)
    program.features(params, data([5]).x[None])
    with pytest.raises(RuntimeError):
        program.features(params, torch.zeros(1, 5, 3))
    assert not any(m._forward_pre_hooks for m in model.modules())


# --------------------------------------------------------------------------------------- personal parts


@pytest.mark.parametrize("name", ["2nn", "cnn"])
def test_each_client_of_a_stack_has_its_personal_part(name: str) -> None:
    model = model_of(name)
    program, _ = program_of(model, 3)
    received = state_of(model)
    head = program.names[-2:]
    own = [{n: received[n] + k for n in head} for k in (1, 2)]
    params = program.load(received, 3, [own[0], {}, own[1]])
    for k, extra in enumerate((1, 0, 2)):
        for n, p in zip(program.names, params, strict=True):
            want = received[n] + extra if n in head else received[n]
            assert np.array_equal(p[k].numpy(), want), (n, k)
    assert all(np.array_equal(received[n], a) for n, a in state_of(model).items())


def test_a_single_client_has_its_personal_parameters_and_buffers() -> None:
    model = model_of("cnn-bn")
    program = Single(model)
    received = state_of(model)
    own = {n: np.asarray(a + 1) for n, a in received.items() if n.startswith("1.")}
    params = program.load(received, 1, [own])
    (state,) = program.states(params)
    assert set(own) == {
        "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    assert list(state) == list(received)
    assert all(np.array_equal(a, own.get(n, received[n])) for n, a in state.items())
    (again,) = program.states(program.load(received, 1, [{}]))  # nothing of the client before is left
    assert all(np.array_equal(a, received[n]) for n, a in again.items())


def test_states_hold_the_given_parameters() -> None:
    model = model_of("cnn-bn")
    program = Single(model)
    params = program.load(state_of(model), 1)
    model[1].running_mean += 1  # type: ignore[index, operator]
    (state,) = program.states([p + 0.5 for p in params])
    want = state_of(model)
    assert list(state) == list(want)
    for n, a in state.items():
        assert np.array_equal(a, want[n] + 0.5 if n in program.names else want[n]), n


# ------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", ["mlp", "cnn-bn"])
def test_a_twin_model_trains_as_torch_does_it(name: str) -> None:
    model = build_model(name, IMAGE, 4, seed=2, twin=True)
    received, examples = state_of(model), data([12])
    (got,) = trained(Single(model), received, examples, "a", batch_size=0, epochs=[3])
    torchs = build_model(name, IMAGE, 4, seed=2, twin=True)
    for _ in range(3):
        leaves = list(torchs.parameters())
        grads = torch.autograd.grad(cross_entropy(torchs(examples.x), examples.y), leaves)
        with torch.no_grad():
            for p, g in zip(leaves, grads, strict=True):
                p -= 0.1 * g
    assert apart(got, state_of(torchs)) < 1e-6
    assert not any(np.array_equal(got[n], received[n]) for n in got)


def test_a_last_batch_of_one_example_is_trained_on() -> None:
    model = model_of("cnn-bn")
    received = state_of(model)
    (state,) = trained(Single(model), received, data([5]), "a", batch_size=4, epochs=[1])
    assert all(np.isfinite(a).all() for a in state.values())
    assert state["10.num_batches_tracked"] == 1
    assert not np.array_equal(state["12.weight"], received["12.weight"])


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.05},
        {"weight_decay": 0.1},
        {"local_steps": 7},
        {"batch_size": 100},
    ],
)
def test_a_cohort_trains_as_each_client_alone(name: str, knobs: dict[str, Any]) -> None:
    """Unequal clients: short last batches, clients that are done before others."""
    model = model_of(name)
    received = state_of(model)
    examples = data([13, 10, 8, 3])
    together, _ = program_of(model, 4)
    stacked = trained(together, received, examples, "abcd", **knobs)
    for k, client in enumerate("abcd"):
        (alone,) = trained(Single(model_of(name)), received, part(examples, k), client, **knobs)
        moved = {n: a - received[n] for n, a in alone.items()}
        assert apart({n: a - received[n] for n, a in stacked[k].items()}, moved) < 1e-3
        assert apart(stacked[k], alone) < 1e-5


@pytest.mark.parametrize("name", ["2nn", "logistic", "mlp"])
def test_the_stack_does_not_change_a_byte_of_a_client(name: str) -> None:
    """On one CPU thread: what keeps a run independent of which node trains whom."""
    model = model_of(name)
    received, examples = state_of(model), data([13, 10, 8, 8, 3])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        program, _ = program_of(model, 5)
        together = trained(program, received, examples, "abcde")
        for k, client in enumerate("abcde"):
            (alone,) = trained(program, received, part(examples, k), client)
            differ = [n for n in alone if not np.array_equal(alone[n], together[k][n])]
            assert differ == [], client
    finally:
        torch.set_num_threads(threads)


def test_stragglers_in_a_stack_stop_early() -> None:
    model = model_of("mlp")
    received, examples = state_of(model), data([8, 8, 8])
    program, _ = program_of(model, 3)
    epochs = [5, 2, 1]
    stacked = trained(program, received, examples, "abc", epochs=epochs)
    for k, client in enumerate("abc"):
        (alone,) = trained(program, received, part(examples, k), client, epochs=[epochs[k]])
        assert apart(stacked[k], alone) < 1e-6
    (longer,) = trained(program, received, part(examples, 2), "c", epochs=[2])
    assert apart(stacked[2], longer) > 1e-3


def test_a_client_that_diverges_does_not_touch_its_neighbours() -> None:
    model = model_of("mlp")
    received, examples = state_of(model), data([8, 8, 8])
    program, _ = program_of(model, 3)
    want = trained(program, received, examples, "abc")
    examples.x[8:16] = float("inf")
    got = trained(program, received, examples, "abc")
    assert not np.isfinite(got[1]["1.weight"]).all()
    assert all(np.array_equal(got[k][n], want[k][n]) for k in (0, 2) for n in want[k])


@pytest.mark.parametrize("sizes", [[9, 9, 9], [700, 9, 3]])
def test_full_gradient_of_a_cohort(sizes: list[int]) -> None:
    model = model_of("mlp")
    examples = data(sizes)
    program, _ = program_of(model, 3)
    losses, grads = full_gradient(task_of(program, state_of(model), examples, "abc"))
    for k in range(3):
        own = part(examples, k)
        want = cross_entropy(model(own.x), own.y)
        assert losses[k] == pytest.approx(float(want.detach()), rel=1e-5)
        for got, g in zip(grads, torch.autograd.grad(want, list(model.parameters())), strict=True):
            assert torch.allclose(got[k], g, rtol=1e-4, atol=1e-6)


def test_memory_is_cut_with_the_clients_that_are_done() -> None:
    class Watch(Solver):
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def begin(self, task: LocalTask) -> None:
            task.memory["h"] = [torch.zeros_like(p) for p in task.params]

        def terms(self, task: LocalTask) -> list[tuple[float, list[torch.Tensor]]]:
            self.seen.append((len(task.params[0]), len(task.memory["h"][0])))
            return [(1.0, task.memory["h"])]

    model = model_of("logistic")
    task = task_of(program_of(model, 2)[0], state_of(model), data([8, 4]), "ab", epochs=[1, 1])
    solver = Watch(Config(), {}, {}, [{}, {}])
    solver.begin(task)
    train(task, solver)
    assert solver.seen == [(2, 2), (1, 1)]
    assert len(task.params[0]) == len(task.memory["h"][0]) == 2


# ---------------------------------------------------------------------------------- the whole catalogue

SETTINGS = {
    "fraction_train": 1.0,
    "local_epochs": 3,
    "batch_size": 4,
    "learning_rate": 0.3,
    "stragglers": 0.5,
}


# Algorithms with the same solver, records and private part have the same client half; one stands for them.
HALVES = {
    (e.solver, e.private, *(r.name for r in (*e.down, *e.up, *e.keeps))): e.name
    for e in sorted(HORIZONTAL.values(), key=lambda e: e.name, reverse=True)
}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (n, m)
        for n in sorted(HALVES.values())
        for m in ("logistic", "mlp")
        if m == "mlp" or not ALGORITHMS[n].personal
    ],
)
def test_every_algorithm_stacked_is_what_it_is_alone(name: str, model: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(
        tmp_path / "owners.npz", algorithm=name, **SETTINGS, num_server_rounds=1, model=model
    )
    keys = read_by(keys | ACTIVE[name])
    alone, stacked = (play(keys | {"stack": stack}, nodes=1) for stack in (1, 0))
    got, want = stacked.arrays(1), alone.arrays(1)
    assert got.keys() == want.keys()
    if want:  # the server has a part of the model
        assert apart(got, want) < 1e-5
    for a, b in zip(stacked.keep.clients, alone.keep.clients, strict=True):
        assert a["metrics"] == pytest.approx(b["metrics"], rel=1e-4), a["name"]


def test_what_an_entry_says_cannot_be_stacked_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_owners(tmp_path / "owners.npz")
    node = open_node(read_config(owners_config(tmp_path / "owners.npz")), {})
    sizes: list[int] = []
    monkeypatch.setattr(
        "client_app.solvers.sgd.train",
        lambda task, solver: (sizes.append(task.clients), train(task, solver))[1],
    )
    names = ["anna", "ben", "cleo"]
    answer(node, order(node, names))
    monkeypatch.setitem(ALGORITHMS, "fedavg", replace(ALGORITHMS["fedavg"], batched=False))
    reply = read(answer(node, order(node, names)), names)
    assert sizes == [3, 1, 1, 1]
    assert sorted(reply.clients) == names


def test_one_bad_client_of_a_cohort_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cohort's failure is nobody's until each was tried alone."""
    write_owners(tmp_path / "owners.npz")
    node = open_node(read_config(owners_config(tmp_path / "owners.npz")), {})
    n_ben = len(node.data("ben", "train")[0])

    def failing(task: LocalTask, solver: Solver) -> list[dict[str, float]]:
        if n_ben in task.num_examples:
            raise MemoryError("too large")
        return train(task, solver)

    monkeypatch.setattr("client_app.solvers.sgd.train", failing)
    names = ["anna", "ben", "cleo"]
    assert all(len(node.data(c, "train")[0]) != n_ben for c in ("anna", "cleo"))
    reply = read(answer(node, order(node, names)), names)
    (failed,) = reply.failed
    assert failed.client == "ben"
    assert failed.got.startswith("MemoryError: too large (")
    assert sorted(reply.clients) == ["anna", "cleo"]


def test_full_batches_stack_clients_of_one_size_only(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", batch_size=0, num_server_rounds=2)
    alone, stacked = (play(keys | {"stack": stack}, nodes=1) for stack in (1, 0))
    assert far(stacked.linear(2), alone.linear(2)) < 1e-5

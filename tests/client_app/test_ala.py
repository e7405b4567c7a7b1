"""Adaptive local aggregation: by hand, against slow references, and in front of other solvers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from client_app.stages.ala import AdaptiveAggregation
from client_app.training.loop import Examples, LocalTask
from client_app.training.stacked import Perceptron
from server_app import app
from task.config.personal_sections import FedALAConfig
from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.models import build_model
from task.models.layer_split import top_parameters
from task.numerics import seeds
from task.numerics.arrays import Arrays, state_of, trainable_names
from task.numerics.seeds import rng_for
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.reference import fedala, mlp
from tests.reference.driver import Trace
from tests.reference.mlp import Data, Params
from tests.support.grid import LocalGrid
from tests.support.kept import kept_by
from tests.support.models import Bytes, Noisy, OneNumber, blobs, task_on
from tests.support.personal import (
    AFTER,
    BODY,
    HEAD,
    Case,
    case_of,
    close,
    keys_of,
    reference_of,
    score,
    small_bn,
    told,
)

# ------------------------------------------------------------------------------------ one client


def adapted(
    task: LocalTask,
    local: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
    started: bool = True,
    rng: Any = 0,
    **knobs: Any,
) -> tuple[Arrays, Arrays]:
    """Let a client's task begin from Theta^_i; return W_i and what the task then holds."""
    kept = {"local-model": {n: np.asarray(a, np.float32) for n, a in local.items()}}
    kept["ala-started"] = {"started": np.array(started, np.float32)}
    if weights is not None:
        kept["ala-weights"] = {n: np.asarray(a, np.float32) for n, a in weights.items()}
    config = FedALAConfig(**{"percent": 100.0} | knobs)
    top = top_parameters(task.program.names, config.layers)
    ala = AdaptiveAggregation(config, top, [kept], [np.random.default_rng(rng)], task.received)
    ala.apply(task)
    ((_, keep),) = ala.keep([(wire.ClientUpdate({}, {}), {})])
    return keep["ala-weights"], task.states()[0]


def small() -> nn.Module:
    return build_model("mlp", (4,), 3, seed=1)


def moved(model: nn.Module, by: float = 0.3) -> Arrays:
    """Return another model, near the first."""
    rng = np.random.default_rng(8)
    return {n: a + rng.normal(0, by, a.shape).astype(a.dtype) for n, a in state_of(model).items()}


def test_two_steps_of_w_by_hand() -> None:
    # Theta = 1, Theta_i = -1, W = 1/2: Theta^ = 0. Of (x, y) = (1, 1) dl/dw = -s(0) = -1/2:
    # W = 1/2 + 1/4 * 1/2 * 2 = 3/4, Theta^ = 1/2. Of (1, 0) dl/dw = s(1/2): W = 3/4 - 1/4 * s(1/2) * 2.
    task = task_on(OneNumber(1.0), torch.ones(2, 1), torch.tensor([1, 0]), batch_size=1)
    W, theta = adapted(task, {"w": [-1.0]}, {"w": [0.5]}, eta=0.25)
    want = 0.75 - 0.5 / (1 + math.exp(-0.5))
    assert W["w"] == pytest.approx([want])
    assert theta["w"] == pytest.approx([-1 + 2 * want])
    assert task.start[0].flatten().tolist() == theta["w"].tolist()  # what a proximal term refers to
    assert task.received["w"].tolist() == [1.0]


@pytest.mark.parametrize(("y", "W", "theta"), [(1, 1.0, 1.0), (0, 0.0, -1.0)])
def test_w_stays_between_0_and_1_by_hand(y: int, W: float, theta: float) -> None:
    # as above with one example and eta 1: 1/2 + 1/2 * 2 = 3/2 -> 1, and 1/2 - 1/2 * 2 = -1/2 -> 0
    task = task_on(OneNumber(1.0), torch.ones(1, 1), torch.tensor([y]), batch_size=1)
    got, state = adapted(task, {"w": [-1.0]}, {"w": [0.5]}, eta=1.0)
    assert (got["w"].tolist(), state["w"].tolist()) == ([W], [theta])


def test_without_a_step_theta_hat_is_one_of_the_two_to_the_bit() -> None:
    """old + (new - old) * W would be rounded."""
    theta, own = moved(small(), 0.1), moved(small(), 0.7)
    for fill, want in ((1.0, theta), (0.0, own)):
        weights = {n: np.full_like(theta[n], fill) for n in theta}
        model = small()
        model.load_state_dict({n: torch.tensor(a) for n, a in theta.items()})
        W, got = adapted(task_on(model, *blobs(9, 4, 3)), own, weights, layers=2, eta=0.0)
        assert all(np.array_equal(got[n], want[n]) for n in theta)
        assert all(np.array_equal(W[n], weights[n]) for n in theta)
    naive = own["1.weight"] + (theta["1.weight"] - own["1.weight"])
    assert not np.array_equal(naive, theta["1.weight"])


def test_where_the_client_has_the_global_model_nothing_changes() -> None:
    theta = state_of(small())
    weights = {n: np.full_like(theta[n], 0.3) for n in HEAD}
    W, got = adapted(task_on(small(), *blobs(9, 4, 3)), theta, weights)
    assert all(np.array_equal(W[n], weights[n]) for n in HEAD)
    assert all(np.array_equal(got[n], theta[n]) for n in theta)


def test_a_client_that_never_trained_has_the_initial_model_as_its_own() -> None:
    (x, y), rng = blobs(9, 4, 3), np.random.default_rng
    task, initial = task_on(small(), x, y, batch_size=0), moved(small())
    found = []
    for kept in ({}, {"local-model": initial}):
        ala = AdaptiveAggregation(FedALAConfig(percent=100.0), sorted(HEAD), [kept], [rng(0)], initial)
        ala.apply(task)
        ((_, keep),) = ala.keep([(wire.ClientUpdate({}, {}), {})])
        assert keep["ala-started"]["started"] == 1
        found.append((task.states()[0], keep["ala-weights"]))
        task.start_from([{}])
    for got, want in zip(*found, strict=True):
        assert all(np.array_equal(got[n], a) for n, a in want.items())
    (theta, W), _ = found
    assert min(W["3.weight"].min(), W["3.bias"].min()) < 0.99
    assert not np.array_equal(theta["3.weight"], task.received["3.weight"])
    assert np.array_equal(theta["1.weight"], task.received["1.weight"])


def test_where_the_initial_model_was_received_it_is_skipped_even_with_weights_left() -> None:
    task = task_on(small(), *blobs(9, 4, 3))
    kept = {"ala-weights": {n: np.zeros_like(task.received[n]) for n in HEAD}}
    ala = AdaptiveAggregation(FedALAConfig(), sorted(HEAD), [kept], [np.random.default_rng(0)], task.received)
    ala.apply(task)
    assert all(np.array_equal(a, task.received[n]) for n, a in task.states()[0].items())
    sent = {"3.bias": np.ones(3, np.float32)}
    ((_, keep),) = ala.keep([(wire.ClientUpdate({"arrays": sent}, {}), {"more": {}})])
    assert keep["local-model"] is sent
    assert keep["ala-started"]["started"] == 0
    assert list(keep) == ["more", "local-model", "ala-weights", "ala-started"]


ENDS = {
    "threshold": ({"eta": 0.2}, range(12, 100)),
    "window": ({"threshold": 1e9, "window": 4}, [5]),
    "max-epochs": ({"threshold": 1e-12, "max_epochs": 13}, [13]),
    "max-epochs before the window": ({"threshold": 1e9, "max_epochs": 3}, [3]),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_start_phase_ends_when_it_should(end: str) -> None:
    knobs, lengths = ENDS[end]
    own, (x, y) = moved(small(), 1.0), blobs(11, 4, 3)
    client = x.double().numpy(), y.numpy()
    w, local = (mlp.double(a) for a in (state_of(small()), own))
    theta, W, losses = fedala.adapt(w, local, None, client, np.arange(11), batch_size=4, **knobs)
    assert len(losses) in lengths
    got_W, got = adapted(task_on(small(), x, y, batch_size=4), own, started=False, **knobs)
    assert close(got, theta)
    assert close(got_W, W)
    shorter = fedala.adapt(
        w, local, None, client, np.arange(11), batch_size=4, **knobs | {"max_epochs": len(losses) - 1}
    )  # fmt: skip
    assert not close(got_W, shorter[1])
    # later it is one epoch, wherever the loss is
    _, W, losses = fedala.adapt(w, local, W, client, np.arange(11), batch_size=4, **knobs)
    assert len(losses) == 1
    assert close(adapted(task_on(small(), x, y, batch_size=4), own, got_W, **knobs)[0], W)


def test_the_slice_is_drawn_from_all_places() -> None:
    """5 % of 3 examples is one; a block may begin anywhere and never wraps; a sample has no row twice."""
    for percent, n, size in ((5.0, 3, 1), (50.0, 5, 2), (100.0, 4, 4), (80.0, 525, 420)):
        for sampling in ("block", "random"):
            config = FedALAConfig(percent=percent, sampling=sampling)
            rngs = [np.random.default_rng(i) for i in range(60)]
            ala = AdaptiveAggregation(config, [], [{}] * 60, rngs, {})
            drawn = [ala._slice(k, n).tolist() for k in range(60)]
            assert all(len(rows) == len({*rows}) == size for rows in drawn)
            assert all(min(rows) >= 0 and max(rows) < n for rows in drawn)
            if sampling == "block":
                assert all(rows == list(range(rows[0], rows[0] + size)) for rows in drawn)
                assert n > 9 or {rows[0] for rows in drawn} == {*range(n - size + 1)}


def pictures() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(
            *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
        )
        # more pictures than go through the lower layers at once
        return model, torch.rand(70, 1, 10, 10), torch.arange(70) % 3


def text() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    x = torch.arange(33).view(11, 3) % 5
    y = (x * 2 + 1) % 5
    y[3:8, 2] = -100
    return Bytes(), x, y


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]], int]] = {
    "convolutions": (pictures, 4),
    "batch norm": (lambda: (small_bn((4,), 3), *blobs(11, 4, 3)), 3),
    "no chain, dropout, a frozen layer": (lambda: (Noisy(), *blobs(11)), 2),
    "text": (text, 2),
}
LAYERS = [(kind, p) for kind, (_, most) in MODELS.items() for p in range(1, most + 1)]


@pytest.mark.parametrize(("kind", "layers"), LAYERS)
def test_any_model_is_cut_anywhere(kind: str, layers: int) -> None:
    """As when the whole model is evaluated with autograd for each minibatch."""
    torch.manual_seed(3)
    model, x, y = MODELS[kind][0]()
    theta, own = state_of(model), moved(model)
    top = top_parameters(trainable_names(model), layers)
    task = task_on(model, x, y, batch_size=4)
    task.program.train(True)
    before = torch.random.get_rng_state()
    got_W, got = adapted(task, own, started=False, layers=layers, eta=0.4, max_epochs=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    model.eval()
    new, old = ({n: torch.tensor(a[n]) for n in theta} for a in (theta, own))
    W = {n: torch.ones_like(new[n]) for n in top}
    for _ in range(3):
        for i in range(0, len(x), 4):
            mixed = {n: (old[n] + (new[n] - old[n]) * W[n]).requires_grad_() for n in top}
            loss = cross_entropy(functional_call(model, new | mixed, (x[i : i + 4],)), y[i : i + 4])
            for n, g in zip(top, torch.autograd.grad(loss, list(mixed.values())), strict=True):
                W[n] = (W[n] - 0.4 * g * (new[n] - old[n])).clamp(0, 1)
    for n in theta:
        if n in W:
            assert got_W[n] == pytest.approx(W[n].numpy(), abs=1e-5)
            assert got[n] == pytest.approx((old[n] + (new[n] - old[n]) * W[n]).numpy(), abs=1e-5)
        else:  # lower layers, frozen ones and running statistics are those received
            assert np.array_equal(got[n], theta[n])
    assert got_W.keys() == W.keys()
    assert any(np.abs(a - 1).max() > 0.01 for a in got_W.values())


def test_the_lower_layers_see_the_examples_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = pictures()
    seen = []
    model[3].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    adapted(task_on(model, x, y, batch_size=4), moved(model), started=False, threshold=1e-12, max_epochs=7)
    assert sum(seen) == 70


def test_in_a_cohort_every_client_gets_its_own() -> None:
    """The same bytes as alone, whoever else is there: one starts, one goes on, one is new."""
    model = small()
    x, y = blobs(24, 4, 3)
    sizes, own = [11, 8, 5], moved(model, 1.0)
    top = top_parameters(trainable_names(model), 2)
    kept: list[dict[str, Arrays]] = [{"local-model": own}, {"local-model": own}, {}]
    kept[1] |= {"ala-weights": {n: np.full_like(own[n], 0.5) for n in top}}
    kept[1] |= {"ala-started": {"started": np.ones((), np.float32)}}
    config, program = FedALAConfig(layers=2, percent=70.0, max_epochs=5), Perceptron(model)

    def begin(ks: Sequence[int]) -> tuple[list[Arrays], list[Any]]:
        rows = np.concatenate([np.arange(24)[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in ks])
        rngs = [np.random.default_rng(k) for k in ks]
        data = Examples(x[rows], y[rows], [sizes[k] for k in ks])
        task = LocalTask(program, state_of(model), data, [1] * len(ks), 0.1, TrainConfig(batch_size=4), rngs)
        ala = AdaptiveAggregation(config, top, [kept[k] for k in ks], rngs, task.received)
        ala.apply(task)
        return task.states(), [k for _, k in ala.keep([(wire.ClientUpdate({}, {}), {})] * len(ks))]

    together, kept_together = begin([0, 1, 2])
    for k in range(3):
        (alone,), (kept_alone,) = begin([k])
        assert all(np.array_equal(together[k][n], alone[n]) for n in alone)
        assert all(
            np.array_equal(kept_together[k]["ala-weights"][n], kept_alone["ala-weights"][n]) for n in top
        )
    assert [float(k["ala-started"]["started"]) for k in kept_together] == [1, 1, 0]
    assert all((kept_together[2]["ala-weights"][n] == 1).all() for n in top)


# ------------------------------------------------------------------------------------ whole runs

KNOBS: dict[str, Any] = {"layers": 1, "eta": 1.0, "threshold": 0.02, "window": 3, "max_epochs": 9}


def run_of(folder: Path, algorithm: str = "fedala", *, grid: Any = LocalGrid, **more: Any) -> Case:
    """Run the owners' federation for five rounds; keys of `FedALAConfig` go to their section."""
    given: dict[str, Any] = {"num_server_rounds": 5, "ala": algorithm != "fedala"}
    knobs = KNOBS | {"percent": 60.0}
    knobs |= {k: more.pop(k) for k in [*more] if k in FedALAConfig.__annotations__}
    given |= {f"fedala__{k}": v for k, v in knobs.items()}
    return case_of(folder, algorithm, grid=grid, **given | more)


def rows_of(case: Case) -> Callable[[int, str], np.ndarray]:
    """Return the slices of a run, from the seeds alone."""
    percent, sampling = (case.keys.get(f"fedala.{k}") for k in ("percent", "sampling"))

    def rows(t: int, k: str) -> np.ndarray:
        client = k.removesuffix(" again")
        n, rng = len(case.train[client][1]), rng_for(case.keys["seed"], seeds.ALA, t, client)
        size = max(math.floor(percent / 100 * n), 1)
        if sampling == "random":
            return rng.permutation(n)[:size]
        return np.arange(size) + int(rng.integers(0, n - size + 1))

    return rows


def trace_of(
    case: Case, cohorts: list[list[str]] | None = None, data: Data | None = None, **more: Any
) -> Trace:
    """Return the reference under a run's settings; `more` replaces some."""
    more = {"slice_rows": rows_of(case), "batch_size": case.keys["batch-size"]} | {"mu": 0.0} | more
    return reference_of(case, fedala.FedALA, data, **more)(cohorts or case.cohorts)


def kept(case: Case, field: str) -> dict[str, Arrays]:
    return kept_by(case.keys, case.played, field)


def check(case: Case, trace: Trace) -> None:
    """Hold a run to its reference: models, what is kept, and the clients' metrics before and after."""
    for t, want in enumerate(trace.models):
        assert close(case.played.arrays(t), want), t
    assert {*kept(case, "local-model")} == {*trace.own[-1]}
    for c, own in trace.own[-1].items():
        assert close(kept(case, "local-model")[c], own)
        W, started = kept(case, "ala-weights")[c], kept(case, "ala-started")[c]
        top = mlp.top(own, case.keys["fedala.layers"])
        ones = {n: np.ones_like(own[n]) for n in top}
        assert close(W, trace.weights[-1].get(c, ones), 1e-4)
        assert started["started"] == (c in trace.weights[-1])
    count = 0
    for t, c, got in case.lines("evaluate"):
        want = score(trace.personal[t][c], *case.test[c])
        assert (got["loss"], got["accuracy"]) == pytest.approx(want, rel=2e-4, abs=2e-5)
        count += 1
    assert count == 5 * 5
    for t, c, got in case.lines("train"):
        want = score(trace.own[t][c], *case.test[c])
        assert (got["test-loss"], got["test-accuracy"]) == pytest.approx(want, rel=2e-4, abs=2e-5)


CASES: dict[str, dict[str, Any]] = {
    "p 1, blocks": {},
    "p 2, a sample, alone": {"layers": 2, "sampling": "random", "stack": 1, "nodes": 2},
    "p 2, one batch": {"layers": 2, "batch_size": 0, "percent": 100.0},
    "p 1, a sample, stragglers": {"sampling": "random", "stragglers": 0.6, "window": 2, "eta": 0.3},
}


@pytest.mark.parametrize("which", CASES)
def test_fedala_is_the_reference_in_models_kept_state_and_metrics(which: str, tmp_path: Path) -> None:
    case = run_of(tmp_path, **CASES[which])
    # some sit out between two rounds that they take part in, and some come late
    assert not set(case.cohorts[0]) >= {c for cohort in case.cohorts for c in cohort}
    trace = trace_of(case)
    assert any(np.abs(a - 1).max() > 0.05 for W in trace.weights[-1].values() for a in W.values())
    check(case, trace)


def test_in_front_of_fedprox_the_term_pulls_to_theta_hat(tmp_path: Path) -> None:
    case = run_of(tmp_path, "fedprox", fedprox__mu=0.8)
    trace = trace_of(case, mu=0.8)
    check(case, trace)
    assert not close(trace.models[-1], trace_of(case).models[-1], 1e-3)


def test_in_front_of_fedavg_it_is_fedala(tmp_path: Path) -> None:
    assert told(run_of(tmp_path, "fedavg")) == told(run_of(tmp_path))


def test_in_front_of_fedrep_the_last_shared_layer_has_the_weights(tmp_path: Path) -> None:
    """With the head as the client has it, in W's steps and afterwards; W is of the body."""
    case = run_of(tmp_path, "fedrep", num_server_rounds=4)
    knobs = KNOBS | {"layers": 2}  # of the whole model; the head does not differ from itself
    body, rows, batches = {n: case.w0[n] for n in BODY}, rows_of(case), case.batches()
    heads, weights, sent = dict[str, Params](), dict[str, Params](), dict[str, Params]()
    for t, cohort in enumerate(case.cohorts, 1):
        for c in cohort:
            w = body | heads.get(c, {n: case.w0[n] for n in HEAD})
            if t > 1:
                local = sent.get(c, case.w0) | {n: w[n] for n in HEAD}
                w, weights[c], _ = fedala.adapt(
                    mlp.double(w), local, weights.get(c), case.train[c], rows(t, c), batch_size=4, **knobs
                )  # fmt: skip
            first, then = (mlp.passes(batches, t, c, *draws) for draws in ((0, 3), (3, 3)))
            lr = 0.2 * 0.9 ** (t - 1)
            w = mlp.sgd(w, case.train[c], first, lr, names=HEAD)
            w = mlp.sgd(w, case.train[c], then, lr, names=BODY)
            heads[c], sent[c] = {n: w[n] for n in HEAD}, {n: w[n] for n in BODY}
        body = mlp.average([sent[c] for c in cohort], [1] * len(cohort))
        assert close(case.played.arrays(t), body)
    assert len(weights) >= 3
    for c, W in weights.items():
        assert close(kept(case, "ala-weights")[c], {n: W[n] for n in BODY}, 1e-4)
        assert close(kept(case, "local-model")[c], sent[c])
        assert close(case.kept()[c], heads[c])


@pytest.mark.parametrize("knobs", [{"eta": 0.0}, {"layers": 0}])
@pytest.mark.parametrize(("algorithm", "plain"), [("fedala", "fedavg"), ("fedprox", "fedprox")])
def test_with_w_frozen_at_one_or_without_w_it_is_what_it_stands_before_to_the_bit(
    algorithm: str, plain: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"momentum": 0.4, "stragglers": 0.4, "nodes": 2, "num_server_rounds": 3}
    want = told(case_of(tmp_path, plain, **more))
    case = run_of(tmp_path, algorithm, **more, **knobs)
    assert told(case, hide=AFTER) == want
    assert len({*want[0]}) == 4
    started = {float(a["started"]) for a in kept(case, "ala-started").values()}
    assert started == ({0.0} if "layers" in knobs else {0.0, 1.0} & started)


def test_where_nothing_is_shared_there_is_nothing_to_mix(tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_server_rounds": 2, "personal__layers": 2}
    alone = case_of(tmp_path, "fedrep", **more)
    assert told(run_of(tmp_path, "fedrep", layers=0, **more)) == told(alone)


@pytest.mark.parametrize(
    ("algorithm", "layers", "most"), [("fedala", 3, 2), ("fedavg", 4, 2), ("fedrep", 2, 1)]
)
def test_more_layers_than_are_shared_are_refused_before_round_1(
    algorithm: str, layers: int, most: int, tmp_path: Path
) -> None:
    keys = keys_of(tmp_path, algorithm, ala=algorithm != "fedala", fedala__layers=layers)
    with pytest.raises(ConfigError, match=rf'"fedala\.layers": expected 0 to {most}, .*; got {layers}'):
        app.run(None, read_config(keys | {"runs-dir": str(tmp_path)}))  # type: ignore[arg-type]

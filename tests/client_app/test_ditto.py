"""Ditto and fine-tuning, whose clients have a whole model of their own, against slow references."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from task.models import MODELS, ModelSpec
from task.numerics import seeds
from task.numerics.seeds import rng_for
from tests.reference import fedala, mlp
from tests.reference.mlp import Params
from tests.support.models import Noisy
from tests.support.personal import (
    Case,
    Reference,
    case_of,
    close,
    score,
    small_bn,
    told,
)


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more models: one with running statistics, and one that also draws, with dropout."""
    for name, build in {"bn": small_bn, "noisy": lambda shape, classes: Noisy(shape[0], classes)}.items():
        spec = ModelSpec("", "features", build, lambda *_: True, frozenset({"features"}))
        monkeypatch.setitem(MODELS, name, spec)


# -------------------------------------------------------------------------------------------- Ditto


@pytest.mark.parametrize("model", ["mlp", "bn"])
def test_with_lambda_0_everybodys_own_model_is_the_one_of_local_training(model: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "model": model,
        "fraction_train": 1.0,
        "stragglers": 0.5,
        "momentum": 0.5,
        "weight_decay": 0.01,
    }
    alone = case_of(tmp_path, "local-only", **more)
    case = case_of(tmp_path, "ditto", ditto__lambda=0.0, **more)
    assert {*case.kept()} == {*alone.kept()} == {*case.played.names}
    for c, arrays in alone.kept().items():
        assert close(case.kept()[c], arrays, 1e-6)
    metrics = told(alone, hide={"train-loss"})[1]
    assert len(metrics) == 3 * (5 + 5)
    for got, want in zip(told(case, hide={"train-loss"})[1], metrics, strict=True):
        assert got["metrics"].keys() == want["metrics"].keys()
        for name, value in want["metrics"].items():
            assert got["metrics"][name] == pytest.approx(value, rel=1e-6)
        assert {k: v for k, v in got.items() if k != "metrics"} == {
            k: v for k, v in want.items() if k != "metrics"
        }


@pytest.mark.parametrize("model", ["mlp", "bn"])
def test_the_global_model_does_not_notice_the_clients_own(model: str, tmp_path: Path) -> None:
    """With full batches, which draw nothing, it is FedAvg to the bit, running statistics and loss, too."""
    more: dict[str, Any] = {"model": model, "batch_size": 0, "momentum": 0.5, "nodes": 2}
    plain, case = case_of(tmp_path, "fedavg", **more), case_of(tmp_path, "ditto", **more)
    assert told(case)[0] == told(plain)[0]
    assert len({*told(case)[0]}) == 4
    losses = [[(t, c, m["train-loss"]) for t, c, m in run.lines("train")] for run in (case, plain)]
    assert losses[0] == losses[1]
    assert not any(close(v, case.played.arrays(3), 1e-3) for v in case.kept().values())


def test_behind_ala_both_models_go_by_what_it_made_of_the_global_one(tmp_path: Path) -> None:
    """Theta_hat is where w_k starts, where v_k is held, and a new client's v_k."""
    knobs: dict[str, Any] = {"layers": 1, "eta": 1.0, "threshold": 0.01, "window": 3, "max_epochs": 7}
    told_knobs = {f"fedala__{k}": v for k, v in knobs.items()}
    case = case_of(tmp_path, "ditto", ala=True, ditto__lambda=0.7, personal__epochs=2, **told_knobs)
    sizes, batches, eta = {c: len(y) for c, (_, y) in case.train.items()}, case.batches(), 0.2
    w = mlp.double(case.w0)
    v, weights, sent = dict[str, Params](), dict[str, Params](), dict[str, Params]()
    for t, cohort in enumerate(case.cohorts, 1):
        for c in cohort:
            theta, n = w, sizes[c]
            if t > 1:  # a client that has never trained has the initial model; in round 1 all have it
                size = int(n * 0.8)
                offset = rng_for(case.keys["seed"], seeds.ALA, t, c).integers(n - size, endpoint=True)
                rows = np.arange(size) + int(offset)
                old = sent.get(c, mlp.double(case.w0))
                theta, weights[c], _ = fedala.adapt(
                    w, old, weights.get(c), case.train[c], rows, batch_size=4, **knobs
                )  # fmt: skip
                assert not close(theta, w, 1e-3)
            first, then = (mlp.passes(batches, t, c, *draws) for draws in ((0, 2), (2, 3)))
            lr = eta * 0.9 ** (t - 1)
            v[c] = mlp.sgd(v.get(c, theta), case.train[c], first, lr, mlp.proximal(theta, 0.7))
            sent[c] = mlp.sgd(theta, case.train[c], then, lr)
        w = mlp.average([sent[c] for c in cohort], [sizes[c] for c in cohort])
        assert close(case.played.arrays(t), w, 1e-4)
    for c, kept in case.kept().items():
        assert close(kept, v[c], 1e-4)


# ---------------------------------------------------------------------------------------- fine-tune


def fine_tune_of(case: Case) -> Reference:
    """FedAvg; after round t the received model is trained as round t + 1 would."""
    keys, more = case.keys, case.common
    mu, epochs = keys.get("fine-tune.mu", 0.0), keys.get("personal.epochs", 0) or more["epochs"]
    full = case.batches(stragglers=False)

    def trained(w: Params, t: int, c: str, batches: Any, epochs: int) -> Params:
        lr, steps = more["lr"] * more["lr_decay"] ** (t - 1), mlp.passes(batches, t, c, 0, epochs)
        return mlp.sgd(w, case.train[c], steps, lr, mlp.proximal(w, mu))

    def run(cohorts: list[list[str]]) -> Any:
        models = [mlp.double(case.w0)]
        for t, cohort in enumerate(cohorts, 1):
            local = [trained(models[-1], t, c, more["batches"], more["epochs"]) for c in cohort]
            models.append(mlp.average(local, [len(case.train[c][1]) for c in cohort]))
        personal = [{c: trained(w, t + 1, c, full, epochs) for c in case.train} for t, w in enumerate(models)]
        return SimpleNamespace(models=models, personal=personal)

    return run


@pytest.mark.parametrize(
    "knobs",
    [
        {"stragglers": 0.7, "fine_tune__mu": 0.5},
        {"stack": 1, "nodes": 2, "personal__epochs": 1},
        {"batch_size": 0, "personal__epochs": 5, "fine_tune__mu": 0.2},
    ],
)
def test_the_received_model_is_fine_tuned_before_it_is_measured(
    knobs: dict[str, Any], tmp_path: Path
) -> None:
    case = case_of(tmp_path, "fine-tune", **knobs)
    reference = fine_tune_of(case)
    trace = reference(case.cohorts)
    for t, want in enumerate(trace.models):
        assert close(case.played.arrays(t), want)
    for t, c, got in case.lines("evaluate"):
        wanted = score(trace.personal[t][c], *case.test[c])
        assert (got["loss"], got["accuracy"]) == pytest.approx(wanted, rel=2e-4, abs=2e-5)
    for t, c, got in case.lines("train"):  # after: as the round left it, which goes up
        w = reference([*case.cohorts[: t - 1], [c]]).models[t]
        assert got["test-loss"] == pytest.approx(score(w, *case.test[c])[0], rel=2e-4, abs=2e-5)
    assert not list(Path(case.keys["state-dir"]).rglob("*.safetensors"))


@pytest.mark.parametrize("model", ["mlp", "noisy"])
def test_fine_tuning_is_the_training_of_the_next_round_to_the_bit(model: str, tmp_path: Path) -> None:
    """Before round t + 1 and after it, also with dropout, running statistics and momentum; the rate falls."""
    more: dict[str, Any] = {"fraction_train": 1.0, "momentum": 0.5, "batch_size": 6, "stack": 1}
    case = case_of(tmp_path, "fine-tune", model=model, fine_tune__mu=0.1, **more)
    before = {(t + 1, c): (m["loss"], m["accuracy"]) for t, c, m in case.lines("evaluate")}
    after = {(t, c): (m["test-loss"], m["test-accuracy"]) for t, c, m in case.lines("train")}
    both = before.keys() & after.keys()
    assert len(both) == 2 * 5
    assert {k: before[k] for k in both} == {k: after[k] for k in both}


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_global_model_is_fedavgs_or_fedproxs(mu: float, tmp_path: Path) -> None:
    more: dict[str, Any] = {"stragglers": 0.5, "nodes": 2}
    prox: dict[str, Any] = {"fedprox__mu": mu}
    plain = case_of(tmp_path, "fedprox", **prox, **more) if mu else case_of(tmp_path, "fedavg", **more)
    case = case_of(tmp_path, "fine-tune", fine_tune__mu=mu, **more)
    assert told(case)[0] == told(plain)[0]
    train_losses = [[m["train-loss"] for _, _, m in run.lines("train")] for run in (case, plain)]
    assert train_losses[0] == train_losses[1]

"""Models of which a part stays at the client, and training alone or on pooled data, against slow references.

FedPer, FedRep, FedBN, FENDA, local-only and centralised run for real, over messages and kept files; the
references get the very cohorts, batches and splits of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from client_app.data.node import open_node
from client_app.work import train_clients
from task.catalogue.algorithms import ALGORITHMS
from task.errors import DataError
from task.models import MODELS, ModelSpec
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.reference import mlp
from tests.reference.mlp import Params
from tests.support.federation import batches_of, write_owners
from tests.support.personal import (
    CASES,
    HEAD,
    Case,
    Reference,
    case_of,
    check_metrics,
    close,
    keys_of,
    score,
    small_bn,
    told,
)


def test_fedrep_tells_the_loss_of_its_second_phase(tmp_path: Path) -> None:
    """With one full batch a phase: the loss at the new head on the received body."""
    case = case_of(tmp_path, "fedrep", batch_size=0, local_epochs=1, num_server_rounds=1)
    for _, c, got in case.lines("train"):
        g = mlp.gradient(mlp.double(case.w0), *case.train[c])
        headed = {n: a - 0.2 * g[n] if n in HEAD else a for n, a in case.w0.items()}
        assert got["train-loss"] == pytest.approx(mlp.loss_and_gradient(headed, *case.train[c])[0], rel=1e-5)


def test_with_private_layers_only_they_are_training_alone_to_the_bit(tmp_path: Path) -> None:
    alone = case_of(tmp_path, "local-only", nodes=2)
    for name in ("fedper", "fedrep"):
        private = case_of(tmp_path, name, personal__layers=2, nodes=2)
        assert told(private) == told(alone)
        for c, arrays in alone.kept().items():
            assert all(np.array_equal(private.kept()[c][n], a) for n, a in arrays.items())


# -------------------------------------------------------------------------------------------- FedBN

NORM = {f"2.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a model of one hidden layer with batch normalisation."""
    spec = ModelSpec("", "features", small_bn, lambda *_: True, frozenset({"features"}))
    monkeypatch.setitem(MODELS, "small-bn", spec)
    return "small-bn"


def tensors(w: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {n: torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else None) for n, a in w.items()}


def fedbn_of(case: Case) -> Reference:
    """FedBN by PyTorch in float64: plain SGD, all but the normalisation averaged, plainly."""
    more = case.common

    def run(cohorts: list[list[str]]) -> Any:
        model, w0 = small_bn((4,), 3).double(), tensors(case.w0)
        shared = {n: t for n, t in w0.items() if n not in NORM}
        own = {c: {n: t for n, t in w0.items() if n in NORM} for c in case.train}
        traced = [({n: t.numpy() for n, t in shared.items()}, {c: shared | own[c] for c in own})]
        for t, cohort in enumerate(cohorts, 1):
            sent = list[Params]()
            for c in cohort:
                model.load_state_dict(shared | own[c])
                model.train()
                x, y = torch.from_numpy(case.train[c][0]).double(), torch.from_numpy(case.train[c][1])
                for rows in mlp.passes(more["batches"], t, c, 0, more["epochs"]):
                    model.zero_grad()
                    cross_entropy(model(x[rows]), y[rows]).backward()
                    with torch.no_grad():
                        for p in model.parameters():
                            p -= more["lr"] * more["lr_decay"] ** (t - 1) * cast(torch.Tensor, p.grad)
                state = {n: p.detach().clone() for n, p in model.state_dict().items()}
                own[c] = {n: p for n, p in state.items() if n in NORM}
                sent.append({n: p.numpy() for n, p in state.items() if n not in NORM})
            shared = tensors(mlp.average(sent, [1] * len(cohort)))
            traced.append(({n: t.numpy() for n, t in shared.items()}, {c: shared | own[c] for c in own}))
        personal = [{c: {n: t.numpy() for n, t in w.items()} for c, w in of.items()} for _, of in traced]
        return SimpleNamespace(models=[w for w, _ in traced], personal=personal)

    return run


def bn_score(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    model = small_bn((4,), 3).double().eval()
    model.load_state_dict(tensors(w))
    with torch.no_grad():
        scores = model(torch.from_numpy(x).double()).numpy()
    return mlp.cross_entropy(scores, y)[0], float((scores.argmax(1) == y).mean())


@pytest.mark.parametrize("which", ["stragglers in a stack", "one batch"])
def test_normalisation_layers_and_their_statistics_are_each_clients_own(
    which: str, small: str, tmp_path: Path
) -> None:
    """One of anna's batches has a single example, by which no statistics move."""
    case = case_of(tmp_path, "fedbn", model=small, **CASES[which])
    reference = fedbn_of(case)
    trace, kept = reference(case.cohorts), case.kept()
    assert all(close(case.played.arrays(t), want) for t, want in enumerate(trace.models))
    assert set(kept) == {c for cohort in case.cohorts for c in cohort}
    assert all(close(arrays, {n: trace.personal[-1][c][n] for n in NORM}) for c, arrays in kept.items())
    check_metrics(case, trace, reference, bn_score)
    for name in NORM - {"2.num_batches_tracked"}:
        assert len({a[name].tobytes() for a in kept.values()}) == len(kept) > 3, name


# -------------------------------------------------------------------------------------- centralised


def test_centralised_is_fedavg_of_one_client_that_owns_all_rows(tmp_path: Path) -> None:
    """To the bit: another data set gives every training row, in the data set's order, to who was drawn."""
    case = case_of(tmp_path, "centralised", fraction_evaluate=1.0)
    drawn = [c for cohort in case.cohorts for c in cohort]
    assert [len(cohort) for cohort in case.cohorts] == [1] * 3
    node = open_node(read_config(case.keys), {})
    rows = np.unique(np.concatenate([node.clients.train(i) for i in range(5)]))
    assert len(rows) == sum(len(y) for _, y in case.train.values())
    x, y = node.dataset.inputs(rows).numpy(), node.dataset.targets(rows).numpy()
    steps = {c: batches_of(case.keys["seed"], [c], {c: len(rows)}, 4) for c in drawn}
    w = mlp.double(case.w0)
    for t, c in enumerate(drawn, 1):
        w = mlp.sgd(w, (x, y), [b for e in range(3) for b in steps[c](t, 0, e)], 0.2 * 0.9 ** (t - 1))
        assert close(case.played.arrays(t), w), t
        got = {k: m for r, k, m in case.lines("evaluate") if r == t}
        assert {*got} == {*case.played.names}
        for k, m in got.items():
            assert (m["loss"], m["accuracy"]) == pytest.approx(score(w, *case.test[k]), rel=2e-4, abs=2e-5)
        (after,) = (m for r, _, m in case.lines("train") if r == t)
        assert after["examples"] == len(rows)
        assert "test-accuracy" not in after  # it says how one client's own model does, which nobody has here


def test_a_client_with_data_of_its_own_cannot_train_on_everybodys(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = keys_of(tmp_path, "centralised", num_classes=3)
    node = open_node(read_config(keys), {"client-name": "zoe", "data-path": str(tmp_path / "owners.npz")})
    order = wire.TrainOrder(1, {wire.ARRAYS: dict(node.initial())}, {}, ("zoe",), (0,))
    ((client, outcome),) = train_clients(node, ALGORITHMS["centralised"], order)
    assert client == "zoe"
    assert isinstance(outcome, DataError)
    assert "centralised trains on the data of all clients" in str(outcome)

"""FedBABU's fine-tuning, and the arithmetic of later personalised algorithms by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers.feddbe import batch_mean
from client_app.solvers.fedphp import mmd
from client_app.solvers.fedrod import balanced
from client_app.solvers.knn_per import votes
from client_app.training.programs import Batch
from task.errors import ConfigError
from task.models import MODELS, ModelSpec, build_model
from task.models.layer_split import features_of, last_linear_path, private_names
from task.resolve.read import read_config
from task.tasks import check_goal
from tests.reference import apfl, fedem, fedphp, ifca, knn_per, mlp
from tests.reference import feddbe as dbe
from tests.reference.fedbabu import FedBABU
from tests.reference.mlp import Params
from tests.support.federation import play
from tests.support.kept import kept_by
from tests.support.personal import BODY, HEAD, Case, case_of, close, reference_of, score, small_bn, told


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------ FedBABU


def tuned(case: Case, w: Params, t: int, c: str, names: set[str], first: int = 0) -> Params:
    """Return a model after fine-tuning for two epochs as of round t, with the draws from `first` on."""
    more = case.common
    batches = mlp.passes(case.batches(stragglers=False), t, c, first, 2)
    return mlp.sgd(w, case.train[c], batches, more["lr"] * more["lr_decay"] ** (t - 1), names=names)


@pytest.mark.parametrize(("tune", "names"), [("all", BODY | HEAD), ("head", HEAD), ("none", set())])
def test_fedbabu_is_fine_tuned_before_it_is_measured(tune: str, names: set[str], tmp_path: Path) -> None:
    case = case_of(tmp_path, "fedbabu", personal__epochs=2, fedbabu__tune=tune)
    reference = reference_of(case, FedBABU)
    trace = reference(case.cohorts)
    for t, c, got in case.lines("evaluate"):
        want = tuned(case, trace.personal[t][c], t + 1, c, names)
        assert got["loss"] == pytest.approx(score(want, *case.test[c])[0], rel=2e-4, abs=2e-5)
    for t, c, got in case.lines("train"):  # from what was trained, with the batches that are drawn next
        alone = reference([*case.cohorts[: t - 1], [c]]).personal[t][c]
        want = tuned(case, alone, t, c, names, first=case.common["epochs"])
        assert got["test-loss"] == pytest.approx(score(want, *case.test[c])[0], rel=2e-4, abs=2e-5)
    assert set(case.played.arrays(3)) == BODY
    assert not list(Path(case.keys["state-dir"]).rglob("*.safetensors"))


# ---------------------------------------------------------------------------------------- LG-FedAvg


def test_lg_fedavg_keeps_what_fedper_shares() -> None:
    model = build_model("mlp", (4,), 3, 1)
    for layers in (0, 1, 2):
        body, head = (private_names(model, part, layers) for part in ("body", "head"))
        assert not body & head
        assert body | head == set(model.state_dict())
    with pytest.raises(ConfigError, match=r'"lg-fedavg\.layers": expected 0 to 2'):
        private_names(model, "body", 3)


def test_lg_fedavg_of_all_layers_is_fedavg_and_of_none_is_training_alone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_server_rounds": 2, "nodes": 2}
    plain = told(case_of(tmp_path, "fedavg", **more))
    case = case_of(tmp_path, "lg-fedavg", lg_fedavg__layers=2, **more)
    assert told(case)[0] == plain[0]
    alone = case_of(tmp_path, "local-only", **more)
    none = case_of(tmp_path, "lg-fedavg", lg_fedavg__layers=0, **more)
    assert told(none) == told(alone)


# ------------------------------------------------------------------------------------------- FedRoD


def test_the_balanced_softmax_by_hand() -> None:
    """Logits (0, 0), counts (3, 1), label 1: p = (3/4, 1/4). A class without examples has no probability."""
    logits = tensor([[0.0, 0.0, 5.0]]).requires_grad_()
    scores = balanced(logits, tensor([3.0, 1.0, 0.0]).log(), 1.0)
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(1.386294, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([0.75, -0.75, 0.0])]


# --------------------------------------------------------------------------------------------- APFL


def test_apfl_by_hand() -> None:
    """l = (theta - 2)^2 / 2, w = 0, v = 1, alpha = 1/2, rate 0.1."""

    def slope(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return {"theta": w["theta"] - 2.0}

    nothing = np.zeros(0)
    at = lambda value: {"theta": np.array([value])}  # noqa: E731
    w, v, alpha = apfl.step(at(0.0), at(1.0), 0.5, (nothing, nothing), 0.1, slope, True)
    assert (w["theta"][0], v["theta"][0]) == (pytest.approx(0.2), pytest.approx(1.07))
    assert alpha == pytest.approx(0.6218)
    assert apfl.mix(at(1.0), w, 0.5)["theta"][0] == pytest.approx(0.6)


def test_a_client_that_is_new_uses_the_global_model(tmp_path: Path) -> None:
    """As v_k = w^t, whatever alpha is; and one that trained has weights of its own."""
    case = case_of(tmp_path, "apfl", num_server_rounds=1, fraction_train=0.2, apfl__alpha=0.7)
    (trained,) = case.cohorts[0]
    for t, c, got in case.lines("evaluate"):
        same = score(dict(case.played.arrays(t)), *case.test[c])[0] == pytest.approx(got["loss"], rel=1e-5)
        assert same or c == trained
    (alpha,) = kept_by(case.keys, case.played, "alpha").values()
    assert 0.0 <= alpha["one"][0] <= 1.0


def test_the_running_statistics_of_the_mixture_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the global model is FedAvg's to the bit, buffers too, and the kept ones are others."""
    spec = ModelSpec("", "features", small_bn, lambda *_: True, frozenset({"features"}))
    monkeypatch.setitem(MODELS, "bn", spec)
    more: dict[str, Any] = {"model": "bn", "num_server_rounds": 2, "momentum": 0.5}
    case, plain = case_of(tmp_path, "apfl", **more), case_of(tmp_path, "fedavg", **more)
    assert told(case)[0] == told(plain)[0]
    for kept in case.kept().values():
        assert (kept["2.running_mean"] != case.played.arrays(2)["2.running_mean"]).any()


# ------------------------------------------------------------------------------------------- FedPHP


def test_the_discrepancy_of_features_by_hand() -> None:
    """One feature each, 0 against any other: 10 - 2 (e^-4 + e^-2 + e^-1 + e^-1/2 + e^-1/4)."""
    want = 10 - 2 * sum(math.exp(-1 / s) for s in (0.25, 0.5, 1, 2, 4))
    assert want == pytest.approx(6.186276, abs=1e-6)
    rows = torch.ones(1, 1, dtype=torch.bool)
    assert mmd(tensor([[[0.0]]]), tensor([[[3.0]]]), rows).tolist() == [pytest.approx(want)]
    assert mmd(tensor([[[2.0]]]), tensor([[[2.0]]]), rows).tolist() == [0.0]
    assert fedphp.mmd(np.array([[0.0]]), np.array([[3.0]]))[0] == pytest.approx(want)
    # a row that fills up the batch does not count
    more = mmd(tensor([[[0.0], [9.0]]]), tensor([[[3.0], [7.0]]]), torch.tensor([[True, False]]))
    assert more.tolist() == [pytest.approx(want)]


def test_the_inherited_model_is_a_mean(tmp_path: Path) -> None:
    """Of two rounds, C T = 2: mu is 0 in the first, so that p_k = w_k, and 0.9 / 2 in the second."""
    more: dict[str, Any] = {"fraction_train": 1.0, "fedphp__lambda": 0.0}  # so that w_k does not know p_k
    two, one = (case_of(tmp_path, "fedphp", num_server_rounds=t, **more) for t in (2, 1))
    last = case_of(tmp_path, "fedphp", num_server_rounds=2, fedphp__mu=0.0, **more)  # p_k = w_k
    rounds = kept_by(two.keys, two.played, "rounds")
    assert {a["one"][0] for a in rounds.values()} == {2.0}
    for c, p in two.kept().items():
        first, second = one.kept()[c], last.kept()[c]
        assert close(p, {n: 0.45 * a + 0.55 * second[n] for n, a in first.items()})


# ------------------------------------------------------------------------------------------- FedDBE


def test_feddbe_by_hand() -> None:
    """W = I, z = (1, 0), y = 1, rate 0.1: u moves by 0.1 (p - onehot), p = softmax(1, 0)."""
    w = {"1.weight": np.eye(2), "1.bias": np.zeros(2), "3.weight": np.eye(2), "3.bias": np.zeros(2)}
    x, y = np.array([[1.0, 0.0]]), np.array([1])
    _, u, r = dbe.step(w, np.zeros(2), np.zeros(2), np.zeros(2), x, y, 0.1, 0.0, 1.0)
    assert u.tolist() == [pytest.approx(-0.0731059, abs=1e-7), pytest.approx(0.0731059, abs=1e-7)]
    assert r.tolist() == [1.0, 0.0]  # kappa/2 mean r^2 = kappa/4


def test_the_mean_of_features_leaves_filled_rows_out() -> None:
    batch = Batch(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]), torch.ones(1), padded=True)
    z = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]]])
    assert batch_mean(z, batch).tolist() == [[2.0, 3.0]]


# ------------------------------------------------------------------------------------------ kNN-Per


def test_the_vote_of_neighbours_by_hand() -> None:
    """d = 1, stored 0 of class A and 1 of class B, query 0, k = 2: weights 1 and e^-1."""
    p = votes(tensor([[0.0]]), tensor([[0.0], [1.0]]), torch.tensor([0, 1]), 2, 2, 1.0)
    assert p.tolist() == [pytest.approx([0.731059, 0.268941], abs=1e-6)]
    nearest = votes(tensor([[0.0]]), tensor([[0.0], [1.0]]), torch.tensor([0, 1]), 2, 1, 1.0)
    assert nearest.tolist() == [[1.0, 0.0]]
    rng = np.random.default_rng(1)
    z, stored, y = rng.normal(size=(3, 4)), rng.normal(size=(9, 4)), rng.integers(0, 3, 9)
    got = votes(tensor(z), tensor(stored), torch.tensor(y), 3, 5, 0.5)
    assert got.numpy() == pytest.approx(knn_per.votes(z, stored, y, 3, 5, 0.5))


def test_without_weight_the_model_is_fedavgs_own(tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_server_rounds": 1}
    case, plain = (
        case_of(tmp_path, "knn-per", knn_per__lambda=0.0, **more),
        case_of(tmp_path, "fedavg", **more),
    )
    assert list(case.lines("evaluate")) == list(plain.lines("evaluate"))


def test_a_model_without_a_last_linear_layer_is_refused() -> None:
    model = build_model("mlp", (4,), 3, 1)
    assert last_linear_path(model, torch.zeros(1, 4), "kNN-Per") == "3"
    z, outputs = features_of(model, torch.zeros(2, 4), "kNN-Per")
    assert (z.shape[0], outputs.shape) == (2, (2, 3))
    with pytest.raises(ConfigError, match="kNN-Per needs a chain of layers that ends with a linear one"):
        last_linear_path(torch.nn.Sequential(model, torch.nn.Tanh()), torch.zeros(1, 4), "kNN-Per")


def test_fedrod_needs_the_softmax_that_it_balances() -> None:
    keys = {"algorithm": "fedrod", "loss": "label-smoothing"}
    with pytest.raises(ConfigError, match=r'"loss": FedRoD .* expected "cross-entropy", or fedrod.gamma=0'):
        check_goal(read_config(keys), "classification")
    check_goal(read_config(keys | {"fedrod.gamma": 0.0}), "classification")


def test_they_need_classes() -> None:
    for name in ("fedem", "fedphp", "fedrod", "knn-per"):
        with pytest.raises(ConfigError, match=r'"task": .*; expected classification or language'):
            check_goal(read_config({"algorithm": name}), "regression")


# ------------------------------------------------------------------------------------ several models


def test_the_posterior_of_components_by_hand() -> None:
    """pi = (1/2, 1/2), losses (0, ln 3): q = (3/4, 1/4)."""
    q = fedem.posterior(np.array([0.5, 0.5]), np.array([[0.0, math.log(3)]]))
    assert q.tolist() == [pytest.approx([0.75, 0.25])]


def test_a_client_takes_the_first_of_models_that_are_as_good() -> None:
    w = {"1.weight": np.zeros((2, 1)), "1.bias": np.zeros(2)}
    assert ifca.choice([w, dict(w)], np.ones((3, 1)), np.array([0, 1, 1])) == 0


def test_ifca_finds_the_clients_whose_images_are_inverted(tmp_path: Path) -> None:
    """Every second client has inverted images: two clusters, and each model trains on one of them alone."""
    keys = {
        "dataset": "digits", "partition": "iid", "num-clients": 8, "feature-skew": "invert", "model": "mlp",
        "algorithm": "ifca", "num-server-rounds": 4, "fraction-train": 1.0, "local-test-fraction": 0.2,
        "batch-size": 20, "learning-rate": 0.1, "seed": 1, "state-dir": str(tmp_path),
    }  # fmt: skip
    played = play(keys, nodes=2)
    last = [c for c in played.keep.clients if c["round"] == 4 and c["phase"] == "train"]
    found = {c["name"]: c["metrics"]["cluster"] for c in last}
    odd = {found[f"client-{k}"] for k in (1, 3, 5, 7)}
    even = {found[f"client-{k}"] for k in (0, 2, 4, 6)}
    assert len(odd) == len(even) == 1
    assert odd != even
    assert played.rows[4]["metrics"] == {"cluster-0": 4, "cluster-1": 4}


@pytest.mark.parametrize("name", ["ifca", "fedem"])
def test_one_model_is_fedavg(name: str, tmp_path: Path) -> None:
    key = {"ifca": "ifca__clusters", "fedem": "fedem__components"}[name]
    more: dict[str, Any] = {"num_server_rounds": 2, "stragglers": 0.5}
    case, plain = case_of(tmp_path, name, **{key: 1}, **more), case_of(tmp_path, "fedavg", **more)
    for t in (1, 2):
        assert close(case.played.arrays(t), plain.played.arrays(t), 1e-6)
    assert [m["loss"] for _, _, m in case.lines("evaluate")] == pytest.approx(
        [m["loss"] for _, _, m in plain.lines("evaluate")], rel=1e-5
    )

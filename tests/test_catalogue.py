"""Every algorithm of the catalogue, free to join: registries, neutral values, order, where it ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.solvers import SOLVERS
from client_app.solvers.sgd import Solver
from strategies import STRATEGIES, Strategy
from task.config.read import fuse, knobs, read_config
from task.numerics.arrays import Arrays
from task.numerics.reduce import REDUCTIONS
from task.spec.algorithms import ALGORITHMS
from task.spec.entry import MEASURED, MODEL_UP, evaluation_of
from task.wire.messages import ANSWERED, CONFIG, FAILED, METRICS
from task.wire.registration import REGISTER
from tests.reference.fedsgd import loss_and_gradient
from tests.support import federation
from tests.support.federation import SIZES, Played, far, owners_config, read_by, write_owners

NAMES = sorted(ALGORITHMS)
OWN = [name for name in NAMES if ALGORITHMS[name].personal]  # the models are the clients' own
ONE = [name for name in NAMES if name not in OWN]  # one global model

# At these values an algorithm is not FedAvg: every knob of its own does something.
ACTIVE: dict[str, dict[str, Any]] = {
    # With a budget that lasts tau falls to 1 where clients differ and rises to its cap where they do not.
    "apple": {"apple.dr-lr": 0.05},
    "centralised": {},
    "ditto": {"ditto.lambda": 0.5},
    "ensemble": {},
    "fedala": {"fedala.percent": 60.0, "fedala.max-epochs": 12},
    "fedamp": {"fedamp.sigma": 1.0},
    "fedbn": {"model": "mlp-bn"},
    "fedfomo": {"fedfomo.download": 2},
    "fedper": {},
    "fedrep": {},
    "fenda": {},
    "fine-tune": {"fine-tune.mu": 0.5},
    "local-only": {},
    "moon": {"moon.mu": 5.0},
    "per-fedavg": {"per-fedavg.alpha": 0.1},
    "pfedme": {"pfedme.lambda": 2.0, "pfedme.inner-lr": 0.1},
    "adaptive-tau": {"adaptive-tau.budget": 1e6, "adaptive-tau.tau-max": 7},
    "bulyan": {"robust.byzantine": 0.15},
    "fedadagrad": {"fedopt.server-lr": 1.0, "fedopt.tau": 0.3, "fedopt.adagrad-beta1": 0.4},
    "fedadam": {"fedopt.server-lr": 0.5, "fedopt.tau": 0.3, "fedopt.beta1": 0.5, "fedopt.beta2": 0.9},
    "fedatt": {"fedatt.temperature": 0.5},
    "fedavg": {},
    "fedavgm": {"fedavgm.momentum": 0.5},
    "feddc": {"feddc.alpha": 0.1},
    "feddyn": {"feddyn.alpha": 0.2},
    "fedexp": {"fedexp.epsilon": 1e-4},
    "fednova": {"fednova.mu": 0.5},
    "fedprox": {"fedprox.mu": 0.9, "fedprox.adaptive": True},
    "fedsgd": {},
    "fedyogi": {"fedopt.server-lr": 0.5, "fedopt.tau": 0.3, "fedopt.beta1": 0.5, "fedopt.beta2": 0.9},
    "fsvrg": {},
    "fsvrg-sparse": {},
    "geometric-median": {"robust.nu": 1e-3, "robust.iterations": 20, "robust.weighted": True},
    "krum": {"robust.byzantine": 0.2},
    "median": {},
    "multi-krum": {"robust.byzantine": 0.2, "robust.m": 2},
    "qfedavg": {"qffl.q": 2.0},
    "qfedsgd": {"qffl.q": 2.0},
    "scaffold": {"scaffold.server-lr": 0.9},
    "trimmed-mean": {"robust.trim": 0.34},
}
SETTINGS = {"fraction_train": 0.6, "local_epochs": 3, "batch_size": 4, "lr_decay": 0.8, "learning_rate": 0.3}


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


# ------------------------------------------------------------------------------------ registries


def test_catalogue_and_registries_agree_and_nothing_is_unused() -> None:
    assert {entry.name for entry in ALGORITHMS.values()} == set(ALGORITHMS)
    contracts = [
        *ALGORITHMS.values(),
        *(phase for entry in ALGORITHMS.values() for phase in entry.phases.values()),
    ]
    assert {entry.rule for entry in contracts} == set(STRATEGIES)
    assert {entry.solver for entry in contracts} == set(SOLVERS)
    assert set(ACTIVE) == set(ALGORITHMS)  # whoever adds an algorithm says here when it is not FedAvg


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_well_formed(name: str) -> None:
    entry = ALGORITHMS[name]
    rule = STRATEGIES[entry.rule]
    assert issubclass(rule, Strategy)
    assert ALGORITHMS[rule.rule_type.algorithm].rule == entry.rule
    assert issubclass(SOLVERS[entry.solver], Solver)
    reserved = {CONFIG, METRICS, ANSWERED, FAILED, REGISTER}
    for fields in (entry.down, entry.up, entry.keeps):
        names = [f.name for f in fields]
        assert len(set(names)) == len(names)
        assert not set(names) & reserved
        assert all("." not in n and f.meaning for n, f in zip(names, fields, strict=True))
    assert all(f.reduce in REDUCTIONS for f in entry.up)
    assert re.fullmatch(r"\d{4}\.\d{5}", entry.paper.arxiv)
    assert entry.paper.authors
    assert entry.paper.where
    assert bool(entry.newcomer) == (entry.personal or name == "moon")
    assert entry.personal or not (entry.private or entry.pooled or "ala" in entry.stages)


@pytest.mark.parametrize("name", NAMES)
def test_neutral_and_active_values_are_run_config_keys(name: str) -> None:
    for keys in (ALGORITHMS[name].neutral, ACTIVE[name]):
        assert set(keys) <= {k.key for k in knobs()}
        read_config(fuse(keys, {"algorithm": name})[0])


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_takes_the_model_down_and_metrics_up(name: str) -> None:
    entry = evaluation_of(ALGORITHMS[name])
    alone = {"apple", "fedamp", "fedfomo", "local-only"}  # clients measure what they kept
    want = [] if name in alone else ["models"] if name == "ensemble" else ["arrays"]
    assert [f.name for f in entry.down] == want
    assert (entry.down_scalars, entry.up, entry.up_scalars) == ((), (), MEASURED)
    assert entry.keeps == (ALGORITHMS[name].keeps if name in OWN else ())


# --------------------------------------------------------------------------------------- neutral


def play(keys: dict[str, Any], **more: Any) -> Played:
    """Play a run of those of the keys that it reads: they are meant for all algorithms."""
    return federation.play(read_by(keys), **more)


def same(one: Played, other: Played, exact: bool) -> list[bool]:
    """Compare the models of all rounds."""
    rounds = range(1, len(one.rows))
    if exact:
        return [one.rows[t]["model_sha256"] == other.rows[t]["model_sha256"] for t in rounds]
    return [alike(one.arrays(t), other.arrays(t)) for t in rounds]


def alike(one: Arrays, other: Arrays) -> bool:
    """Return whether two models are the same but for roundings."""
    if one.keys() != other.keys():
        return False
    return far(tuple(one.values()), tuple(other.values())) < 1e-6  # type: ignore[arg-type]


def keys_of(name: str, owners: Path, **more: Any) -> dict[str, Any]:
    """Return the config of a run; a model with two layers where a part of it may stay at the clients."""
    model = "mlp" if ALGORITHMS[name].personal or name == "moon" else "logistic"
    return owners_config(owners, algorithm=name, **SETTINGS, model=model, **more)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"fedavg"}))
def test_at_its_neutral_value_it_is_fedavg_and_else_it_is_not(name: str, owners: Path) -> None:
    neutral = dict(ALGORITHMS[name].neutral)
    reason = ALGORITHMS[name].no_neutral
    assert bool(neutral) != bool(reason), "say in the catalogue at which values the algorithm is FedAvg"
    shared = {k: v for k, v in neutral.items() if "." not in k}  # keys that FedAvg has too
    keys = keys_of(name, owners) | {"algorithm": "fedavg"}
    # A gradient step is rounded in another place; so is what only cancels at keys that FedAvg has too.
    exact = MODEL_UP in ALGORITHMS[name].up and not shared
    like = keys
    if ALGORITHMS[name].equal_sizes:
        write_owners(owners.with_name("equal.npz"), dict.fromkeys(SIZES, 8))
        like = keys | {"data-path": str(owners.with_name("equal.npz"))}
    if neutral:
        runs = [play(like | {"algorithm": name} | neutral), play(like | {"algorithm": "fedavg"} | shared)]
        assert runs[0].selected() == runs[1].selected()
        assert all(same(*runs, exact))
    runs = [play(keys | {"algorithm": name} | ACTIVE[name]), play(keys | {"algorithm": "fedavg"})]
    equal = same(*runs, exact=False)
    assert not any(equal[1:])  # one that begins from what a client kept does so from its second round on
    assert not equal[0] or name in ("fedala", "moon")


# ----------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("name", NAMES)
def test_neither_the_spread_over_nodes_nor_the_order_of_replies_changes_a_byte(
    name: str, owners: Path
) -> None:
    keys = keys_of(name, owners, stragglers=0.4, fraction_evaluate=0.7, local_test_fraction=0.3)

    def rows(nodes: int, seed: int) -> list[dict[str, Any]]:
        # what a node answers for several clients is merged, so bytes differ; nothing else may
        clock = {"seconds", "bytes_up", "bytes_down"}
        played = play(keys | ACTIVE[name], nodes=nodes, seed=seed)
        return [{k: v for k, v in row.items() if k not in clock} for row in played.rows]

    want = rows(1, 0)
    assert all(row["quarantined"] == [] and row["client_accuracy"] is not None for row in want[1:])
    for nodes in (1, 2, 3):
        for seed in (1, 2):
            assert rows(nodes, seed) == want, (nodes, seed)


# ----------------------------------------------------------------------------------- fixed point


def convex(path: Path, identical: bool, clients: str = "abc") -> tuple[np.ndarray, np.ndarray]:
    """Write clients of a logistic problem with a finite optimum; return the pooled data."""
    rng, K = np.random.default_rng(2), len(clients)
    x = rng.normal(size=(30 * K, 2)).astype(np.float32)
    y = np.argmax(x @ [[1.0, -1.0], [0.3, 0.0]] + rng.gumbel(size=(30 * K, 2)), axis=1)
    client = np.repeat(list(clients), 30)
    if identical:
        x, y = np.tile(x[:30], (K, 1)), np.tile(y[:30], K)
    np.savez(path, x=x, y=y, client=client, x_test=x[:2], y_test=y[:2])
    return x, y


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(("identical", "epochs"), [(False, 1), (True, 3)])
def test_it_converges_to_the_optimum_of_the_pooled_data(
    name: str, identical: bool, epochs: int, tmp_path: Path
) -> None:
    """Full batches, everybody takes part: with E = 1 every one of them is gradient descent on the pooled
    data; with identical clients more local steps do not change where it ends. A biased one, so declared,
    ends elsewhere if clients differ.
    """
    from sklearn.linear_model import LogisticRegression

    clients = "abcdefg" if ALGORITHMS[name].withstands else "abc"  # enough for some to be malicious
    x, y = convex(tmp_path / "c.npz", identical, clients)
    played = play(
        owners_config(
            tmp_path / "c.npz", algorithm=name, batch_size=0, local_epochs=epochs, learning_rate=2.0,
            num_server_rounds=60,
        )
        | ACTIVE[name],
        nodes=1,
    )  # fmt: skip
    W, b = played.linear(60)
    loss, (g_W, g_b) = loss_and_gradient((W, b), x, y)
    if ALGORITHMS[name].biased and not identical:
        assert (far(played.linear(59), (W, b)) < 1e-4) == ALGORITHMS[name].settles  # it did end
        assert loss < 0.95 * loss_and_gradient(played.linear(0), x, y)[0]
        assert max(np.abs(g_W).max(), np.abs(g_b).max()) > 1e-3
        return
    assert max(np.abs(g_W).max(), np.abs(g_b).max()) < 1e-5
    oracle = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(x.astype(np.float64), y)
    # logits are free up to a constant: compare their difference
    assert W[:, 1] - W[:, 0] == pytest.approx(oracle.coef_[0], rel=1e-3)
    assert b[1] - b[0] == pytest.approx(oracle.intercept_[0], rel=1e-3)
    assert loss < loss_and_gradient(played.linear(0), x, y)[0]


# ---------------------------------------------------------------------------------------- golden

# Two clients with 3 and 4 examples of 2 features and 2 classes, two rounds, E = 2, B = 2, eta = 0.5. The
# references agree with these runs (tests/strategies); the figures are pinned so that nothing drifts.
GOLDEN: dict[str, tuple[list[list[float]], list[float]]] = {
    # of seven clients with one example each, so that one may be malicious
    "bulyan": ([[-0.273364, 0.439015], [-0.3084, 0.107397]], [-0.640834, 0.621148]),
    "geometric-median": ([[0.21658, -0.050928], [-0.432558, 0.231554]], [-0.321375, 0.301689]),
    "krum": ([[-0.163923, 0.329574], [-0.643555, 0.442551]], [-0.584926, 0.56524]),
    "median": ([[0.400232, -0.23458], [-0.198959, -0.002044]], [-0.588952, 0.569266]),
    "multi-krum": ([[-0.313429, 0.47908], [-0.581298, 0.380294]], [-0.522669, 0.502983]),
    "trimmed-mean": ([[0.269101, -0.10345], [-0.348938, 0.147934]], [-0.29431, 0.274624]),
    # of two clients
    "adaptive-tau": ([[0.119817, 0.045834], [-0.171207, -0.029797]], [-0.273294, 0.253608]),
    "fsvrg": ([[0.402782, -0.237131], [-0.432163, 0.231159]], [-0.206611, 0.186925]),
    "fsvrg-sparse": ([[0.404634, -0.238983], [-0.426235, 0.225231]], [-0.206157, 0.186471]),
    "qfedavg": ([[0.030508, 0.135143], [-0.266287, 0.065283]], [-0.162336, 0.14265]),
    "qfedsgd": ([[0.100126, 0.065526], [-0.29828, 0.097276]], [-0.122636, 0.10295]),
    "fedadagrad": ([[0.528591, -0.36294], [-0.615511, 0.414507]], [-0.321541, 0.301855]),
    "fedadam": ([[0.329614, -0.163963], [-0.438817, 0.237813]], [-0.213775, 0.194089]),
    "fedatt": ([[0.645389, -0.479737], [-0.705237, 0.504233]], [-0.463701, 0.444015]),
    "fedavg": ([[0.61984, -0.454189], [-0.568551, 0.367547]], [-0.362648, 0.342962]),
    "fedavgm": ([[0.939364, -0.773713], [-0.728717, 0.527713]], [-0.56373, 0.544044]),
    "feddc": ([[1.156103, -0.990452], [-1.01865, 0.817646]], [-0.866263, 0.846577]),
    "feddyn": ([[0.928213, -0.762562], [-0.909166, 0.708162]], [-0.68123, 0.661544]),
    "fedexp": ([[0.581029, -0.415378], [-0.632664, 0.43166]], [-0.363162, 0.343476]),
    "fednova": ([[0.36253, -0.196879], [-0.475652, 0.274648]], [-0.346113, 0.326427]),
    "scaffold": ([[0.507131, -0.341479], [-0.612749, 0.411745]], [-0.374953, 0.355267]),
    "fedprox": ([[0.165569, 8.2e-05], [-0.398435, 0.197431]], [-0.37096, 0.351274]),
    "fedsgd": ([[0.215619, -0.049968], [-0.360197, 0.159193]], [-0.129275, 0.109589]),
    "fedyogi": ([[0.314568, -0.148917], [-0.440416, 0.239413]], [-0.210671, 0.190985]),
}


def golden(path: Path, name: str) -> Played:
    x = np.array([[1, 0], [0, 1], [1, 1], [2, 0], [0, -1], [-1, 0], [1, -2]], np.float32)
    y = np.array([0, 1, 1, 0, 1, 1, 0])
    client = list("abcdefg" if ALGORITHMS[name].withstands else "aaabbbb")
    np.savez(path, x=x, y=y, client=client, x_test=x[:2], y_test=y[:2])
    keys = owners_config(
        path, algorithm=name, local_epochs=2, batch_size=2, learning_rate=0.5, num_server_rounds=2, seed=1
    )
    return play(keys | ACTIVE[name], nodes=2)


@pytest.mark.parametrize("name", sorted({*ONE} - {"moon"}))
def test_golden_run(name: str, tmp_path: Path) -> None:
    W, b = golden(tmp_path / "golden.npz", name).linear(2)
    want_W, want_b = GOLDEN[name]
    assert W.tolist() == [pytest.approx(row, abs=2e-6) for row in want_W]
    assert b.tolist() == pytest.approx(want_b, abs=2e-6)


def test_golden_runs_are_of_different_algorithms(tmp_path: Path) -> None:
    start = golden(tmp_path / "golden.npz", "fedavg").linear(0)
    models = [start, *((np.array(W), np.array(b)) for W, b in GOLDEN.values())]
    assert all(far(a, b) > 1e-3 for i, a in enumerate(models) for b in models[:i])


# What three clients' own models come to in a like run with a hidden layer: accuracy is too coarse, so these
# are the losses before and after the local training of the second round, weighted by test examples. MOON is
# FedAvg where there is no hidden layer. It and the pooled data have one model: its loss after rounds 2 and 1.
OWN_GOLDEN: dict[str, tuple[float, float]] = {
    "apple": (0.586336, 0.586336),
    "centralised": (0.263858, 0.333452),
    "ditto": (0.604491, 0.604491),
    "ensemble": (0.526526, 0.558612),
    "fedala": (0.440254, 0.528130),
    "fedamp": (0.820500, 0.820500),
    "fedbn": (0.641876, 0.947088),
    "fedfomo": (0.460130, 0.460130),
    "fedper": (0.472299, 0.525989),
    "fedrep": (0.464990, 0.480804),
    "fenda": (0.628044, 0.668712),
    "fine-tune": (0.603866, 0.622240),
    "local-only": (0.558612, 0.558612),
    "moon": (0.446125, 0.576924),
    "per-fedavg": (0.475289, 0.498904),
    "pfedme": (0.625895, 0.625895),
}


@pytest.mark.parametrize("name", [*OWN, "moon"])
def test_golden_run_on_the_clients(name: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz", {"anna": 9, "ben": 14, "cleo": 11})
    keys = keys_of(name, tmp_path / "owners.npz", fraction_evaluate=1.0, local_test_fraction=0.3)
    played = play(keys | {"num-server-rounds": 2, "fraction-train": 1.0} | ACTIVE[name])
    after = [c["metrics"] for c in played.keep.clients if c["round"] == 2 and c["phase"] == "train"]
    loss = played.rows[1]["client_loss"]  # of the global model, which nobody measures after local training
    if ALGORITHMS[name].personal and not ALGORITHMS[name].pooled:
        weights = [m["test-examples"] for m in after]
        loss = sum(m["test-loss"] * n for m, n in zip(after, weights, strict=True)) / sum(weights)
    assert (played.rows[2]["client_loss"], loss) == pytest.approx(OWN_GOLDEN[name], abs=2e-6)


def test_golden_runs_of_own_models_are_of_different_algorithms() -> None:
    assert set(OWN_GOLDEN) == {*OWN, "moon"}
    assert len({tuple(round(loss, 4) for loss in both) for both in OWN_GOLDEN.values()}) == len(OWN_GOLDEN)

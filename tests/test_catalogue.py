"""Every algorithm of the catalogue, free to join: registries, neutral values, order, where it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.solvers import SOLVERS
from client_app.solvers.sgd import Solver
from client_app.works import WORK
from strategies import STRATEGIES, Strategy
from strategies.engine.journal import Snapshot
from strategies.engine.state import AggregatedReplies
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import _MEASURING, MEASURED, MODEL_DOWN, MODEL_UP, evaluation_of
from task.catalogue.gradients import gradients_phase
from task.config.read import knobs
from task.errors import BouquetError
from task.numerics.arrays import Arrays
from task.numerics.reduce import REDUCTIONS
from task.resolve.read import fuse, read_config
from task.wire.messages import ANSWERED, CONFIG, FAILED, METRICS
from task.wire.registration import REGISTER
from tests.reference.catalogue import KINDS
from tests.support import federation
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import (
    SIZES,
    Keep,
    Model,
    Played,
    arrays_of,
    far,
    linear,
    loss_and_gradient,
    owners_config,
    read_by,
    write_owners,
)
from tests.support.horizontal import HORIZONTAL, VERTICAL, of_columns
from tests.support.rules import w

NAMES = sorted(HORIZONTAL)
OWN = [name for name in NAMES if ALGORITHMS[name].personal]  # the models are the clients' own
ONE = [name for name in NAMES if name not in OWN]  # one global model

# Whose global model is FedAvg's at all values: what they do is for the clients' own.
BESIDE = {"apfl", "knn-per"}
# At these values an algorithm is not FedAvg: what its reference says, or the table for those without one.
ACTIVE: dict[str, dict[str, Any]] = {name: {} for name in NAMES} | {
    kind.algorithm: kind.active for kind in KINDS
}
ACTIVE |= {"fedbn": {"model": "mlp-bn"}, "fine-tune": {"fine-tune.mu": 0.5}}
SETTINGS = {"fraction_train": 0.6, "local_epochs": 3, "batch_size": 4, "lr_decay": 0.8, "learning_rate": 0.3}


# ------------------------------------------------------------------------------------ registries


def test_catalogue_and_registries_agree_and_nothing_is_unused() -> None:
    assert {entry.name for entry in ALGORITHMS.values()} == set(ALGORITHMS)
    contracts = [
        *ALGORITHMS.values(),
        *(phase for entry in ALGORITHMS.values() for phase in entry.phases.values()),
    ]
    assert {entry.rule for entry in contracts} == set(STRATEGIES)
    by_key = {gradients_phase().solver}  # any algorithm's, by a run-config key
    assert {entry.solver for entry in contracts} | by_key == set(SOLVERS)
    works = {w for entry in contracts for w in (entry.work, entry.measuring)}
    by_features = {"adapt", "columns", "loss", "own"}
    assert works | by_features == set(WORK)
    assert set(_MEASURING) < set(WORK)
    assert set(ACTIVE) == set(HORIZONTAL)


@pytest.mark.parametrize("name", [*NAMES, *VERTICAL])
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
    assert re.fullmatch(r"\d{4}\.\d{5}|10\.\d+/\S+", entry.paper.number)
    assert entry.paper.authors
    assert entry.paper.where
    assert bool(entry.newcomer) == (entry.personal or name == "moon")
    assert entry.personal or not (entry.private or entry.pooled or "ala" in entry.stages)
    for phase in entry.phases.values():  # as one that was made of another algorithm's would not say
        assert (phase.name, phase.rule, phase.paper) == (name, entry.rule, entry.paper)


@pytest.mark.parametrize("name", NAMES)
def test_neutral_and_active_values_are_run_config_keys(name: str) -> None:
    for keys in (ALGORITHMS[name].neutral, ACTIVE[name]):
        assert set(keys) <= {k.key for k in knobs()}
        read_config(fuse(keys, {"algorithm": name})[0])


@pytest.mark.parametrize("name", [*NAMES, *VERTICAL])
def test_an_evaluation_takes_the_model_down_and_metrics_up(name: str) -> None:
    entry = evaluation_of(ALGORITHMS[name])
    # Clients measure what they kept.
    alone = {"apple", "fedamp", "fedfomo", "fedmd", "local-only", "secureboost"}
    own = {"ensemble": ["models"], "d-psgd": ["model"], "fedproto": ["prototypes"]}
    own |= {"fedem": ["model-0", "model-1", "model-2"], "ifca": ["model-0", "model-1"], "cfl": ["model"]}
    own |= {n: ["embeddings"] for n in VERTICAL}
    want = [] if name in alone else own.get(name, ["arrays"])
    assert [f.name for f in entry.down] == want
    assert (entry.down_scalars, entry.up, entry.up_scalars) == ((), (), MEASURED)
    assert entry.keeps == (ALGORITHMS[name].keeps if name in (*OWN, *VERTICAL) else ())


# Rules that leave the mean as it is at these values or with these replies, and not always.
NOT_ALWAYS = {
    "centralised": "one client has all data",
    "hierfavg": "there are means at edges, too",
    "nbafl": "the server adds noise from some round on",
    "pfedme": "it mixes the mean with the last model, unless pfedme.beta = 1",
}


@pytest.mark.parametrize(
    "name", [n for n in NAMES if ALGORITHMS[n].up == (MODEL_UP,) and not ALGORITHMS[n].phases]
)
def test_an_entry_says_whether_its_server_takes_the_mean(name: str) -> None:
    """Among those that send one model: `he` and `lora.average` go by what the entry says."""
    entry, config = ALGORITHMS[name], read_config(fuse(ACTIVE[name], {"algorithm": name})[0])
    rule = STRATEGIES[entry.rule].rule_type(config)
    state, means = rule.initial_state(w(1.0, 2.0), ("w",)), list[bool]()
    for value in (3.0, 2.0, 5.0):
        mean, down = w(value, -value), entry.down == (MODEL_DOWN,)
        try:
            replies = AggregatedReplies({"arrays": mean}, ("a", "b"), np.array([1, 3]), trainable=("w",))
            state, _ = type(rule).update(state, replies, config)
        except (
            AssertionError,
            AttributeError,
            BouquetError,
            KeyError,
            ValueError,
        ):  # it needs more than the mean
            means.append(False)
            break
        means.append(down and np.array_equal(state.arrays["w"], mean["w"]))
    assert entry.takes_mean is (all(means) and name not in NOT_ALWAYS), (
        f"{name}: set takes_mean={all(means)} in its entry"
    )


# --------------------------------------------------------------------------------------- neutral


def play(keys: dict[str, Any], **more: Any) -> Played:
    """Play a run of those of the keys that it reads: they are meant for all algorithms."""
    return federation.play(read_by(keys), **more)


def fedavg(keys: dict[str, Any]) -> Played:
    """Play FedAvg, with which many algorithms are compared: once for all that have the same keys."""
    return _fedavg(json.dumps(read_by(keys | {"algorithm": "fedavg"}), sort_keys=True))


@cache
def _fedavg(keys: str) -> Played:
    return federation.play(json.loads(keys))


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


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


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
    keys = keys_of(name, owners, num_server_rounds=3)
    # A gradient step is rounded in another place; so is what only cancels at keys that FedAvg has too.
    exact = MODEL_UP in ALGORITHMS[name].up and not shared
    like = keys
    if ALGORITHMS[name].equal_sizes:
        write_owners(owners.with_name("equal.npz"), dict.fromkeys(SIZES, 8))
        like = keys | {"data-path": str(owners.with_name("equal.npz"))}
    if neutral:
        runs = [play(like | neutral), fedavg(like | shared)]
        assert runs[0].selected() == runs[1].selected()
        assert all(same(*runs, exact))
    runs = [play(keys | ACTIVE[name]), fedavg(keys)]
    equal = same(*runs, exact=False)
    if name in BESIDE:
        assert all(same(*runs, exact=True))
        return
    assert not any(equal[1:])  # one that begins from what a client kept does so from its second round on
    assert not equal[0] or name in ("afl", "fedala", "moon")


# ----------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("name", [*NAMES, *VERTICAL])
def test_neither_nodes_nor_the_order_of_replies_nor_a_resume_change_a_byte(name: str, owners: Path) -> None:
    keys = of_columns(name)
    if name not in VERTICAL:
        more = {"stragglers": 0.4, "fraction_evaluate": 0.7, "local_test_fraction": 0.3}
        keys = keys_of(name, owners, num_server_rounds=3, **more)
        keys |= ACTIVE[name]

    whole = the_same_on_any_nodes_and_resumed(read_by(keys))
    assert all(row["client_accuracy"] is not None for row in whole.rows[1:])


# ----------------------------------------------------------------------------------- fixed point

# Whose clients minimise another loss, which has another optimum for equal clients too, or have less of the
# data, as some of them are public.
OTHER_LOSS = {"feddf", "fedlc"}


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


class ArrivedError(Exception):
    """A run is where it should end."""


class Until(Keep):
    """Ends a run as soon as its model fulfils a condition, looking at every twentieth round."""

    def __init__(self, there: Callable[[Model], bool]) -> None:
        super().__init__()
        self.there = there

    def linear(self, server_round: int) -> Model:
        return linear(arrays_of(self.snapshots[server_round]))

    def round_done(self, row: Any, clients: Any, snapshot: Snapshot, clock: Any) -> None:
        super().round_done(row, clients, snapshot, clock)
        if row["round"] % 20 == 0 and self.there(self.linear(-1)):
            raise ArrivedError


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(("identical", "epochs"), [(False, 1), pytest.param(True, 3, marks=pytest.mark.full)])
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
    biased = ALGORITHMS[name].biased and (not identical or name in OTHER_LOSS)

    def steepest(model: Model) -> float:
        _, gradient = loss_and_gradient(model, x, y)
        return max(float(np.abs(g).max()) for g in gradient)

    rounds = 60 if biased else 600  # whatever step its knobs make
    keys = {"batch_size": 0, "local_epochs": epochs, "learning_rate": 2.0, "num_server_rounds": rounds}
    keep = Until(lambda model: not biased and steepest(model) < 1e-6)
    with suppress(ArrivedError):
        play(owners_config(tmp_path / "c.npz", algorithm=name, **keys) | ACTIVE[name], nodes=1, journal=keep)
    W, b = keep.linear(-1)
    loss, (g_W, g_b) = loss_and_gradient((W, b), x, y)
    if biased:
        assert len(keep.rows) == 61
        assert (far(keep.linear(59), (W, b)) < 1e-4) == ALGORITHMS[name].converges  # it did end
        # One that does not settle jumps now and then; in which round, the last bit of a sum decides.
        late = [loss_and_gradient(keep.linear(t), x, y)[0] for t in range(41, 61)]
        assert np.median(late) < 0.95 * loss_and_gradient(keep.linear(0), x, y)[0]
        assert max(np.abs(g_W).max(), np.abs(g_b).max()) > 1e-3
        return
    assert max(np.abs(g_W).max(), np.abs(g_b).max()) < 1e-5
    oracle = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(x.astype(np.float64), y)
    # logits are free up to a constant: compare their difference
    assert W[:, 1] - W[:, 0] == pytest.approx(oracle.coef_[0], rel=1e-3)
    assert b[1] - b[0] == pytest.approx(oracle.intercept_[0], rel=1e-3)
    assert loss < loss_and_gradient(keep.linear(0), x, y)[0]


# ---------------------------------------------------------------------------------------- golden

# The results of short runs, so that nothing drifts; that it is right, the references say.
# Of one global model: weights, then biases, after two rounds of two clients with 3 and 4 examples of 2
# features and 2 classes, E = 2, B = 2, eta = 0.5. Robust rules have seven clients with one example each, so
# that one may be malicious.
# Of clients' own models, with a hidden layer: the losses of three clients before and after the local training
# of the second round, weighted by test examples, as accuracy is too coarse. MOON is FedAvg where there is no
# hidden layer. It and the pooled data have one model: its loss after rounds 2 and 1.
# So is FedNTD among two classes, of which none but the true one remains to be distilled.
FIGURES: dict[str, list[float]] = json.loads((Path(__file__).parent / "golden" / "figures.json").read_text())


FEDAVG_HERE = {"fedntd", "moon"}


def pinned(name: str, got: list[float]) -> None:
    line = f'"{name}": {[round(x, 6) for x in got]}'
    assert name in FIGURES, f"add to tests/golden/figures.json: {line}"
    # Batch normalisation of two examples that are nearly equal amplifies the last bit, in which processors
    # differ: data times 1 + 1e-7 move FedBN's figures by 4e-5, and FedPer's by 2e-8.
    known = pytest.approx(FIGURES[name], abs=2e-4 if name == "fedbn" else 2e-6)
    assert got == known, f"other figures than in tests/golden/figures.json; if that is meant: {line}"


def different(names: Iterable[str]) -> None:
    models = [np.array(FIGURES[name]) for name in names]
    assert all(np.abs(a - b).max() > 1e-4 for i, a in enumerate(models) for b in models[:i])


def golden(path: Path, name: str) -> Played:
    x = np.array([[1, 0], [0, 1], [1, 1], [2, 0], [0, -1], [-1, 0], [1, -2]], np.float32)
    y = np.array([0, 1, 1, 0, 1, 1, 0])
    client = list("abcdefg" if ALGORITHMS[name].withstands else "aaabbbb")
    np.savez(path, x=x, y=y, client=client, x_test=x[:2], y_test=y[:2])
    keys = owners_config(
        path, algorithm=name, local_epochs=2, batch_size=2, learning_rate=0.5, num_server_rounds=2, seed=1
    )
    return play(keys | ACTIVE[name], nodes=2)


@pytest.mark.parametrize("name", sorted({*ONE} - FEDAVG_HERE))
def test_golden_run(name: str, tmp_path: Path) -> None:
    W, b = golden(tmp_path / "golden.npz", name).linear(2)
    pinned(name, [*W.ravel().tolist(), *b.tolist()])


def test_figures_are_of_different_algorithms() -> None:
    assert set(FIGURES) == set(NAMES)
    different({*ONE} - FEDAVG_HERE)
    different([*OWN, *FEDAVG_HERE])


@pytest.mark.parametrize("name", [*OWN, *sorted(FEDAVG_HERE)])
def test_golden_run_on_the_clients(name: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz", {"anna": 9, "ben": 14, "cleo": 11})
    keys = keys_of(name, tmp_path / "owners.npz", fraction_evaluate=1.0, local_test_fraction=0.3)
    played = play(keys | {"num-server-rounds": 2, "fraction-train": 1.0} | ACTIVE[name])
    after = [c["metrics"] for c in played.keep.clients if c["round"] == 2 and c["phase"] == "train"]
    loss = played.rows[1]["client_loss"]  # of the global model, which nobody measures after local training
    if ALGORITHMS[name].personal and not ALGORITHMS[name].pooled:
        weights = [m["test-examples"] for m in after]
        loss = sum(m["test-loss"] * n for m, n in zip(after, weights, strict=True)) / sum(weights)
    pinned(name, [played.rows[2]["client_loss"], loss])

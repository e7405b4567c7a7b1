"""FedFomo: who gets whose models, what a client makes of them, and the pipeline against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from client_app.solvers import SOLVERS
from client_app.solvers.fedfomo import mixture
from strategies.engine.state import dump_state, load_state
from strategies.rules.fedfomo import FedFomo, FedFomoState, affinities, choose, server_update
from task.config.knobs import Config
from task.config.personal_sections import FedFomoConfig
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.seeds import rng_for
from task.wire import messages as wire
from task.wire.messages import ANSWERED
from tests.reference import fedfomo
from tests.strategies.test_models import held, replies
from tests.support.grid import LocalGrid
from tests.support.models import OneNumber, sigmoid, task_on
from tests.support.personal import Case, against_reference, case_of
from tests.support.rules import context, w

# --------------------------------------------------------------------------------------- the server


def round_of(names: str, rows: dict[str, list[float]]) -> Any:
    """Return replies of clients with these affinities, in the order of `names`."""
    told = {"affinity": {"clients": np.array([rows[c] for c in sorted(rows)], np.float32)}}
    return replies({c: w(i) for i, c in enumerate(sorted(rows))}, arrays=told, names=tuple(names))


def test_affinities_add_up_and_keep_their_clients_when_others_come_and_go() -> None:
    state, _ = server_update(FedFomoState(w(0)), round_of("bd", {"b": [0, 0], "d": [0, 0]}), Config())
    assert state.affinity["P"].tolist() == [[0, 0], [0, 0]]
    # a and c are new, and in between; b makes 0.25 and 0.75 of what it got, a all of d
    state, _ = server_update(
        state, round_of("abcd", {"a": [0, 0, 0, 1], "b": [0.25, 0, 0, 0.75], "c": [0, 0, 0, 0]}), Config()
    )
    assert affinities(state, "b") == {"a": 0.25, "b": 0, "c": 0, "d": 0.75}
    # c and d are offline
    state, _ = server_update(state, round_of("ab", {"b": [0.5, 0]}), Config())
    assert affinities(state, "b") == {"a": 0.75, "b": 0, "c": 0, "d": 0.75}
    assert affinities(state, "a") == {"a": 0, "b": 0, "c": 0, "d": 1}
    assert affinities(state, "new") == dict.fromkeys("abcd", 0)
    back = load_state(FedFomoState, *dump_state(state))
    assert back.affinity["P"].tobytes() == state.affinity["P"].tobytes()


def test_the_best_go_first_and_ties_by_name() -> None:
    P = {"d": 0.5, "a": 0.5, "c": 2.0, "b": 0.0, "e": 0.0}
    rng = np.random.default_rng(0)
    assert [choose(P, m, 0.0, rng) for m in (1, 2, 4)] == [["c"], ["a", "c"], ["a", "b", "c", "d"]]
    assert choose(P, 0, 0.3, rng) == choose(P, 5, 1.0, rng) == choose(P, 9, 0.3, rng) == list("abcde")
    assert choose({}, 5, 0.3, rng) == []


def test_a_share_of_epsilon_is_drawn_among_the_others_with_equal_chances() -> None:
    """Of 4 with epsilon = 0.4, 1.6 is rounded to 2: c and a are sure, two of the other three are drawn."""
    P = {"d": 0.5, "a": 0.6, "c": 2.0, "b": 0.0, "e": 0.0}
    drawn = [choose(P, 4, 0.4, np.random.default_rng(i)) for i in range(300)]
    assert all(set("ac") < set(d) and len(set(d)) == 4 and d == sorted(d) for d in drawn)
    assert all(abs(sum(c in d for d in drawn) - 200) < 40 for c in "bde")
    assert {tuple(choose(P, 4, 0.1, np.random.default_rng(i))) for i in range(20)} == {tuple("abcd")}


def test_the_models_that_go_to_each_client() -> None:
    strategy = FedFomo(Config(fedfomo=FedFomoConfig(download=1, epsilon=0.0)))
    state, _ = server_update(
        strategy.initial_state(w(0), ("w",)),
        round_of("abc", {"a": [0, 0.2, 0.8], "b": [0, 0, 0], "c": [0, 1, 0]}), strategy.config,
    )  # fmt: skip
    given = strategy.route(state, ["a", "b", "x"], context(strategy, ["a", "b", "c", "x"]))["models"]
    assert {i: {j: m["w"].tolist() for j, m in got.items()} for i, got in given.items()} == {
        "a": {"c": [2.0]}, "b": {"a": [0.0]}, "x": {"a": [0.0]}
    }  # fmt: skip
    offline = strategy.route(state, ["a"], context(strategy, ["a", "b", "x"]))  # c
    assert offline["models"]["a"].keys() == {"b"}
    assert given["b"]["a"] is given["x"]["a"]  # packed once


# --------------------------------------------------------------------------------------- the client


def solve(others: dict[str, Arrays], **more: Any) -> tuple[Any, Arrays, Any]:
    """Return the uploads of one client, x = 2 of class 1 throughout: F(w) = log(1 + e^(-2w))."""
    n, baseline, kept = (
        more.pop("n", 4),
        more.pop("baseline", "before"),
        more.pop("kept", {"personal": w(0.0)}),
    )
    task = task_on(OneNumber(0.0), torch.full((n,), 2.0), torch.ones(n, dtype=torch.int64), lr=0.5, **more)
    order = wire.TrainOrder(1, {}, {}, ("a",), (1,), population=("a", "b", "c", "d"))
    config = Config(fedfomo=FedFomoConfig(validation=0.5, baseline=baseline))
    solver = SOLVERS["fedfomo"](config, {}, {}, [kept], [{"models": others}], order)
    solver.begin(task)
    ((upload, keep),) = solver.finish(task, solver.run(task))
    assert keep["personal"]["w"].tolist() == upload.arrays["arrays"]["w"].tolist()
    return upload, keep["before"], task


def test_weights_mixture_and_step_by_hand() -> None:
    """theta_i = 0; b = 1 gains (F(0) - F(1))/1, d = 2 gains (F(0) - F(2))/2, c = -1 is worse.

    theta = w_b * 1 + w_d * 2; then one step on both training examples, of the same gradient.
    """
    upload, before, task = solve({"b": w(1.0), "c": w(-1.0), "d": w(2.0)}, batch_size=0)
    gain = {v: (math.log(2) - math.log(1 + math.exp(-2 * v))) / v for v in (1, 2)}
    b, d = (gain[v] / (gain[1] + gain[2]) for v in (1, 2))
    assert upload.arrays["affinity"]["clients"].tolist() == pytest.approx([0, b, 0, d], rel=1e-5)
    theta = b + 2 * d
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx(
        [theta + 0.5 * 2 * sigmoid(-2 * theta)], rel=1e-5
    )
    assert before["w"].tolist() == pytest.approx([theta], rel=1e-5)
    assert upload.num_examples == 4
    assert len(task.examples.y) == 2


def gain(start: float, v: float) -> float:
    """Return (F(start) - F(v)) / |v - start|, if there is a gain."""
    F = [math.log(1 + math.exp(-2 * x)) for x in (start, v)]
    return max(0.0, (F[0] - F[1]) / abs(v - start))


KEPT = {"personal": w(1.0), "before": w(-0.5)}


def test_the_own_trained_model_is_listed_against_the_one_before_by_hand() -> None:
    """Training moved the client from -1/2 to 1; b = 2 came."""
    upload, before, _ = solve({"b": w(2.0)}, kept=KEPT, batch_size=0)
    own, b = gain(-0.5, 1.0), gain(-0.5, 2.0)
    a, b = own / (own + b), b / (own + b)
    assert upload.arrays["affinity"]["clients"].tolist() == pytest.approx([a, b, 0, 0], rel=1e-5)
    assert before["w"].tolist() == pytest.approx([-0.5 + a * 1.5 + b * 2.5], rel=1e-5)
    # alone on its list it is taken whole
    upload, before, _ = solve({}, kept=KEPT, batch_size=0)
    assert upload.arrays["affinity"]["clients"].tolist() == [1, 0, 0, 0]
    assert before["w"].tolist() == [1.0]


def test_a_training_that_made_nothing_better_is_undone() -> None:
    worse = {"personal": w(-1.0), "before": w(0.25)}
    upload, before, _ = solve({"c": w(-2.0)}, kept=worse, batch_size=0)
    assert upload.arrays["affinity"]["clients"].tolist() == [0, 0, 0, 0]
    assert before["w"].tolist() == [0.25]


def test_compared_with_the_model_after_its_training_the_own_one_is_not_listed() -> None:
    upload, before, _ = solve({"b": w(2.0), "c": w(0.5)}, kept=KEPT, baseline="after", batch_size=0)
    assert upload.arrays["affinity"]["clients"].tolist() == [0, 1, 0, 0]
    assert before["w"].tolist() == [2.0]
    _, before, _ = solve({"c": w(0.5)}, kept=KEPT, baseline="after", batch_size=0)
    assert before["w"].tolist() == [1.0]


def test_where_no_model_is_better_the_clients_own_stays() -> None:
    for others in ({}, {"c": w(-1.0)}, {"c": w(0.0)}):
        upload, _, _ = solve(others, batch_size=0)
        assert upload.arrays["affinity"]["clients"].tolist() == [0, 0, 0, 0]
        assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([0.5 * 2 * 0.5])


def test_a_single_example_is_for_both() -> None:
    upload, _, _ = solve({"b": w(1.0)}, n=1)
    assert upload.arrays["affinity"]["clients"].tolist() == [0, 1, 0, 0]
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([1 + 0.5 * 2 * sigmoid(-2)], rel=1e-6)


def test_the_mixture_of_buffers_and_its_rounding() -> None:
    """4 + 0.5 (7 - 4) = 5.5 is rounded up; 1 + 0.5 (2^25 + 2 - 1) = 2^24 + 1.5 once, to 2^24 + 2."""
    theta = {"n": np.array(4, np.int64), "x": np.array(1.0, np.float32)}
    other = {"n": np.array(7, np.int64), "x": np.array(2.0**25 + 4, np.float32)}
    mixed = mixture(theta, {"b": other, "c": theta}, {"b": 0.5, "c": 0.0})
    assert {n: (a.item(), a.dtype) for n, a in mixed.items()} == {
        "n": (6, np.int64), "x": (2.0**24 + 2, np.float32)
    }  # fmt: skip


# ------------------------------------------------------------------------------------- the pipeline


def split(case: Case, client: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's validation rows and the rows that it trains on."""
    n = len(case.train[client][1])
    order = rng_for(case.keys["seed"], seeds.VALIDATION, 0, client).permutation(n)
    size = max(math.floor(n * case.keys.get("fedfomo.validation", 0.2)), 1)
    return np.sort(order[:size]), np.sort(order[size:])


def inputs_of(case: Case) -> dict[str, Any]:
    """Return what the reference is given: the rows that the run drew, and whose models it sent."""
    m, epsilon = case.keys.get("fedfomo.download", 5), case.keys.get("fedfomo.epsilon", 0.3)
    rows = {c: split(case, c) for c in case.train}
    cut = replace(case, train={c: (x[rows[c][1]], y[rows[c][1]]) for c, (x, y) in case.train.items()})
    drawn = cut.batches()

    def batches(t: int, k: str, draw: int) -> list[np.ndarray]:
        return [rows[k][1][batch] for batch in drawn(t, k, draw)]

    def chosen(t: int, i: str, P_i: dict[str, float], seen: list[str]) -> list[str]:
        size = min(m or len(seen), len(seen))
        lucky = int(epsilon * size + 0.5)
        ranked = [j for _, j in sorted((-P_i[j], j) for j in seen)]
        rest = sorted(ranked[size - lucky :])
        order = rng_for(case.keys["seed"], seeds.PEERS, t, i).permutation(len(rest))
        return ranked[: size - lucky] + [rest[k] for k in order[:lucky]]

    return {"batches": batches, "choose": chosen, "validation_rows": lambda t, k: rows[k][0]}


CASES: dict[str, dict[str, Any]] = {
    "two, one of them at random, stragglers": {
        "fedfomo__download": 2, "fedfomo__epsilon": 0.5, "stragglers": 0.6, "num_server_rounds": 6,
    },
    "everybody's, half for validation": {"fedfomo__download": 0, "fedfomo__validation": 0.5, "nodes": 3},
    "the best one, full batches": {
        "fedfomo__download": 1, "fedfomo__epsilon": 0.0, "batch_size": 0, "num_server_rounds": 6,
        "fraction_train": 1.0,
    },
    "compared with the model after training": {
        "fedfomo__download": 2, "fedfomo__baseline": "after", "num_server_rounds": 6,
    },
}  # fmt: skip


@pytest.mark.parametrize("which", CASES)
def test_the_pipeline_equals_the_reference(which: str, tmp_path: Path) -> None:
    case, trace = against_reference(tmp_path, fedfomo.FedFomo, inputs_of, **CASES[which])
    P = trace.affinity[-1]
    state = load_state(FedFomoState, case.played.keep.snapshots[-1].arrays, {})
    total = 0.0
    for i in held(case.played, len(case.cohorts)):
        for j, got in affinities(state, i).items():
            assert got == pytest.approx(P[i][j] - (i == j), abs=1e-4), (i, j)
            total += got * (i != j)
    assert total > 1


class Recording(LocalGrid):
    """Keeps each training reply with its question."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        given = list(messages)
        ids = list(super().push_messages(given))
        self.pairs = getattr(self, "pairs", [])
        self.pairs += [
            (m.content, self.replies[i].content)
            for m, i in zip(given, ids, strict=True)
            if m.metadata.message_type == "train"
        ]
        return ids


def test_a_client_gets_m_models_and_tells_of_no_other(tmp_path: Path) -> None:
    """What goes down is what was chosen, once a node; what comes up is 0 for all that did not come."""
    more: dict[str, Any] = {"fedfomo__download": 2, "num_server_rounds": 4, "nodes": 2, "fraction_train": 1.0}
    case = case_of(tmp_path, "fedfomo", grid=Recording, **more)
    used = 0
    for asked, answered in case.played.grid.pairs:  # type: ignore[attr-defined]
        config = asked.config_records["config"]
        population, t = list(config["population"]), int(config["server-round"])
        assert population == list(case.played.names)
        wanted = {c: list(config[f"models:{c}"]) for c in config["clients"]}
        assert all(len(names) == (2 if t > 1 else 0) and c not in names for c, names in wanted.items())
        assert set(asked.array_records) == {f"models.{j}" for names in wanted.values() for j in names}
        for client in answered.config_records[ANSWERED]["clients"]:
            w_i = wire.read_arrays(answered.array_records[f"affinity.{client}"])["clients"]
            row = dict(zip(population, w_i.tolist(), strict=True))
            assert {j for j, value in row.items() if value} <= {*wanted[client], client}
            assert sum(row.values()) == pytest.approx(1) or not any(row.values())
            used += any(row.values())
    assert used > 5
    assert all(not m.content.array_records for m in case.played.messages("evaluate"))

"""Leave-one-out and Shapley values: by hand, truncated, and in a run whose model stays the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from strategies.stages.contribution import Values, leave_one_out, shapley
from task.numerics.arrays import Arrays
from task.wire.messages import read_arrays
from tests.support.federation import owners_config, play, write_owners

GAME = {(): 0, (1,): 10, (2,): 20, (3,): 0, (1, 2): 30, (1, 3): 12, (2, 3): 20, (1, 2, 3): 36}
RNG = np.random.default_rng


def game(calls: list[frozenset[int]] | None = None) -> Callable[[frozenset[int]], float]:
    def v(clients: frozenset[int]) -> float:
        if calls is not None:
            calls.append(clients)
        return float(GAME[tuple(sorted(k + 1 for k in clients))])

    return v


def test_three_clients_by_hand() -> None:
    assert leave_one_out(game(), 3) == [16, 24, 6]
    values = shapley(game(), 3, 6, 0.0, RNG(0))  # all six orders
    assert values == pytest.approx([37 / 3, 64 / 3, 7 / 3])
    assert sum(values) == pytest.approx(36)


def test_random_orders_add_up_and_begin_with_each_client_in_turn() -> None:
    calls: list[frozenset[int]] = []
    values = shapley(game(calls), 3, 3, 0.0, RNG(0))
    assert sum(values) == pytest.approx(36)
    assert {frozenset({k}) for k in range(3)} <= set(calls)
    assert values == shapley(game(), 3, 3, 0.0, RNG(0))


def test_a_round_and_an_order_are_cut_short() -> None:
    calls: list[frozenset[int]] = []
    assert shapley(game(calls), 3, 6, 36.0, RNG(0)) == [0, 0, 0]
    assert len(calls) == 2  # everybody and nobody
    # from 30 or 20 on, the rest is within 17 of 36: whoever is next gets it, and nobody after that
    values = shapley(game(), 3, 6, 17.0, RNG(0))
    assert sum(values) == pytest.approx(36)


def test_v_measures_the_weighted_mean_of_the_models_and_each_set_once() -> None:
    stack, seen = {"w": np.array([[0.0], [4.0], [10.0]])}, []

    def measure(model: Arrays) -> dict[str, float]:
        seen.append(float(model["w"][0]))
        return {"loss": seen[-1]}

    v = Values(stack, np.array([3, 1, 1]), {"w": np.array([7.0])}, measure)
    assert [v(frozenset(s)) for s in ((), (0, 1), (2,), (0, 1))] == [-7, -1, -10, -1]
    assert seen == [7, 1, 10]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """A made-up test set, by which small models are good."""
    size = sum(float(np.abs(a).sum()) for a in read_arrays(arrays).values())
    return MetricRecord({"loss": size, "accuracy": 1 / (1 + size), "num-examples": 1})


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "median"])
def test_the_model_stays_the_same_and_every_client_has_a_value(algorithm: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "o.npz")
    keys = owners_config(tmp_path / "o.npz", algorithm=algorithm, num_server_rounds=2, fraction_train=0.6)
    keys |= {"robust.byzantine": 0.0} if algorithm == "median" else {}

    def run(measure: str, nodes: int) -> Any:
        more = {"contribution.measure": measure, "state-dir": str(tmp_path / f"{measure}{nodes}")}
        return play(keys | more, nodes=nodes, evaluate_fn=evaluate)

    plain, one, other = run("none", 1), run("shapley", 1), run("shapley", 3)
    for played in (one, other):
        hashes = [[row["model_sha256"] for row in p.rows] for p in (plain, played)]
        assert hashes[0] == hashes[1]
    values = [
        {
            (c["round"], c["name"]): c["metrics"]["contribution"]
            for c in p.keep.clients
            if c["phase"] == "train"
        }
        for p in (one, other)
    ]
    assert values[0] == values[1]
    if algorithm == "fedavg":  # they add up to what the round gained
        for t in (1, 2):
            gained = one.rows[t]["accuracy"] - one.rows[t - 1]["accuracy"]
            assert sum(x for (at, _), x in values[0].items() if at == t) == pytest.approx(gained, abs=2e-3)

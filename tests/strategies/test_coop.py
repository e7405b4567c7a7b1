"""CO-OP: three clients by hand, the course of runs, and where it is FedAsync."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.engine.rule import RoundContext
from strategies.engine.state import AggregatedReplies
from strategies.rules.coop import Coop, CoopState
from task.catalogue.algorithms import ALGORITHMS
from task.config.algorithm_sections import CoopConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import sha256
from tests.reference import coop
from tests.strategies.test_arrivals import Crossing, Written
from tests.support.federation import OneRun, play
from tests.support.personal import keys_of

SECONDS = {"a": 0.1, "b": 0.25, "c": 0.45}
LEARNT = {"a": 1.0, "b": 10.0, "c": 100.0}  # what training adds to a model


def rule_of(lower: int, upper: int) -> Coop:
    return Coop(Config(algorithm="coop", coop=CoopConfig(lower=lower, upper=upper)))


def context_of(rule: Coop, t: int) -> RoundContext:
    return RoundContext(rule, ALGORITHMS["coop"], t, 0.1, (), [*SECONDS], ("w",), lambda names: {})


def took(names: Sequence[str]) -> list[float]:
    return [SECONDS[name] for name in names]


def replies(client: str, w: float) -> AggregatedReplies:
    return AggregatedReplies({"arrays": {"w": np.array([[w]])}}, (client,), np.array([1]), trainable=("w",))


def arrive(rule: Coop, state: CoopState, t: int) -> tuple[str, float, CoopState, dict[str, Any]]:
    """Return who arrives in a step, the model that it began from, the next state and metrics."""
    context = context_of(rule, t)
    state = rule.begin(state, context, took)
    (client,) = rule.drawn(state)
    start = rule.route(state, [client], context)["model"][client][client]["w"].item()
    after, metrics = Coop.update(state, replies(client, start + LEARNT[client]), rule.config)
    return client, start, after, metrics


def test_three_clients_by_hand() -> None:
    """b_l = 1, b_u = 2; a begins at 1, all a_k at 0.

    0.1   a: 1 - 0 = 1, merged with 2^-1/2;  a = 2 = a_a
    0.2   a: 2 - 2 = 0, trains on from its 1.707
    0.25  b: 2 - 0 = 2, merged with 3^-1/2;  a = 3 = a_b
    0.3   a: 3 - 2 = 1, merged with 2^-1/2;  a = 4 = a_a
    0.4   a: 4 - 4 = 0, trains on
    0.45  c: 4 - 0 = 4, outdated;  a_c = 4
    """
    rule, state = rule_of(1, 2), CoopState({"w": np.zeros(1)})
    two, three = 2**-0.5, 3**-0.5
    w1 = two * 1
    w3 = (1 - three) * w1 + three * 10
    w4 = (1 - two) * w3 + two * (w1 + 2)
    seen = []
    for t in range(1, 7):
        client, start, state, metrics = arrive(rule, state, t)
        seen.append((client, start, metrics["staleness-max"], metrics["alpha"], state.arrays["w"].item()))
    assert [s[0] for s in seen] == ["a", "a", "b", "a", "a", "c"]
    assert [s[1] for s in seen] == pytest.approx([0, w1, 0, w1 + 1, w4, 0])
    assert [s[2] for s in seen] == [1, 0, 2, 1, 0, 4]
    assert [s[3] for s in seen] == pytest.approx([two, 0, three, two, 0, 0])
    assert [s[4] for s in seen] == pytest.approx([w1, w1, w3, w4, w4, w4])
    assert state.version == 3
    assert {k: a.item() for k, a in state.own.items()} == pytest.approx({"a/w": w4 + 1})
    assert {k: int(a) for k, a in state.origin.items()} == {"a": 3}
    begun = rule.begin(state, context_of(rule, 7), took)
    assert (begun.flight | begun.arriving)["c"][1] == 3  # c has begun again from the model of now


def test_a_lost_update_and_a_run_that_goes_back_forget_the_client_s_own_model() -> None:
    rule = rule_of(1, 2)
    _, _, state, _ = arrive(rule, CoopState({"w": np.zeros(1)}), 1)
    _, _, state, _ = arrive(rule, state, 2)
    assert set(state.own) == {"a/w"}
    back = rule.roll_back(state, state)
    assert back.own == back.origin == back.flight == {}
    assert arrive(rule, back, 3)[3]["staleness-max"] == 1  # as at the beginning
    state = rule.begin(state, context_of(rule, 3), took)
    assert rule.drawn(state) == ("b",)
    after = rule.on_round_skipped(state, replies("b", 0.0), None)
    assert set(after.own) == {"a/w"}  # a's is not lost
    state = rule.begin(after, context_of(rule, 4), took)
    assert rule.drawn(state) == ("a",)
    after = rule.on_round_skipped(state, replies("a", 0.0), None)
    assert after.own == after.origin == {}
    assert after.version == 1


def test_an_upper_bound_below_the_lower_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'"coop.upper": expected at least coop.lower = 3; got 2'):
        rule_of(3, 2)


def test_it_is_over_when_nobody_can_be_merged() -> None:
    """b_l = 3 of three clients: a, b and c are merged once, c at 0.45, and none of them again."""
    rule, state = rule_of(3, 9), CoopState({"w": np.zeros(1)})
    merged = []
    for t in range(1, 7):
        client, _, state, metrics = arrive(rule, state, t)
        merged += [client] * (metrics["alpha"] > 0)
        assert rule.finished(state) == (t == 6)
        if t == 5:  # c, still at work, is 5 behind
            assert rule_of(3, 4).finished(state)
    assert merged == ["a", "b", "c"]
    assert not rule_of(2, 9).finished(state)  # a is


# --------------------------------------------------------------------------------------- in runs


def keys(folder: Path, name: str = "coop", **more: Any) -> dict[str, Any]:
    return keys_of(folder, name, **{"fraction_train": 1.0, "fraction_evaluate": 0.0} | more)


def test_without_bounds_it_is_fedasync_byte_for_byte(tmp_path: Path) -> None:
    ours = play(keys(tmp_path, num_server_rounds=10, coop__lower=0, coop__upper=10**6))
    theirs = play(
        keys(
            tmp_path, "fedasync", num_server_rounds=10, fedasync__alpha=1.0, fedasync__rho=0.0,
            fedasync__staleness="polynomial", fedasync__poly_a=0.5,
        )
    )  # fmt: skip
    for t in range(11):
        assert sha256(ours.arrays(t)) == sha256(theirs.arrays(t))
    assert [row["metrics"] for row in ours.rows[1:]] == [row["metrics"] for row in theirs.rows[1:]]


def kinds(rows: Sequence[dict[str, Any]], lower: int) -> set[str]:
    """Return what happened to updates."""
    not_merged = ("overactive", "outdated")
    return {
        "merged" if row["metrics"]["alpha"] else not_merged[row["metrics"]["staleness-max"] >= lower]
        for row in rows
    }


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_resumed_run_ends_with_the_bytes_of_one_that_was_not_stopped(
    fraction: float, tmp_path: Path
) -> None:
    """It stops where a client trains on, and holds that client's model in its checkpoint."""
    config = keys(
        tmp_path, **coop.Coop.cases["all three"] | {"fraction_train": fraction, "num_server_rounds": 30}
    )
    whole = play(config, journal=OneRun())
    held = [t for t, s in enumerate(whole.keep.snapshots) if any(n.startswith("own/") for n in s.arrays)]
    at = held[len(held) // 2]
    resumed = play(config, journal=OneRun(whole.keep.snapshots[at]), nodes=3)
    assert sha256(resumed.keep.snapshots[-1].arrays) == sha256(whole.keep.snapshots[-1].arrays)
    assert [row["metrics"] for row in resumed.rows] == [row["metrics"] for row in whole.rows[at + 1 :]]
    if fraction == 1.0:  # with fewer at work nobody is outdated
        assert kinds(whole.rows[1:], 1) == {"merged", "overactive", "outdated"}


def test_a_run_by_real_arrivals_is_done_again_to_the_same_bytes(tmp_path: Path) -> None:
    more = {"num_server_rounds": 12, "order_of_arrival": "real", "coop__lower": 4}
    journal, config = Written(), keys(tmp_path, **more)
    run = play(config, journal=journal, seed=1, grid_type=Crossing)
    again = play(config, journal=Written(journal.events, closed=True), seed=8, nodes=3)
    assert [sha256(again.arrays(t)) for t in range(13)] == [sha256(run.arrays(t)) for t in range(13)]
    # Whether a client is back before four merges depends on how fast the machine is.
    assert {"merged"} <= kinds(run.rows[1:], 4) <= {"merged", "overactive"}


def test_a_run_in_which_nobody_can_be_merged_ends_early_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = play(keys(tmp_path, num_server_rounds=30, coop__lower=5)).rows
    assert "no client is 5 to 100 merges behind" in caplog.text
    assert len(rows) < 31
    assert [row["metrics"]["alpha"] > 0 for row in rows[1:]].count(True) == 5

"""Server state: to a checkpoint and back, bit for bit; and the reduced replies' weighted means."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from strategies.engine.journal import Snapshot
from strategies.engine.state import AggregatedReplies, ServerState, dump_state, load_state
from strategies.rules.fedprox import FedProxState
from task.numerics.arrays import Arrays, sha256


@dataclass(frozen=True)
class Rich(ServerState):
    """A rule with two further sets of arrays and every kind of number."""

    momentum: Arrays = field(default_factory=dict)
    momentum2: Arrays = field(default_factory=dict)  # its name begins like the other's
    mu: float = 0.0
    step: int = 0
    warm: bool = False
    best: float = math.inf


MODEL = {
    "layer/weight": np.array([[1.5, -0.0]], np.float32),  # a slash in a name
    "seen": np.array(2**53 + 1, np.int64),
    "half": np.array([np.float16(0.1)]),
}


def test_every_field_comes_back_with_its_bits() -> None:
    velocity = {"layer/weight": np.array([[1e-45, 2.0]], np.float32)}
    state = Rich(MODEL, velocity, {"w": np.array([3.0])}, mu=0.1 + 0.2, step=7, warm=True)
    arrays, numbers = dump_state(state)
    back = load_state(Rich, arrays, numbers)
    for name in ("arrays", "momentum", "momentum2"):
        got, want = getattr(back, name), getattr(state, name)
        assert list(got) == list(want)
        assert sha256(got) == sha256(want)
    assert (back.mu, back.step, back.warm, back.best) == (0.1 + 0.2, 7, True, math.inf)


def test_a_field_without_arrays_comes_back_empty() -> None:
    back = load_state(Rich, *dump_state(Rich(MODEL)))
    assert (back.momentum, back.momentum2) == ({}, {})


def test_a_snapshot_gives_the_rule_its_own_kind_of_state() -> None:
    state = FedProxState(MODEL, mu=0.3, previous_loss=2.5, falls=4)
    snapshot = Snapshot.of(6, state)
    back = snapshot.state(FedProxState)
    assert snapshot.round == 6
    assert (type(back), back.mu, back.previous_loss, back.falls) == (FedProxState, 0.3, 2.5, 4)


def test_states_are_frozen() -> None:
    with pytest.raises(AttributeError):
        ServerState(MODEL).arrays = {}  # type: ignore[misc]


def test_the_mean_of_a_scalar_is_weighted_by_examples() -> None:
    # (1*2 + 3*6) / 4 = 5
    replies = AggregatedReplies(
        {}, ("a", "b"), np.array([1, 3]), {"loss": [2.0, 6.0], "part": [1.0, math.nan]}
    )
    assert replies.number("loss") == 5.0
    assert replies.number("part") == 1.0  # b did not send it
    assert replies.number("none") is None
    assert AggregatedReplies({}, (), np.array([], np.int64)).number("loss") is None


def test_the_mean_weighs_as_the_fold_did_and_that_of_a_report_by_examples() -> None:
    replies = AggregatedReplies(
        {}, ("a", "b"), np.array([1, 3]), {"loss": [2.0, 6.0]}, weights=np.array([1, 1])
    )
    assert (replies.number("loss"), replies.example_means()["loss"]) == (4.0, 5.0)


def test_a_number_is_reduced_as_the_catalogue_says_over_those_that_sent_it() -> None:
    ways = {"h": "sum", "worst": "max", "none": "max"}
    values = {"h": [2.0, math.nan, 3.0], "worst": [math.nan, 4.0, 1.0], "none": [math.nan] * 3}
    replies = AggregatedReplies({}, ("a", "b", "c"), np.array([1, 3, 5]), values, reduce=ways)
    assert [replies.number(name) for name in ways] == [5.0, 4.0, None]


def test_the_mean_does_not_depend_on_the_order() -> None:
    # a float sum of these in another order gives other bits
    values, counts = [1e16, 1.0, -1e16, 1.0], [1, 1, 1, 1]
    names = ("a", "b", "c", "d")
    means = set()
    for i in range(4):
        order = [*range(i, 4), *range(i)]
        replies = AggregatedReplies({}, names, np.array(counts), {"loss": [values[j] for j in order]})
        means.add(replies.number("loss"))
    assert means == {0.5}

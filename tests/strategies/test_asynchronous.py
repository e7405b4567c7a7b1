"""Virtual time: who arrives when with which staleness, what a step makes of it, and runs of both rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from strategies.engine.rule import Phase, RoundContext, Seconds
from strategies.engine.schedule import Start, VirtualClock, next_step
from strategies.engine.state import AggregatedReplies
from strategies.rules import fedasync, fedbuff
from strategies.rules.asynchronous import AsyncState, model_of, stepped
from task import timing
from task.catalogue.algorithms import ALGORITHMS
from task.config.algorithm_sections import FedAsyncConfig, FedBuffConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from tests.reference.fedbuff import events
from tests.support.federation import play, write_owners
from tests.support.joining import joining
from tests.support.personal import keys_of

SECONDS = {"a": 1.0, "b": 2.5, "c": 4.0}


class Step(NamedTuple):
    arrived: dict[str, Start]
    flight: dict[str, Start]
    clock: float  # when the buffer is full


def step_of(
    flight: dict[str, Start], clock: float, version: int, names: Sequence[str], at_once: int, buffer: int,
    took: Seconds, rng: np.random.Generator,
) -> Step:  # fmt: skip
    devices = VirtualClock(clock, version, buffer, took, rng)
    step = next_step(flight, names, at_once, devices)
    return Step(step.arrived, step.flight, devices.clock)


def course(
    seconds: dict[str, float], at_once: int, buffer: int, steps: int, rng: np.random.Generator | None = None
) -> list[Step]:
    """Return what happens in each of so many steps."""

    def took(names: Sequence[str]) -> list[float]:
        return [seconds[name] for name in names]

    taken: list[Step] = []
    flight, clock = dict[str, Start](), 0.0
    rng = rng or np.random.default_rng(0)
    for version in range(steps):
        step = step_of(flight, clock, version, sorted(seconds), at_once, buffer, took, rng)
        flight, clock = step.flight, step.clock
        taken.append(step)
    return taken


# ------------------------------------------------------------------------------------- the queue


def test_who_arrives_when_by_hand() -> None:
    """All three are at work, a step for each two.

    a arrives at 1 and waits for b at 2.5: version 1. Both begin again, a is back at 3.5 and waits for c at 4:
    version 2, c's update is two seconds and one version old. Then b at 5 and a at 5, which comes first.
    """
    steps = course(SECONDS, 3, 2, 3)
    got = [(s.clock, {c: start.version for c, start in s.arrived.items()}) for s in steps]
    assert got == [(2.5, {"a": 0, "b": 0}), (4.0, {"a": 1, "c": 0}), (5.0, {"a": 2, "b": 1})]
    assert [*steps[2].arrived] == ["a", "b"]  # both at 5: by name
    assert steps[2].flight == {"c": Start(8.0, 2)}


@pytest.mark.parametrize(("at_once", "buffer"), [(7, 3), (7, 7), (7, 1), (1, 1)])
def test_the_queue_is_that_of_the_reference_with_everybody_or_one_at_work(at_once: int, buffer: int) -> None:
    names = "abcdefg"[:at_once]
    seconds = dict(zip(names, np.random.default_rng(3).lognormal(size=at_once).tolist(), strict=True))
    want = events(seconds, at_once, buffer, 40, lambda idle: idle[0])
    got = [
        (s.clock, {c: a.version for c, a in s.arrived.items()}) for s in course(seconds, at_once, buffer, 40)
    ]
    assert got == want


def test_every_client_that_begins_arrives_or_is_at_work_and_as_many_as_there_should_be_are() -> None:
    seconds = dict(zip("abcdefghijkl", np.random.default_rng(4).lognormal(size=12).tolist(), strict=True))
    begun: set[tuple[str, Start]] = set()
    came: set[tuple[str, Start]] = set()
    for t, step in enumerate(course(seconds, 6, 3, 60, np.random.default_rng(5))):
        assert len(step.arrived) == 3
        assert not set(step.arrived) & set(step.flight)
        assert len(step.flight) == 5  # the last one of a buffer is replaced after the step
        assert all(start.arrives > step.clock for start in step.flight.values())
        assert all(0 <= start.version <= t for start in step.arrived.values())
        new = {*step.arrived.items()}
        assert not came & new  # nobody's update counts twice
        came |= new
        assert begun - came <= {*step.flight.items()}  # nobody is lost
        begun = came | {*step.flight.items()}
    assert {c for c, _ in came} == set(seconds)  # everybody has his turn


def test_who_goes_offline_is_forgotten_and_replaced() -> None:
    first = step_of({}, 0.0, 0, ["a", "b", "c"], 2, 1, lambda n: [1.0] * len(n), np.random.default_rng(1))
    (gone,) = first.flight
    names = sorted({"a", "b", "c"} - {gone})
    second = step_of(first.flight, 1.0, 1, names, 2, 1, lambda n: [1.0] * len(n), np.random.default_rng(1))
    assert {*second.arrived, *second.flight} == set(names)
    assert {start.version for start in (*second.arrived.values(), *second.flight.values())} == {1}


# -------------------------------------------------------------------------------------- the step


def replies(models: dict[str, Arrays]) -> AggregatedReplies:
    clients = tuple(sorted(models))
    stack = {n: np.stack([models[c][n] for c in clients]) for n in models[clients[0]]}
    return AggregatedReplies({"arrays": stack}, clients, np.ones(len(clients), np.int64), trainable=("w",))


def state_of(**starts: int) -> AsyncState:
    """Return a state at version 4 in which clients arrive that were given these versions; w^v is 10 v."""
    versions = {f"{v}/{n}": np.float32([10.0 * v]) for v in range(4) for n in ("w", "mean")}
    versions |= {f"{v}/steps": np.array(v) for v in range(4)}
    arriving = {c: np.array([1.0, v]) for c, v in starts.items()}
    return AsyncState(
        {"w": np.float32([40.0]), "mean": np.float32([40.0]), "steps": np.array(4)}, 4, 9.0, 1.0,
        {"z": np.array([11.0, 2.0])}, arriving, versions,
    )  # fmt: skip


def model(w: float, mean: float = 0.0, steps: int = 0) -> Arrays:
    return {"w": np.float32([w]), "mean": np.float32([mean]), "steps": np.array(steps)}


def test_fedbuff_weighs_changes_by_hand() -> None:
    """tau = 0 and 3: w = 40 + eta / 2 (1 * 6 + 4^-a * 8); buffers are plain means."""
    config = Config(fedbuff=FedBuffConfig(server_lr=2.0, exponent=1.0))
    state = state_of(a=4, b=1)
    made, metrics = fedbuff.server_update(
        state, replies({"a": model(46, 1, 5), "b": model(18, 3, 8)}), config
    )
    assert made.arrays["w"].tolist() == [48.0]
    assert made.arrays["mean"].tolist() == [2.0]
    assert made.arrays["steps"] == 7  # 6.5, halves up
    assert metrics == {"staleness-mean": 1.5, "staleness-max": 3, "at-work": 1}
    assert made.version == 5
    assert made.arriving == {}
    assert sorted(made.versions) == ["2/mean", "2/steps", "2/w"]  # what z was given, and no more


@pytest.mark.parametrize(
    ("knobs", "tau", "s"),
    [
        ({"staleness": "constant"}, 3, 1.0),
        ({"staleness": "polynomial", "poly_a": 2.0}, 3, 1 / 16),
        ({"staleness": "hinge", "hinge_a": 2.0, "hinge_b": 1}, 1, 1.0),
        ({"staleness": "hinge", "hinge_a": 2.0, "hinge_b": 1}, 3, 1 / 5),
    ],
)
def test_fedasync_mixes_by_hand(knobs: dict[str, object], tau: int, s: float) -> None:
    config = Config(fedasync=FedAsyncConfig(alpha=0.5, **knobs))  # type: ignore[arg-type]
    made, metrics = fedasync.server_update(state_of(a=4 - tau), replies({"a": model(8, 8, 9)}), config)
    alpha = 0.5 * s
    assert metrics["alpha"] == pytest.approx(alpha)
    assert made.arrays["w"] == pytest.approx((1 - alpha) * 40 + alpha * 8)
    assert made.arrays["mean"] == made.arrays["w"]
    assert made.arrays["steps"] == 9


def test_a_step_that_came_to_nothing_makes_no_version_and_loses_its_updates() -> None:
    state = state_of(a=4, b=1)
    made = stepped(state, None)
    assert (made.version, made.clock, made.arrays) == (4, 9.0, state.arrays)
    assert made.arriving == {}
    assert model_of(made, 2)["w"] == 20.0


def test_going_back_takes_the_oldest_model_at_work_and_not_the_time() -> None:
    rule = fedbuff.FedBuff(Config(algorithm="fedbuff"))
    good = AsyncState({"w": np.zeros(1)}, 2, 3.0)
    back = rule.roll_back(good, state_of(a=4))
    assert (back.version, back.clock) == (4, 9.0)
    assert back.arrays is good.arrays  # nobody was at work on an older one
    good = state_of()
    flight = {"y": np.array([10.0, 3.0]), **good.flight}
    back = rule.roll_back(replace(good, flight=flight), state_of(a=4))
    assert back.arrays["w"] == 20.0  # that of z, older than that of y
    assert back.flight == back.arriving == back.versions == {}


def test_a_buffer_for_more_updates_than_clients_at_work_is_said() -> None:
    said: list[str] = []
    rule = fedbuff.FedBuff(Config(algorithm="fedbuff", fedbuff=FedBuffConfig(buffer=3)))
    context = RoundContext(
        rule, ALGORITHMS["fedbuff"], 1, 0.1, (), ["a", "b"], ("w",), lambda names: {}, remark=said.append
    )
    begun = rule.begin(AsyncState({"w": np.zeros(1)}), context, lambda names: [1.0] * len(names))
    assert rule.drawn(begun) == ("a", "b")
    assert "takes 2 updates instead of 3" in said[0]


def test_an_update_is_measured_from_the_version_that_its_client_began_from() -> None:
    route = {"model": {"a": {"a": {"w": np.ones(2)}}, "b": {"b": {"w": np.zeros(2)}}}}
    received = Phase("train", ALGORITHMS["fedbuff"], ("a", "b"), route=route).received()
    assert received is not None
    assert received("a")["w"].tolist() == [1.0, 1.0]
    assert Phase("train", ALGORITHMS["fedavg"], ("a", "b")).received() is None


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_what_waits_for_slow_clients_is_read_by_nothing(name: str) -> None:
    for key, value in (("enough-replies", 2), ("stragglers", 0.5), ("devices.uplink", "shared")):
        with pytest.raises(ConfigError, match=f'"{key}": nothing in this run reads it'):
            read_config({"algorithm": name, key: value})


# --------------------------------------------------------------------------------------- in runs


def test_rows_hold_the_seconds_between_steps_which_are_the_trace_s(tmp_path: Path) -> None:
    """On like devices, 100 examples a second: a at 0.1, 0.2, 0.3, 0.4, b at 0.25; c at 0.45."""
    owners = {"a": 10, "b": 25, "c": 45}
    keys = keys_of(
        tmp_path, "fedasync", owners=owners, num_server_rounds=5, fraction_train=1.0, local_epochs=1,
        local_test_fraction=0.0, fraction_evaluate=0.0, devices__spread=0.0, devices__bandwidth=1e9,
    )  # fmt: skip
    rows = play(keys).rows[1:]
    assert [row["simulated_seconds"] for row in rows] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.1], abs=1e-6)
    assert [row["selected"] for row in rows] == [["a"], ["a"], ["b"], ["a"], ["a"]]
    assert [row["metrics"]["staleness-max"] for row in rows] == [0, 0, 2, 1, 0]


def test_it_goes_on_with_who_is_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ben is away from round 2 on, though he was at work."""
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)
    data = write_owners(tmp_path / "owners.npz")
    keys = keys_of(
        tmp_path, "fedbuff", num_classes=3, fraction_train=1.0, num_server_rounds=5, local_test_fraction=0.0,
        fraction_evaluate=0.0, fedbuff__buffer=2,
    )  # fmt: skip
    played = play(keys, grid_type=joining(tmp_path, data, lambda client, t: client != "ben" or t < 2))
    assert [row["quarantined"] for row in played.rows] == [[]] * 6
    assert [len(row["selected"]) for row in played.rows[1:]] == [2] * 5
    assert all("ben" not in row["selected"] for row in played.rows[2:])

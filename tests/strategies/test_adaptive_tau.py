"""Adaptive local steps: bound, books and both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import LocalTask, train
from strategies import AdaptiveTau
from strategies.engine.state import AggregatedReplies
from strategies.rules.adaptive_tau import (  # fmt: skip
    CLOSING,
    LAST,
    OVER,
    TRAINING,
    AdaptiveTauState,
    Estimates,
    bound,
    choose,
    drift,
    estimates,
    plan_next,
    server_update,
)
from task.config.algorithm_sections import AdaptiveTauConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.wire.messages import ClientUpdate
from tests.reference import adaptive_tau
from tests.support.federation import (
    SIZES,
    Keep,
    batches_of,
    far,
    linear,
    owners_config,
    play,
    read_by,
    write_owners,
)
from tests.support.models import OneNumber, one, task_on
from tests.support.rules import w, ways

PLAIN = AdaptiveTauConfig(budget=100.0, step_cost=1.0, round_cost=10.0, phi=0.1)


def state(**fields: Any) -> AdaptiveTauState:
    return AdaptiveTauState(w(0), **{"step_cost": 1.0, "round_cost": 10.0, **fields})


# ---------------------------------------------------------------------------------------- the bound


def test_h_is_0_at_one_step_and_rises() -> None:
    assert drift(1, 3.0, 2.0, 0.1) == 0.0
    values = [drift(tau, 3.0, 2.0, 0.1) for tau in range(1, 50)]
    assert values == sorted(values)
    # delta/beta ((eta beta + 1)^2 - 1) - 2 eta delta = delta eta^2 beta
    assert values[1] == pytest.approx(3.0 * 0.1**2 * 2.0)
    assert drift(100000, 3.0, 2.0, 0.1) == math.inf
    assert drift(50, 0.0, 2.0, 0.1) == 0.0


def test_g_by_hand() -> None:
    # T = 20, eta phi = 0.01: (1 + sqrt(1 + 4 * 400 * 0.1 * 2 * 0.1 * 0.5 / 4)) / 0.4 + 2 * 0.5
    assert bound(4, 20.0, 0.5, 2.0, 0.1, 0.1) == pytest.approx((1 + math.sqrt(5)) / 0.4 + 1)
    # without drift it is 1 / (T eta phi)
    assert bound(4, 20.0, 0.0, 2.0, 0.1, 0.1) == pytest.approx(1 / (20 * 0.01))
    assert bound(4, 0.0, 0.5, 2.0, 0.1, 0.1) == math.inf


def tau_for(divergence: float = 1.0, knobs: AdaptiveTauConfig = PLAIN, **fields: Any) -> int:
    return choose(state(tau=10, **fields), Estimates(1.0, 1.0, divergence), 0.1, knobs)


def test_what_moves_tau() -> None:
    by_cost = [tau_for(round_cost=b) for b in (0.1, 1.0, 10.0)]
    assert by_cost == sorted(by_cost)
    assert by_cost[0] < by_cost[-1]
    by_drift = [tau_for(delta) for delta in (0.01, 0.1, 1.0, 10.0)]
    assert by_drift == sorted(by_drift, reverse=True)
    assert by_drift[0] > by_drift[-1]
    assert tau_for(0.0) == 100  # nothing speaks against it: the cap
    assert choose(state(tau=3), Estimates(1.0, 1.0, 0.0), 0.1, PLAIN) == 30  # at most tenfold
    assert choose(state(tau=3), Estimates(1.0, 1.0, 0.0), 0.1, replace(PLAIN, tau_max=7)) == 7
    assert choose(state(tau=3), Estimates(None, None, 5.0), 0.1, PLAIN) == 3  # nobody could tell
    assert choose(state(tau=3), Estimates(1.0, 1.0, 0.0), 0.1, replace(PLAIN, fixed_tau=4)) == 4
    assert choose(state(tau=1), Estimates(1.0, 0.0, 1.0), 0.1, PLAIN) >= 1  # beta has a floor


# ---------------------------------------------------------------------------------------- estimates


def replies(
    rho: list[float],
    beta: list[float],
    gradient: list[list[float]],
    losses: list[float],
    n: list[int],
    **more: Any,
) -> AggregatedReplies:
    scalars = {
        "rho": rho,
        "beta": beta,
        "loss-before": losses,
        "step-seconds": more.pop("seconds_of", [0.0] * len(n)),
    }
    arrays = {"arrays": w(7), "gradient": {"w": np.array(gradient, np.float32)}}
    more |= {"reduce": ways("adaptive-tau")}
    return AggregatedReplies(arrays, tuple("abc"[: len(n)]), np.array(n), scalars, 2, 0.1, ("w",), **more)


def test_estimates_are_weighted_by_examples_and_leave_out_who_cannot_tell() -> None:
    # delta: mean gradient (1*0 + 3*4) / 4 = 3; (1*3 + 3*1) / 4 = 1.5
    found = estimates(replies([2.0, 6.0], [1.0, 5.0], [[0.0], [4.0]], [1, 1], [1, 3]))
    assert (found.rho, found.beta, found.divergence) == pytest.approx((5.0, 4.0, 1.5))
    found = estimates(replies([2.0, 0.0], [1.0, 0.0], [[0.0], [4.0]], [1, 1], [1, 3]))
    assert (found.rho, found.beta) == (2.0, 1.0)
    found = estimates(replies([0.0, 0.0], [0.0, 0.0], [[3.0, 4.0], [3.0, 4.0]], [1, 1], [1, 3]))
    assert (found.rho, found.beta, found.divergence) == (None, None, 0.0)


def test_estimates_weigh_as_the_models_are_averaged() -> None:
    # plain: delta: mean gradient 2, all are 2 away
    alike = np.array([1, 1])
    got = replies([2.0, 6.0], [1.0, 5.0], [[0.0], [4.0]], [2, 6], [1, 3], weights=alike)
    found = estimates(got)
    assert (found.rho, found.beta, found.divergence) == pytest.approx((4.0, 3.0, 2.0))
    assert got.number("loss-before") == 4.0


def test_the_norm_of_delta_is_over_all_parameters_together() -> None:
    got = replies([0, 0], [0, 0], [[0.0], [6.0]], [1, 1], [1, 1])
    got.arrays["gradient"]["v"] = np.array([[[0.0, 0.0]], [[8.0, 0.0]]], np.float32)
    assert estimates(got).divergence == pytest.approx(5.0)  # both are (3, 4) away from the mean


# ---------------------------------------------------------------------------------------- the books


def test_a_round_by_hand() -> None:
    config = Config(adaptive_tau=PLAIN)
    before = state(tau=4, spent=20.0, best=w(-1), best_loss=0.8)
    new, metrics = server_update(before, replies([1.0], [1.0], [[1.0]], [0.5], [2]), config)
    assert new.arrays["w"].tolist() == [7.0]
    assert (new.best["w"].tolist(), new.best_loss) == ([0.0], 0.5)  # the received model, not the new one
    assert new.spent == 34.0  # 20 + 4 * 1 + 10
    assert metrics["tau"] == 4
    assert metrics["spent"] == 34.0
    worse, _ = server_update(
        replace(before, best_loss=0.4), replies([1.0], [1.0], [[1.0]], [0.5], [2]), config
    )
    assert worse.best["w"].tolist() == [-1.0]


@pytest.mark.parametrize(
    ("spent", "tau", "wanted"),
    [
        (0.0, 5, (5, TRAINING)),  # 6 + 20 of 100
        (60.0, 50, (19, LAST)),  # of 40: 19 + 10, and 1 + 10 for the look
        (74.0, 5, (5, LAST)),  # of 26 exactly 5 + 10 + 1 + 10
        (75.0, 5, (4, LAST)),
        (78.0, 5, (1, LAST)),  # of 22: 1 + 10 + 1 + 10
        (78.5, 5, (1, CLOSING)),  # only the look
    ],
)
def test_the_end_of_the_budget(spent: float, tau: int, wanted: tuple[int, int]) -> None:
    after = plan_next(state(spent=spent), tau, PLAIN)
    assert (after.tau, after.phase) == wanted


def test_the_last_rounds() -> None:
    config = Config(adaptive_tau=PLAIN)
    got = replies([1.0], [1.0], [[1.0]], [0.5], [2])
    last = state(tau=4, phase=LAST, spent=70.0, best=w(3), best_loss=0.6)
    closing, _ = server_update(last, got, config)
    assert (closing.phase, closing.tau, closing.arrays["w"].tolist()) == (CLOSING, 1, [7.0])
    # the look: its training does not count; the loss of the model that was sent, 0.5, is the smallest
    over, metrics = server_update(closing, got, config)
    assert (over.phase, over.arrays["w"].tolist(), over.spent) == (OVER, [0.0], 95.0)
    other, _ = server_update(replace(closing, best=w(3), best_loss=0.4), got, config)
    assert other.arrays["w"].tolist() == [3.0]
    assert AdaptiveTau(config).rule.finished(over)
    assert not AdaptiveTau(config).rule.finished(closing)
    assert metrics["spent"] == 95.0


def test_measured_seconds_and_bytes() -> None:
    got = replies(
        [1.0, 1.0],
        [1.0, 1.0],
        [[1.0], [1.0]],
        [0.5, 0.5],
        [2, 2],
        seconds_of=[0.1, 0.3],
        seconds=5.0,
        bytes=40,
    )
    before = state(tau=4, spent=20.0)
    seconds, _ = server_update(before, got, Config(adaptive_tau=replace(PLAIN, resource="seconds")))
    # c of the slowest; b the rest: 5 - 4 * 0.3
    assert (seconds.step_cost, seconds.round_cost, seconds.spent) == pytest.approx((0.3, 3.8, 25.0))
    size, _ = server_update(before, got, Config(adaptive_tau=replace(PLAIN, resource="bytes")))
    assert (size.step_cost, size.round_cost, size.spent) == (0.0, 40.0, 60.0)


def test_a_skipped_round_costs_and_makes_tau_1() -> None:
    nobody = AggregatedReplies({}, (), np.zeros(0, np.int64), round=3)
    after = AdaptiveTau.rule_type(Config(adaptive_tau=PLAIN)).on_round_skipped(
        state(tau=40, spent=20.0), nobody, None
    )
    assert (after.tau, after.spent, after.phase) == (1, 70.0, TRAINING)
    assert after.arrays["w"].tolist() == [0.0]
    again = AdaptiveTau.rule_type(Config(adaptive_tau=PLAIN)).on_round_skipped(
        state(tau=1, phase=CLOSING), nobody, None
    )
    assert again.phase == CLOSING  # the look is tried again


# ---------------------------------------------------------------------------------------- client by hand


def solve(
    task: LocalTask, kept: dict[str, Any] | None = None, tau: int = 2
) -> tuple[ClientUpdate, dict[str, Any]]:
    solver = SOLVERS["adaptive-tau"](Config(), {"lr": task.lr, "local-steps": tau}, {}, [kept or {}])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        solver.begin(task)
        stats = train(task, solver)
        (finished,) = solver.finish(task, stats)
    return finished


def loss_at(v: float) -> float:
    return math.log1p(math.exp(-2 * v))


def slope(v: float) -> float:
    return -2 / (1 + math.exp(2 * v))


def test_rho_and_beta_by_hand() -> None:
    upload, kept = solve(one(0.2, local_steps=2, lr=0.5), {"local-model": w(1.5)})
    assert upload.scalars["rho"] == pytest.approx(abs(loss_at(1.5) - loss_at(0.2)) / 1.3, rel=1e-5)
    assert upload.scalars["beta"] == pytest.approx(abs(slope(1.5) - slope(0.2)) / 1.3, rel=1e-5)
    assert upload.scalars["loss-before"] == pytest.approx(loss_at(0.2))
    assert upload.arrays["gradient"]["w"].tolist() == pytest.approx([slope(0.2)])
    first = 0.2 - 0.5 * slope(0.2)
    wanted = first - 0.5 * slope(first)
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([wanted])
    assert kept["local-model"]["w"].tolist() == pytest.approx([wanted])
    assert upload.scalars["step-seconds"] == 0.0


def test_a_new_client_and_one_that_did_not_move_cannot_tell() -> None:
    for kept in ({}, {"local-model": w(0.2)}):
        upload, _ = solve(one(0.2, local_steps=2, lr=0.5), kept)
        assert (upload.scalars["rho"], upload.scalars["beta"]) == (0.0, 0.0)


def test_both_points_are_measured_on_the_first_minibatch() -> None:
    x, y = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0])
    upload, _ = solve(task_on(OneNumber(0.2), x, y, batch_size=1, local_steps=2), {"local-model": w(1.5)})
    wanted = []
    for a, label in ((2.0, 1), (1.0, 0), (3.0, 0)):
        losses = [math.log1p(math.exp((-1 if label else 1) * a * v)) for v in (0.2, 1.5)]
        wanted.append(abs(losses[1] - losses[0]) / 1.3)
    assert min(abs(upload.scalars["rho"] - v) for v in wanted) < 1e-5


# ---------------------------------------------------------------------------------------- the pipeline

COSTS = {"adaptive_tau__budget": 60.0, "adaptive_tau__step_cost": 0.5, "adaptive_tau__round_cost": 2.0}
KEYS: dict[str, Any] = {
    **COSTS, "learning_rate": 0.3, "batch_size": 4, "num_server_rounds": 60, "adaptive_tau__tau_max": 20,
}  # fmt: skip


def config(path: Path, **keys: Any) -> dict[str, Any]:
    return owners_config(path, algorithm="adaptive-tau", **{**KEYS, **keys})


@pytest.mark.parametrize(
    "keys", [{}, {"batch_size": 0}, {"adaptive_tau__phi": 0.5}, {"adaptive_tau__phi": 5.0}]
)
def test_the_pipeline_equals_the_reference(keys: dict[str, Any], tmp_path: Path) -> None:
    data = write_owners(tmp_path / "owners.npz")
    played = play(config(tmp_path / "owners.npz", state_dir=str(tmp_path / "state"), **keys), nodes=1)
    names = list(played.names)
    drawn = batches_of(3, names, SIZES, keys.get("batch_size", 4))
    trace = adaptive_tau.run(
        data, played.arrays(0), cohorts=[names] * 60, lr=0.3, budget=60.0, c=0.5, b=2.0,
        phi=keys.get("adaptive_tau__phi", 0.025), tau_max=20,
        batches=lambda t, k, draw: drawn(t, names.index(k), draw),
    )  # fmt: skip
    rows, taus = played.rows[1:], [s.ran for s in trace.at[1:-1]]
    assert [row["metrics"]["tau"] for row in rows[:-1]] == taus
    assert [row["metrics"]["spent"] for row in rows] == pytest.approx(trace.spent[1:])
    assert [row["metrics"]["loss-before"] for row in rows] == pytest.approx(
        [s.loss for s in trace.at[1:]], rel=1e-5
    )
    assert trace.spent[-1] <= 60.0 + 1e-9
    assert 60.0 - trace.spent[-1] < 0.5 + 2.0 + 1e-9  # no further round would have fitted
    assert trace.at[-1].ended  # the rule ended the run, not the number of rounds
    for t, model in enumerate(trace.w):
        assert far(played.linear(t), linear(model)) < 1e-5, t
    assert (max(taus) > 1) == (keys.get("adaptive_tau__phi") != 5.0)  # a large phi fears all drift


def test_a_finished_run_that_is_restored_stays_finished(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = config(tmp_path / "owners.npz", state_dir=str(tmp_path / "state"))
    whole = play(keys)
    again = Keep(restore=whole.keep.snapshots[-1])
    assert play(keys, journal=again).rows == []


@pytest.mark.parametrize(("resource", "budget"), [("model", 0.28), ("bytes", 7.0)])
def test_a_budget_smaller_than_one_round_is_refused_before_round_1(resource: str, budget: float) -> None:
    knobs = AdaptiveTauConfig(budget=budget, resource=resource)
    with pytest.raises(
        ConfigError, match=r'"adaptive-tau.budget": expected float >= (0\.2892|8), what one round'
    ):
        AdaptiveTau(Config(algorithm="adaptive-tau", adaptive_tau=knobs)).rule.initial_state(w(1), ("w",))


def test_bytes_are_a_budget_too(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = config(
        tmp_path / "owners.npz", state_dir=str(tmp_path / "state"), adaptive_tau__resource="bytes",
        adaptive_tau__budget=20000.0,
    )  # fmt: skip
    played = play(read_by(keys))
    moved = sum(row["bytes_up"] + row["bytes_down"] for row in played.rows)
    assert played.rows[-1]["metrics"]["spent"] == moved
    one_round = max(row["bytes_up"] + row["bytes_down"] for row in played.rows)
    assert moved <= 20000 + one_round
    assert linear(played.arrays(0))[0].shape == (4, 3)

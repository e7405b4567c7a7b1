"""q-FedAvg and q-FedSGD: both halves by hand, the pipeline against the reference, big q and tiny losses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import LocalTask, full_loss, train
from strategies import QFedAvg
from strategies.engine.state import AggregatedReplies
from strategies.rules.qfedavg import QFFLState, gradient_update, server_update
from task.config.algorithm_sections import QFFLConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.read import read_config
from task.wire.messages import ClientUpdate
from tests.reference import qffl
from tests.support.federation import (
    Data,
    far,
    linear,
    loss_and_gradient,
    owners_config,
    play,
)
from tests.support.models import Noisy, OneNumber, blobs, one, task_on
from tests.support.rules import w, ways


def config(q: float) -> Config:
    return Config(algorithm="qfedavg", qffl=QFFLConfig(q=q))


def solve(name: str, task: LocalTask, q: float, reference: float = 1.0) -> ClientUpdate:
    solver = SOLVERS[name](config(q), {"lr": task.lr, "reference-loss": reference}, {}, [{}])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        solver.begin(task)
        stats = train(task, solver) if solver.trains else []
        ((upload, _),) = solver.finish(task, stats)
    return upload


# ---------------------------------------------------------------------------------------- client by hand


@pytest.mark.parametrize("reference", [1.0, 0.25])
def test_client_by_hand(reference: float) -> None:
    """From w = 0: F = log 2, F' = -1, one step of 0.5 leads to 0.5. With q = 2 and L = 2:
    Dw = -1, Delta = F^2 Dw, h = 2 F Dw^2 + L F^2; sent are -Delta / L and h / L in units of F_ref^2.
    """
    upload = solve("qfedavg", one(lr=0.5), 2.0, reference)
    F, L = math.log(2), 2.0
    unit = L * reference**2
    assert upload.arrays["delta"]["w"].tolist() == pytest.approx([F**2 * 1.0 / unit], rel=1e-6)
    assert upload.scalars["lipschitz"] == pytest.approx((2 * F * 1.0 + L * F**2) / unit, rel=1e-6)
    assert upload.scalars["loss-before"] == pytest.approx(F)
    gradient = solve("qfedsgd", one(lr=0.5), 2.0, reference)
    assert gradient.arrays["gradient"]["w"].tolist() == pytest.approx([-(F**2) / reference**2], rel=1e-6)
    assert gradient.scalars["lipschitz"] == pytest.approx(upload.scalars["lipschitz"])


def test_the_loss_is_that_of_the_received_model_on_all_examples() -> None:
    x, y = torch.tensor([2.0, 1.0, -1.0]), torch.tensor([1, 0, 0])
    task = task_on(OneNumber(0.3), x, y, batch_size=2, epochs=3, lr=0.4)
    losses = [math.log1p(math.exp(-0.6)), math.log1p(math.exp(0.3)), math.log1p(math.exp(-0.3))]
    upload = solve("qfedavg", task, 1.0)
    assert upload.scalars["loss-before"] == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert upload.scalars["train-loss"] != pytest.approx(sum(losses) / 3, rel=1e-3)


def test_several_steps_make_dw_their_sum() -> None:
    sigmoid = 1 / (1 + math.exp(1.0))
    moved = 0.5 + sigmoid  # as plain SGD: 0.5, then 0.5 * 2 sigmoid(-1) more
    upload = solve("qfedavg", one(lr=0.5, epochs=2), 1.0)
    F = math.log(2)
    assert upload.arrays["delta"]["w"].tolist() == pytest.approx([F * moved], rel=1e-6)
    assert upload.scalars["lipschitz"] == pytest.approx(F + 0.5 * (moved / 0.5) ** 2, rel=1e-6)


def test_buffers_are_sent_apart_and_measuring_does_not_touch_them() -> None:
    x, y = blobs(12)
    plain = SOLVERS["sgd"](Config(), {}, {}, [{}])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        task = task_on(Noisy(), x, y, batch_size=4)
        stats = train(task, plain)
        ((want, _),) = plain.finish(task, stats)
    got = solve("qfedavg", task_on(Noisy(), x, y, batch_size=4), 0.0).arrays
    names = set(want.arrays["arrays"])
    assert set(got["delta"]) == {"norm.weight", "norm.bias", "out.weight", "out.bias"}
    assert set(got["buffers"]) == names - set(got["delta"])
    for name, a in got["buffers"].items():
        assert np.array_equal(a, want.arrays["arrays"][name])
    start = Noisy().state_dict()
    for name, delta in got["delta"].items():
        assert delta == pytest.approx(want.arrays["arrays"][name] - start[name].numpy(), abs=1e-7)


def test_full_loss_goes_by_chunks_and_counts_padding_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(23)
    whole = full_loss(task_on(Noisy(), x, y))
    monkeypatch.setattr("client_app.training.loop.CHUNK", 5)
    assert full_loss(task_on(Noisy(), x, y)) == pytest.approx(whole, rel=1e-6)


# ---------------------------------------------------------------------------------------- server by hand


def replies(
    name: str, arrays: list[float], h: list[float], losses: list[float], lr: float = 0.5
) -> AggregatedReplies:
    scalars = {"lipschitz": h, "loss-before": losses}
    sums = {name: w(sum(arrays))} | (
        {"buffers": {"mean": np.array([4.0], np.float32)}} if name == "delta" else {}
    )
    clients = tuple("abc"[: len(arrays)])
    return AggregatedReplies(
        sums, clients, np.array([1, 3, 5][: len(arrays)]), scalars, 1, lr, reduce=ways("qfedavg")
    )


def test_server_by_hand() -> None:
    # (3 + 1) / (1 + 7) = 0.5 from 10; the next F_ref is the largest loss; buffers are taken over
    state = QFFLState(w(10) | {"mean": np.array([1.0], np.float32)}, reference_loss=9.0)
    new, metrics = server_update(state, replies("delta", [3.0, 1.0], [1.0, 7.0], [0.25, 2.0]), config(1.0))
    assert new.arrays["w"].tolist() == [10.5]
    assert new.arrays["w"].dtype == np.float32
    assert new.arrays["mean"].tolist() == [4.0]
    assert new.reference_loss == 2.0
    assert metrics == {"reference-loss": 9.0, "worst-loss": 2.0}
    assert state.arrays["w"].tolist() == [10.0]


def test_server_of_qfedsgd_by_hand() -> None:
    # 10 - 0.5 * (3 + 1) / 8; buffers stay
    state = QFFLState(w(10) | {"mean": np.array([1.0], np.float32)})
    new, _ = gradient_update(state, replies("gradient", [3.0, 1.0], [1.0, 7.0], [0.25, 2.0]), config(1.0))
    assert new.arrays["w"].tolist() == [9.75]
    assert new.arrays["mean"].tolist() == [1.0]


def test_all_losses_zero_keep_the_reference_above_0() -> None:
    new, _ = server_update(QFFLState(w(1)), replies("delta", [0.0], [1.0], [0.0]), config(0.5))
    assert new.reference_loss > 0


# ---------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("algorithm", ["qfedavg", "qfedsgd"])
def test_big_q_with_tiny_and_huge_losses_stays_finite_and_moves(
    algorithm: str, scale: float, tmp_path: Path
) -> None:
    """F^q would be 1e-300 or 1e+150: nobody is quarantined, no 0 / 0, and the worst-off gets better."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 2)).astype(np.float32) * scale
    y = (x[:, 0] > 0).astype(np.int64)
    x[:, 0] *= 40.0 if scale < 1 else 1.0
    np.savez(tmp_path / "o.npz", x=x, y=y, client=np.repeat(["a", "b", "c"], 8), x_test=x[:2], y_test=y[:2])
    keys = {"qffl__q": 100.0, "learning_rate": 0.5, "num_server_rounds": 12}
    played = play(owners_config(tmp_path / "o.npz", algorithm=algorithm, **keys))
    assert all(row["quarantined"] == [] for row in played.rows)
    taken = [row for row in played.rows[1:] if not row["skipped"]]
    worst = [row["metrics"]["worst-loss"] for row in taken]
    assert len(taken) >= 11  # but for the first, where F_ref is a guess
    assert all(math.isfinite(v) for v in worst)
    assert worst[-1] < worst[0]


def write_unequal(path: Path) -> Data:
    """Six clients of which one learns what the others do the other way round, so that its loss stays high."""
    rng, names = np.random.default_rng(5), "abcdef"
    x = rng.normal(size=(60, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    y[:10] = 1 - y[:10]
    x *= np.repeat([2, 1, 3, 6, 6, 12], 10)[:, None].astype(np.float32)
    np.savez(path, x=x, y=y, client=np.repeat([*names], 10), x_test=x[:2], y_test=y[:2])
    return {c: (x[10 * k : 10 * k + 10], y[10 * k : 10 * k + 10]) for k, c in enumerate(names)}


@pytest.mark.parametrize("q", [5.0, 15.0])
@pytest.mark.parametrize("algorithm", ["qfedavg", "qfedsgd"])
def test_every_step_that_is_taken_is_exact_whoever_came_before(
    algorithm: str, q: float, tmp_path: Path
) -> None:
    """Two of six clients a round, with losses that differ by the power of q; each round by itself."""
    data = write_unequal(tmp_path / "o.npz")
    keys: dict[str, Any] = {"qffl__q": q, "learning_rate": 1.0, "fraction_train": 0.34}
    played = play(owners_config(tmp_path / "o.npz", algorithm=algorithm, num_server_rounds=40, **keys))
    rows = played.rows[1:]
    run = {"qfedavg": qffl.run, "qfedsgd": qffl.run_sgd}[algorithm]
    spread, skipped = [], 0
    for t, (row, cohort) in enumerate(zip(rows, played.selected(), strict=True), 1):
        before, after = played.linear(t - 1), played.linear(t)
        losses = [loss_and_gradient(before, *data[c])[0] for c in cohort]
        if row["skipped"]:
            skipped += 1
            assert far(after, before) == 0
            continue
        spread.append(min(losses) / max(losses))
        whole = {"batches": lambda t, k, draw: [np.arange(10)], "lr": 1.0, "q": q}
        want = linear(run(data, played.arrays(t - 1), cohorts=[cohort], **whole).w[1])
        assert far(after, want) < 1e-4 * far(want, before) + 1e-6, t
    assert skipped <= 2
    assert min(spread) < 0.3


@pytest.mark.parametrize("name", ["qfedavg", "qfedsgd"])
def test_a_cohort_far_below_f_ref_by_hand(name: str) -> None:
    """At w = -0.42, F = log(1 + e^0.84) = 1.20 of a and log(1 + e^-0.84) = 0.36 of b; F_ref is 3, q = 15.

    Of the largest weight, (1.20 / 3)^15 = 2^-19.8, b has 2^-26; at 2^-24 in all it would have 2^-4.2, 5 %.
    """
    start, q, lr, total, h, losses = -0.42, 15.0, 0.5, 0.0, [], []
    step = slope = 0.0
    for y in (1, 0):
        task = task_on(OneNumber(start), torch.tensor([2.0]), torch.tensor([y]), lr=lr)
        upload = solve(name, task, q, 3.0)
        total += float(upload.arrays["delta" if name == "qfedavg" else "gradient"]["w"][0])
        h.append(upload.scalars["lipschitz"])
        losses.append(math.log1p(math.exp(-2 * start if y else 2 * start)))
        g = (-2 if y else 2) * (1 - math.exp(-losses[-1]))
        step += losses[-1] ** q * g
        slope += q * losses[-1] ** (q - 1) * g**2 + losses[-1] ** q / lr
    came = replies("delta" if name == "qfedavg" else "gradient", [total, 0.0], h, losses, lr)
    update = server_update if name == "qfedavg" else gradient_update
    new, _ = update(QFFLState(w(0.0), reference_loss=3.0), came, config(q))
    assert new.arrays["w"].tolist() == pytest.approx([-step / slope], rel=1e-5)


def test_a_round_whose_weights_cannot_be_added_keeps_the_model_and_is_the_next_ones_measure() -> None:
    strategy = QFedAvg(config(15.0))
    for loss, taken in ((0.34, True), (0.32, False), (2.95, True), (3.1, False)):
        state = QFFLState(w(10) | {"mean": np.array([1.0], np.float32)})
        came = replies("delta", [3.0, 1.0], [1.0, 7.0], [0.01, loss])
        if taken:
            assert server_update(state, came, strategy.config)[0].arrays["w"].tolist() == [10.5]
            continue
        with pytest.raises(ArithmeticError, match=rf"F_ref = 1; got 2\^.* a loss of {loss:g} and q = 15"):
            server_update(state, came, strategy.config)
        kept = strategy.rule.on_round_skipped(state, replace(came, clients=()), came)
        assert isinstance(kept, QFFLState)
        assert (kept.arrays["w"].tolist(), kept.reference_loss) == ([10.0], loss)
        assert server_update(kept, came, strategy.config)[0].arrays["w"].tolist() == [10.5]


def test_a_small_weight_is_not_cut() -> None:
    # (log 2)^q in units of 4^q at q = 30: 2^-76
    upload = solve("qfedavg", one(lr=0.5), 30.0, 4.0)
    a = (math.log(2) / 4.0) ** 30
    assert upload.arrays["delta"]["w"].tolist() == pytest.approx([a * 0.5], rel=1e-6)
    assert upload.scalars["lipschitz"] == pytest.approx(a * (1 + 30 * 0.5 / math.log(2)), rel=1e-6)


def test_a_loss_of_exactly_0_counts() -> None:
    # x = 2, w = 100: log(1 + e^-200) is 0 in float32
    upload = solve("qfedavg", one(100.0), 5.0)
    assert upload.scalars["loss-before"] == 0.0
    assert 0 < upload.scalars["lipschitz"] < math.inf


@pytest.mark.parametrize("key", ["momentum", "weight-decay", "local-steps"])
def test_qfedsgd_takes_no_steps(key: str) -> None:
    with pytest.raises(ConfigError, match=f'"{key}": nothing in this run reads it'):
        read_config({"algorithm": "qfedsgd", key: 1 if key == "local-steps" else 0.5})

"""FedAvgM, FedAdagrad, FedAdam, FedYogi: by hand, the pipeline against the reference, memory that lasts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies import STRATEGIES, FedAdam, FedAvgM
from strategies.engine.state import ServerState
from strategies.rules.fedopt import FedOptState
from task.config.algorithm_sections import FedAvgMConfig, FedOptConfig
from task.config.knobs import Config
from task.numerics.arrays import Arrays, sha256
from task.wire import messages as wire
from tests.support.apps import named_app
from tests.support.federation import (
    owners_config,
    play,
    write_owners,
)
from tests.support.grid import LocalGrid
from tests.support.rules import reduced, w

ADAPTIVE = ["fedadagrad", "fedadam", "fedyogi"]
FOUR = ["fedavgm", *ADAPTIVE]


def steps(algorithm: str, config: Config, *deltas: float, start: Arrays | None = None) -> list[float]:
    """Return the one parameter after each step from 0, the mean update being `deltas`."""
    state: Any = FedOptState(start or w(0.0, dtype=np.float64))
    seen = []
    for delta in deltas:
        mean = {"w": state.arrays["w"] + delta}
        state, _ = STRATEGIES[algorithm].update(
            state, reduced(algorithm, {"a": (mean, 1)}, trainable=("w",)), config
        )
        seen.append(float(state.arrays["w"][0]))
    return seen


def momentum(**knobs: Any) -> Config:
    return Config(algorithm="fedavgm", fedavgm=FedAvgMConfig(**knobs))


def adaptive(**knobs: Any) -> Config:
    return Config(fedopt=FedOptConfig(**knobs))


# ---------------------------------------------------------------------------------------- by hand


def test_heavy_ball_by_hand() -> None:
    # m: 1, 0.5*1 + 1 = 1.5, 0.5*1.5 - 1 = -0.25; w += 0.1 m
    got = steps("fedavgm", momentum(server_lr=0.1, momentum=0.5, nesterov=False), 1, 1, -1)
    assert got == pytest.approx([0.1, 0.25, 0.225], abs=1e-15)


def test_nesterov_by_hand() -> None:
    # m as above; w += 0.1 (0.5 m + delta): 0.1 * 1.5, 0.1 * 1.75, 0.1 * (-1.125)
    got = steps("fedavgm", momentum(server_lr=0.1, momentum=0.5, nesterov=True), 1, 1, -1)
    assert got == pytest.approx([0.15, 0.325, 0.2125], abs=1e-15)


def test_adagrad_by_hand() -> None:
    # tau = 1: v = 1 + 3 = 4 would need delta^2 = 3; take delta = sqrt(3), twice sqrt(3) * sqrt(5/3):
    # v: 1, 4, 9; steps 2 sqrt(3) / (2 + 1), 2 sqrt(5) / (3 + 1)
    a, b = 3**0.5, 5**0.5
    assert steps("fedadagrad", adaptive(server_lr=2.0, tau=1.0), a, b) == pytest.approx(
        [2 * a / 3, 2 * a / 3 + b / 2], abs=1e-14
    )


def test_adagrad_has_a_beta1_of_its_own() -> None:
    config = adaptive(server_lr=1.0, tau=1.0, beta1=0.9, adagrad_beta1=0.75)
    # m = 0.25 sqrt(3), v = 4: 0.25 sqrt(3) / 3
    assert steps("fedadagrad", config, 3**0.5) == pytest.approx([3**0.5 / 12], abs=1e-15)


def test_adam_by_hand() -> None:
    # beta1 = beta2 = 0.5, tau = 1. delta 7: m = 3.5, v = 0.5 + 24.5 = 25: 3.5 / 6.
    # delta 0: m = 1.75, v = 12.5: 1.75 / (sqrt(12.5) + 1)
    config = adaptive(server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.5)
    first = 3.5 / 6
    assert steps("fedadam", config, 7, 0) == pytest.approx([first, first + 1.75 / (12.5**0.5 + 1)], abs=1e-14)


def test_yogi_by_hand() -> None:
    # beta1 = 0, beta2 = 0.5, tau = 2: v = 4. delta^2 = v: v stays (sign 0), step 2 / (2 + 2). delta 4 > 2:
    # v = 4 + 0.5 * 16 = 12, step 4 / (sqrt(12) + 2). delta 2 < sqrt(12): v = 12 - 0.5 * 4 = 10.
    config = adaptive(server_lr=1.0, tau=2.0, beta1=0.0, beta2=0.5)
    want = np.cumsum([0.5, 4 / (12**0.5 + 2), 2 / (10**0.5 + 2)])
    assert steps("fedyogi", config, 2, 4, 2) == pytest.approx(want.tolist(), abs=1e-14)


def test_tau_stands_outside_the_root_and_v_begins_at_its_square() -> None:
    # no update: nothing moves; with beta2 ~ 1, v stays tau^2 and a tiny one moves by eta delta / (2 tau)
    config = adaptive(server_lr=1.0, tau=0.25, beta1=0.0, beta2=1 - 2**-53)
    assert steps("fedadam", config, 0) == [0.0]
    assert steps("fedadam", config, 2**-20) == [2**-19]


@pytest.mark.parametrize("algorithm", ["fedadam", "fedyogi"])
def test_bias_correction_makes_the_first_step_one_of_eta(algorithm: str) -> None:
    # m / (1 - beta1) = delta, v / (1 - beta2) = delta^2: eta delta / (|delta| + tau); with Flower's exponent
    # t + 1 it would be 0.742 of it
    config = adaptive(server_lr=0.1, tau=1.0, bias_correction=True)
    assert steps(algorithm, config, 3) == pytest.approx([0.1 * 3 / 4], abs=1e-15)
    # without it: m = 0.3, v = 0.99 + 0.09 = 1.08 (Adam), 1 + 0.09 (Yogi)
    v = 1.08 if algorithm == "fedadam" else 1.09
    plain = replace(config.fedopt, bias_correction=False)
    assert steps(algorithm, Config(fedopt=plain), 3) == pytest.approx([0.1 * 0.3 / (v**0.5 + 1)], abs=1e-15)


def test_bias_correction_counts_the_steps_that_were_taken() -> None:
    # Adam with constant delta: m_t / (1 - beta1^t) = delta and v_t / (1 - beta2^t) = delta^2 for every t
    config = adaptive(server_lr=0.1, tau=1.0, bias_correction=True)
    assert steps("fedadam", config, 3, 3, 3, 3) == pytest.approx([0.075, 0.15, 0.225, 0.3], abs=1e-14)


def test_adagrad_with_bias_correction_sums_from_zero() -> None:
    # v = 9, 25; m corrected is delta and then (0.25*3*0.75 + 0.25*4) / (1 - 0.75^2)
    config = adaptive(server_lr=1.0, tau=1.0, adagrad_beta1=0.75, bias_correction=True)
    want = [3 / 4, 3 / 4 + (0.1875 * 3 + 0.25 * 4) / (1 - 0.5625) / 6]
    assert steps("fedadagrad", config, 3, 4) == pytest.approx(want, abs=1e-14)


def test_the_mean_update_is_weighted_by_examples() -> None:
    # (1*2 + 3*6) / 4 = 5
    state = FedOptState(w(1))
    replies = reduced("fedavgm", {"a": (w(2), 1), "b": (w(6), 3)}, trainable=("w",))
    new, metrics = FedAvgM.update(state, replies, momentum(server_lr=0.5, momentum=0.0))
    assert new.arrays["w"].tolist() == [3.0]
    assert metrics == {}


# -------------------------------------------------------------------------- buffers, dtypes, purity


def model(dtype: type, variance: float) -> Arrays:
    return {
        "norm.weight": np.array([1.0, -2.0], dtype),
        "norm.running_var": np.array([variance], np.float32),
        "norm.num_batches_tracked": np.array(4, np.int64),
        "scalar": np.array(0.5, dtype),
        "none": np.zeros((0, 3), dtype),
    }


TRAINABLE = ("norm.weight", "scalar", "none")


@pytest.mark.parametrize("algorithm", FOUR)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_buffers_are_averaged_and_every_dtype_stays(algorithm: str, dtype: type) -> None:
    state: Any = FedOptState(model(dtype, 1.0))
    config = Config(fedavgm=FedAvgMConfig(server_lr=1.0, momentum=0.9), fedopt=FedOptConfig(server_lr=1.0))
    kinds = {k: a.dtype for k, a in state.arrays.items()}
    for _ in range(8):  # momentum of a falling variance overshoots 0 if it is stepped
        sent = {k: (a - np.asarray(0.01, dtype) if a.dtype == dtype else a) for k, a in state.arrays.items()}
        low = sent | {
            "norm.running_var": state.arrays["norm.running_var"] * np.float32(0.5),
            "norm.num_batches_tracked": state.arrays["norm.num_batches_tracked"] + 3,
        }
        before = sha256(state.arrays)
        new, _ = STRATEGIES[algorithm].update(
            state, reduced(algorithm, {"a": (low, 2), "b": (low, 1)}, trainable=TRAINABLE), config
        )
        assert sha256(state.arrays) == before  # pure
        state = new
    assert {k: a.dtype for k, a in state.arrays.items()} == kinds
    assert {k: a.shape for k, a in state.arrays.items()} == {k: a.shape for k, a in model(dtype, 1).items()}
    assert list(state.arrays) == list(model(dtype, 1.0))
    assert state.arrays["norm.running_var"].tolist() == [0.5**8]
    assert int(state.arrays["norm.num_batches_tracked"]) == 4 + 8 * 3
    assert (state.arrays["norm.weight"] < [0.9, -2.1]).all()
    assert set(state.momentum) == set(TRAINABLE)
    assert {a.dtype for a in state.momentum.values()} == {np.promote_types(dtype, np.float32)}
    assert set(state.second_moment) == (set() if algorithm == "fedavgm" else set(TRAINABLE))


def test_a_model_larger_than_a_block_and_one_that_is_not_contiguous() -> None:
    rng = np.random.default_rng(1)
    start = {"w": np.asfortranarray(rng.normal(size=(130, 201)).astype(np.float32))}
    mean = {"w": rng.normal(size=(130, 201)).astype(np.float32)}
    new, _ = FedAdam.update(
        FedOptState(start), reduced("fedadam", {"a": (mean, 1)}, trainable=("w",)), Config()
    )
    delta = mean["w"].astype(np.float64) - start["w"]
    v = 0.99e-6 + 0.01 * delta**2
    want = start["w"] + 0.1 * 0.1 * delta / (np.sqrt(v) + 1e-3)
    assert np.allclose(new.arrays["w"], want, rtol=0, atol=3e-7)
    assert new.arrays["w"].dtype == np.float32


def variance_falls(algorithm: str, **knobs: Any) -> Arrays:
    """Run a rule on clients of somebody else's app, which names no parameters; return the last model."""

    def work(client: str, order: wire.TrainOrder) -> wire.ClientUpdate:
        got = order.arrays["arrays"]
        lower = got | {"norm.running_var": got["norm.running_var"] * np.float32(0.5), "w": got["w"] - 1}
        return wire.ClientUpdate({"arrays": lower}, {"num-examples": 1, "train-loss": 1.0})

    start = {
        "w": np.zeros(1, np.float32),
        "norm.running_var": np.ones(1, np.float32),
        "norm.num_batches_tracked": np.array(0, np.int64),
    }
    grid = LocalGrid(named_app(lambda context: {"a": 1}, work, algorithm), [{}])
    result = STRATEGIES[algorithm](**knobs).start(grid, wire.pack_arrays(start), num_rounds=12)
    return wire.read_arrays(result.arrays)


@pytest.mark.parametrize("algorithm", FOUR)
def test_running_statistics_are_no_parameters_even_if_nobody_says_so(algorithm: str) -> None:
    """Flower's FedAdam drives a BatchNorm's variance below zero in these twelve rounds."""
    last = variance_falls(algorithm)
    assert last["norm.running_var"].tolist() == [0.5**12]
    assert last["w"][0] < -1e-3
    assert {a.dtype for a in last.values()} == {np.dtype(np.float32), np.dtype(np.int64)}


# -------------------------------------------------------------------------------------- checkpoint


def test_a_skipped_round_is_no_step(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", algorithm="fedadam", num_server_rounds=4)

    def emptied(node: int, reply: Message) -> Message:
        if reply.metadata.group_id != "4":
            reply.content.clear()
        return reply

    lost = play(keys, tamper=emptied)
    state: ServerState | None = lost.strategy.state
    assert isinstance(state, FedOptState)
    assert [row["skipped"] for row in lost.rows[1:]] == [True, True, True, False]
    assert state.steps == 1
    assert {row["model_sha256"] for row in lost.rows[:4]} == {lost.rows[0]["model_sha256"]}

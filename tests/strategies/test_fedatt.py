"""FedAtt: attention by hand, layer by layer, and the pipeline against the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from strategies.engine.state import ServerState
from strategies.rules.fedatt import COLUMNS, attention, distances, server_update
from task.config.algorithm_sections import FedAttConfig
from task.config.knobs import Config
from task.numerics.arrays import Arrays, sha256
from tests.reference.fedatt import layer
from tests.support.rules import reduced, w


def att(**knobs: Any) -> Config:
    return Config(algorithm="fedatt", fedatt=FedAttConfig(**knobs))


def step(start: Arrays, replies: dict[str, tuple[Arrays, int]], config: Config, *trainable: str) -> Arrays:
    """Return the model after one update."""
    got = reduced("fedatt", replies, trainable=trainable or ("w",))
    return server_update(ServerState(start), got, config)[0].arrays


def test_by_hand() -> None:
    # distances |(3, 4)| = 5 and 5 + ln 3; softmax 1/4, 3/4; differences w - w_k: (-3, -4), (0, -(5 + ln 3));
    # w = 0 + 1.2 (1/4 (3, 4) + 3/4 (0, 5 + ln 3))
    far_one = 5 + math.log(3)
    start = w(0, 0, dtype=np.float64)
    replies = {"a": (w(3, 4, dtype=np.float64), 1), "b": (w(0, far_one, dtype=np.float64), 99)}
    state, metrics = server_update(ServerState(start), reduced("fedatt", replies, trainable=("w",)), att())
    want = [1.2 * 0.75, 1.2 * (1 + 0.75 * far_one)]
    assert state.arrays["w"].tolist() == pytest.approx(want, abs=1e-14)
    assert metrics == {"attention-max": pytest.approx(0.75, abs=1e-14)}
    assert start["w"].tolist() == [0.0, 0.0]  # pure


def test_temperature_and_p_by_hand() -> None:
    # p = 1: distances 7 and 7 + 2 ln 3 over T = 2: softmax 1/4, 3/4 again; epsilon 0.5
    far_one = 7 + 2 * math.log(3)
    replies = {"a": (w(3, 4, dtype=np.float64), 1), "b": (w(0, -far_one, dtype=np.float64), 1)}
    got = step(w(0, 0, dtype=np.float64), replies, att(epsilon=0.5, p=1.0, temperature=2.0))
    assert got["w"].tolist() == pytest.approx([0.375, 0.5 - 0.375 * far_one], abs=1e-14)


def test_equal_distances_and_epsilon_1_are_the_unweighted_mean() -> None:
    # both are 2 away from (1, 1); n_k is not used
    replies = {"a": (w(3, 1), 1), "b": (w(1, -1), 1000)}
    assert step(w(1, 1), replies, att(epsilon=1.0))["w"].tolist() == [2.0, 0.0]


def test_the_farther_client_counts_more_and_a_great_distance_saturates() -> None:
    replies = {"a": (w(1), 1), "b": (w(2), 1)}
    alpha = attention(distances(w(0)["w"], np.array([[1], [2]], np.float32), 2.0), 1.0)
    assert alpha.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert step(w(0), replies, att(epsilon=1.0))["w"][0] > 1.5
    # e^-1000 is 0 in float64 and nothing overflows
    assert step(w(0), {"a": (w(1), 1), "b": (w(1001), 1)}, att(epsilon=1.0))["w"].tolist() == [1001.0]


def test_each_layer_has_an_attention_of_its_own() -> None:
    # in u client b is farther, in v client a; log 3 apart: 1/4, 3/4 and 3/4, 1/4
    log3 = math.log(3)
    start = {"u": np.zeros(1), "v": np.zeros(1)}
    replies = {
        "a": ({"u": np.array([1.0]), "v": np.array([1 + log3])}, 1),
        "b": ({"u": np.array([1 + log3]), "v": np.array([1.0])}, 1),
    }
    got = step(start, replies, att(epsilon=1.0), "u", "v")
    assert got["u"].tolist() == pytest.approx([1 + 0.75 * log3], abs=1e-14)
    assert got["v"].tolist() == pytest.approx([1 + 0.75 * log3], abs=1e-14)


def test_equal_clients_are_overshot_by_epsilon() -> None:
    assert step(w(1), {"a": (w(2), 1), "b": (w(2), 5)}, att(epsilon=1.5))["w"].tolist() == [2.5]


def test_buffers_get_the_plain_mean_and_dtypes_stay() -> None:
    def model(weight: float, variance: float, seen: int) -> Arrays:
        return {
            "norm.weight": np.array([weight, 0], np.float16),
            "norm.running_var": np.array([variance], np.float32),
            "norm.num_batches_tracked": np.array(seen, np.int64),
            "none": np.zeros((0, 2), np.float32),
        }

    # epsilon = 3 would take the variance to 10 - 3 * (10 - 2.5) < 0; integers: (3 + 6) / 2 = 4.5 -> 5
    replies = {"a": (model(1, 2, 3), 1), "b": (model(1, 3, 6), 9)}
    start = model(0, 10, 0)
    got = step(start, replies, att(epsilon=3.0), "norm.weight", "none")
    assert got["norm.running_var"].tolist() == [2.5]
    assert got["norm.num_batches_tracked"].tolist() == 5
    assert got["norm.weight"].tolist() == [3.0, 0.0]
    assert {k: (a.dtype, a.shape) for k, a in got.items()} == {
        k: (a.dtype, a.shape) for k, a in start.items()
    }
    assert list(got) == list(start)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_a_layer_of_several_blocks_equals_the_reference(p: float) -> None:
    rng, T = np.random.default_rng(4), 5.0 if p == 1 else 0.1
    shape = (3, COLUMNS - 5)  # two whole blocks and a rest
    start = np.asfortranarray(rng.normal(size=shape).astype(np.float32))
    local = [start + 0.01 * rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    want, top = layer(
        start.astype(np.float64), [a.astype(np.float64) for a in local], epsilon=1.2, p=p, temperature=T
    )
    replies = reduced(
        "fedatt", {c: ({"w": a}, 1) for c, a in zip("abcd", local, strict=True)}, trainable=("w",)
    )
    state, metrics = server_update(ServerState({"w": start}), replies, att(p=p, temperature=T))
    assert np.array_equal(state.arrays["w"], want.astype(np.float32))
    assert metrics["attention-max"] == pytest.approx(top, rel=1e-12)


def test_noise_comes_from_the_seed_and_the_round_and_has_its_size() -> None:
    start = {"w": np.zeros(4000, np.float32), "running": np.zeros(9, np.float32)}
    replies = reduced("fedatt", {"a": (start, 1)}, trainable=("w",))

    def noisy(seed: int, server_round: int) -> Arrays:
        config = Config(algorithm="fedatt", seed=seed, fedatt=FedAttConfig(noise=0.25))
        values = {**vars(replies), "round": server_round}
        return server_update(ServerState(start), type(replies)(**values), config)[0].arrays

    once = noisy(1, 1)
    assert sha256(once) == sha256(noisy(1, 1))
    assert len({sha256(noisy(*at)) for at in ((1, 1), (1, 2), (2, 1))}) == 3
    assert once["w"].std() == pytest.approx(0.25, rel=0.05)
    assert once["w"].mean() == pytest.approx(0.0, abs=0.02)
    assert not once["running"].any()

"""A mean of clients' models has FedAvg's bits in each rule that takes one itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from strategies.engine.state import AggregatedReplies
from strategies.rules import cfl, client_models, fedasync, ifca
from strategies.rules.asynchronous import AsyncState
from strategies.rules.several import SeveralState
from task.config.algorithm_sections import FedAsyncConfig
from task.config.knobs import Config
from task.config.personal_sections import IFCAConfig
from task.numerics.arrays import Arrays
from task.numerics.reduce import Mean

# Sums in float64 say otherwise of each: the first is beyond the grid of an exact sum, and 2^-53 is lost.
MODELS = np.array([[3e-17, 1.0], [5e-17, 2.0**-53], [-2e-16, 2.0**-53]])
CLIENTS, START = ("a", "b", "c"), {"w": np.zeros(2)}


def replies(counts: np.ndarray) -> AggregatedReplies:
    return AggregatedReplies(
        {"arrays": {"w": MODELS}}, CLIENTS, counts, scalars={"cluster": [0, 0, 0]}, trainable=("w",)
    )


def by_ifca(counts: np.ndarray) -> Arrays:
    state = SeveralState(START, {"model-0/w": START["w"]})
    return ifca.server_update(state, replies(counts), Config(ifca=IFCAConfig(clusters=1)))[0].arrays


def by_cfl(counts: np.ndarray) -> Arrays:
    state = cfl.CFLState(START, {"model-0/w": START["w"]})
    return cfl.server_update(state, replies(counts), Config())[0].arrays


def by_table(counts: np.ndarray) -> Arrays:
    return client_models.take_in(client_models.ModelsState(START), replies(counts)).arrays


@pytest.mark.parametrize(
    ("rule", "counts"), [(by_ifca, (1, 2, 5)), (by_cfl, (1, 1, 1)), (by_table, (1, 1, 1))]
)
def test_a_rules_mean_is_the_exact_one(rule: Callable[[np.ndarray], Arrays], counts: tuple[int, ...]) -> None:
    exact = Mean(START)
    for client, w, n in zip(CLIENTS, MODELS, counts, strict=True):
        exact.add({"w": w}, n, client)
    want = exact.result()["w"]
    in_floats = sum(n * w for n, w in zip(counts, MODELS, strict=True)) / sum(counts)
    assert want.tolist() != in_floats.tolist()  # the models tell the ways apart
    assert rule(np.array(counts))["w"].tolist() == want.tolist()


def test_fedasync_rounds_a_mixed_model_once() -> None:
    """A product in float32 would be rounded a second time."""
    rng = np.random.default_rng(1)
    w, w_k = rng.normal(size=(2, 1000)).astype(np.float32)
    arrived = AggregatedReplies({"arrays": {"w": w_k[None]}}, ("a",), np.array([1]))
    state = AsyncState({"w": w}, arriving={"a": np.array([1.0, 0.0])})
    made, _ = fedasync.server_update(state, arrived, Config(fedasync=FedAsyncConfig(alpha=0.3)))
    once = (1.0 - 0.3) * w.astype(np.float64) + 0.3 * w_k.astype(np.float64)
    assert made.arrays["w"].tolist() == once.astype(np.float32).tolist()

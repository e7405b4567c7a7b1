"""Survival as a task: its loss, its concordance, its targets, and a run of it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import nn

from task.datasets import load_dataset
from task.errors import DataError
from task.resolve.read import read_config
from task.tasks.evaluate import measure
from task.tasks.kinds import make_task
from task.tasks.lifetimes import medians, ordered_pairs, weibull
from task.tasks.metrics import Measures
from tests.support.federation import in_one_process, owners_config

RNG = np.random.default_rng(3)


def some(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and targets, with times, medians and events that tie."""
    outputs = torch.from_numpy(RNG.integers(-2, 3, (n, 2)).astype(np.float32))
    times, events = RNG.integers(1, 6, n), RNG.integers(0, 2, n)
    return outputs, torch.from_numpy(np.stack([times, events], 1).astype(np.float32))


def test_the_loss_is_minus_scipys_log_likelihood_and_never_below_0() -> None:
    outputs, y = some(200)
    log_scale, bound = outputs.double().numpy().T
    shape, scale = np.exp(np.tanh(bound)), np.exp(log_scale)
    law = scipy.stats.weibull_min(shape, scale=scale)
    t, event = y[:, 0].double().numpy(), y[:, 1].numpy() > 0
    wanted = np.where(event, -law.logpdf(t) - np.log(t), -law.logsf(t))  # log t has the density t f(t)
    found = weibull(outputs.double(), y.double())
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert float(found.min()) >= 0
    np.testing.assert_allclose(medians(outputs.double()), np.log(law.median()), rtol=1e-9, atol=1e-12)


def test_the_least_loss_is_at_scipys_estimate() -> None:
    """Of censored times without columns; an error in the term of those without the event would move it."""
    time = scipy.stats.weibull_min.rvs(1.5, scale=3, size=500, random_state=1)
    end = np.random.default_rng(2).uniform(1, 5, 500)
    event = time <= end
    y = torch.from_numpy(np.stack([np.minimum(time, end), event], 1))

    def loss(outputs: np.ndarray) -> float:
        return float(weibull(torch.from_numpy(outputs).expand(500, 2), y).mean())

    exact = {"xatol": 1e-7, "fatol": 1e-12}
    log_scale, bound = scipy.optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=exact).x
    data = scipy.stats.CensoredData.right_censored(np.minimum(time, end), ~event)
    shape, _, scale = scipy.stats.weibull_min.fit(data, floc=0)
    assert (math.exp(math.tanh(bound)), math.exp(log_scale)) == pytest.approx((shape, scale), rel=1e-4)


def test_pairs_are_those_of_harrells_definition() -> None:
    outputs, y = some(60)
    score = medians(outputs).tolist()
    right = known = 0.0
    for (i, (t, d)), (j, (u, e)) in itertools.permutations(enumerate(y.tolist()), 2):
        if d and (t < u or (t == u and not e)):
            known += 1
            right += 1 if score[i] < score[j] else 0.5 if score[i] == score[j] else 0
    assert ordered_pairs(outputs, y) == (2 * right, 2 * known)
    sums = Measures("survival", ("accuracy",), 2)
    assert sums.values(sums.sums(outputs, y, 60)) == {"accuracy": right / known}


def test_where_no_order_is_known_the_accuracy_is_that_of_guesses() -> None:
    x, y = (
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]),
    )
    task = make_task("survival", "weibull")
    assert measure(nn.Identity(), x, y, task=task)[0]["accuracy"] == 0.5
    assert Measures("survival", ("accuracy",), 2).values({"pairs": np.zeros(2), "count": np.array([3])}) == {
        "accuracy": None
    }
    y[0, 1] = 1
    assert measure(nn.Identity(), x, y, task=task)[0]["accuracy"] == 1


CSV = "x,years:target,failed:target\n1,{},1\n2,2.5,0\n"


@pytest.mark.parametrize(
    ("time", "words"),
    [("0", "line 2: .*time above 0"), ("-1", r"got \[-1.0, 1.0\]"), ("x", "expected a number")],
)
def test_a_time_that_is_none_is_refused_by_line(time: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(CSV.format(time))
    config = read_config({"dataset": "csv", "data-path": str(tmp_path / "table.csv"), "task": "survival"})
    with pytest.raises(DataError, match=words):
        load_dataset(config.data, config.synthetic, 1)


@pytest.mark.parametrize(
    ("y", "words"),
    [([[1.0, 0.5], [2.0, 1.0]], "example 0: .*1 if the event"), ([1.5, 2.5], r"two targets.*got .*\[2\]")],
)
def test_an_array_of_other_targets_is_refused(y: Any, words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 3), np.float32), y=np.array(y))
    config = read_config({"dataset": "npz", "data-path": str(tmp_path / "own.npz"), "task": "survival"})
    with pytest.raises(DataError, match=words):
        load_dataset(config.data, config.synthetic, 1)


def test_a_run_learns_the_order_and_does_not_depend_on_the_nodes(tmp_path: Path) -> None:
    """One client's test has nobody with the event: its accuracy is 1/2."""
    n = 240
    names = np.repeat(["a", "b", "c"], n // 3)
    x = RNG.normal(size=(n, 2)).astype(np.float32)
    time = np.exp(x[:, 0]) * RNG.weibull(2, n)
    event = (time < 2) & (names != "c")
    y = np.stack([np.minimum(time, 2), event], 1)
    np.savez(tmp_path / "own.npz", x=x, y=y, client=names, x_test=x, y_test=y)
    keys = owners_config(
        tmp_path / "own.npz", task="survival", fraction_evaluate=1.0, local_test_fraction=0.3,
        num_server_rounds=5, learning_rate=0.2, batch_size=10,
    )  # fmt: skip
    runs = [in_one_process(keys | {"run-name": f"n{k}"}, tmp_path / f"{k}", nodes=k) for k in (1, 3)]
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    for key in ("model_sha256", "client_accuracy", "client_loss", "accuracy"):
        assert results[0][key] == results[1][key], key
    assert results[0]["clients"]["worst_decile"] == 0.5
    assert results[0]["client_accuracy"] > 0.7
    assert results[0]["accuracy"] > 0.75

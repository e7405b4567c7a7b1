"""FedAMP: message passing and the client's proximal steps by hand, and the pipeline against the reference."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from strategies.rules.fedamp import FedAMP, FedAMPState, clouds, server_update
from task.config.knobs import Config
from task.config.personal_sections import FedAMPConfig
from task.errors import WireError
from task.numerics.arrays import Arrays
from task.wire import messages as wire
from tests.reference import fedamp
from tests.strategies.test_models import held, replies
from tests.support.models import OneNumber, sigmoid, task_on
from tests.support.personal import case_of, close
from tests.support.rules import context, w

# --------------------------------------------------------------------------------------- the server


def passing(alpha: float, sigma: float) -> Config:
    return Config(fedamp=FedAMPConfig(alpha=alpha, sigma=sigma))


def test_attention_and_cloud_models_by_hand() -> None:
    """w = (0, 0), (1, 0), (0, 3): squared distances 1, 9, 10; alpha = 2, sigma = 4: xi = e^(-d/4)/2."""
    models = {"a": w(0, 0), "b": w(1, 0), "c": w(0, 3)}
    state, metrics = server_update(FedAMPState(w(7, 7)), replies(models), passing(2.0, 4.0))
    ab, ac, bc = (math.exp(-d / 4) / 2 for d in (1, 9, 10))
    xi = state.attention["xi"]
    assert xi == pytest.approx(np.array([[0, ab, ac], [ab, 0, bc], [ac, bc, 0]]))
    assert metrics == {"self-weight": pytest.approx(1 - ab - ac)}
    u = clouds(models, xi, ["a", "c"], ("w",))
    assert list(u) == ["a", "c"]
    assert u["a"]["w"].tolist() == pytest.approx([ab, 3 * ac])
    assert u["c"]["w"].tolist() == pytest.approx([bc, 3 * (1 - ac - bc)])
    assert u["a"]["w"].dtype == np.float32


def test_who_does_not_answer_is_attended_to_by_its_last_model() -> None:
    config = passing(1.0, 2.0)
    state, _ = server_update(FedAMPState(w(0)), replies({"a": w(1), "b": w(2)}), config)
    state, _ = server_update(state, replies({"c": w(4), "b": w(3)}), config)
    ab, ac, bc = (math.exp(-d * d / 2) / 2 for d in (2, 3, 1))
    assert state.attention["xi"] == pytest.approx(np.array([[0, ab, ac], [ab, 0, bc], [ac, bc, 0]]))


def test_weights_may_be_negative_and_buffers_stay_the_clients_own() -> None:
    """alpha/sigma = 3 and three equal clients but for a distance of 1e-3: the self-weight is 1 - 6 = -5."""

    def model(value: float, n: int) -> Arrays:
        return w(value) | {"n": np.array(n, np.int64), "var": np.array(value, np.float32)}

    models = {"a": model(0.001, 3), "b": model(0.0, 5), "c": model(0.0, 7)}
    state, metrics = server_update(FedAMPState(model(0, 0)), replies(models), passing(3.0, 1.0))
    assert metrics["self-weight"] == pytest.approx(-5, abs=1e-4)
    u = clouds(models, state.attention["xi"], ["a"], ("w",))["a"]
    assert u["w"].tolist() == pytest.approx([-5 * 0.001], rel=1e-4)
    assert (u["n"].tolist(), u["var"].tolist()) == (3, pytest.approx(0.001))


def test_the_sum_is_rounded_once_from_float64() -> None:
    """0.5 (2^24 + 2) + 0.5 * 2^24 is 2^24 + 1, rounded to 2^24 in float32; with -2^24 + 2 nothing is lost."""
    models = {"a": w(2.0**24 + 2), "b": w(-(2.0**24) + 2)}
    assert clouds(models, np.array([[0, 0.5], [0.5, 0]]), ["a"], ("w",))["a"]["w"].tolist() == [2.0]


def test_the_message_to_each_client(tmp_path: Path) -> None:
    strategy = FedAMP(passing(1.0, 2.0))
    start = strategy.initial_state(w(9), ("w",))
    assert strategy.route(start, ["x"], context(strategy, ["a", "x"])) == {"cloud": {"x": {"x": w(9)}}}
    state, _ = server_update(start, replies({"a": w(1), "b": w(3), "c": w(5)}), strategy.config)
    given = strategy.route(state, ["a", "x"], context(strategy, ["a", "c", "x"]))["cloud"]  # b is offline
    xi = math.exp(-8) / 2
    assert given["a"]["a"]["w"].tolist() == pytest.approx([1 - xi + 5 * xi])
    assert given["x"]["x"]["w"].tolist() == [3.0]  # new: the mean of all that are known
    assert {c: set(m) for c, m in given.items()} == {"a": {"a"}, "x": {"x"}}


# --------------------------------------------------------------------------------------- the client


def test_two_proximal_steps_from_the_cloud_model_by_hand() -> None:
    """x = 2 of class 1, u = 0.5, lambda/alpha = 0.4/2; g(w) = -2 sigmoid(-2w)."""
    task = task_on(OneNumber(9.0), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=0.5)
    config = Config(fedamp=FedAMPConfig(lambda_=0.4, alpha=2.0))
    solver = SOLVERS["fedamp"](config, {}, {}, [{"personal": w(7)}], [{"cloud": {"a": w(0.5)}}])
    solver.begin(task)
    ((upload, kept),) = solver.finish(task, solver.run(task))
    one = 0.5 + 0.5 * 2 * sigmoid(-1.0)
    two = one - 0.5 * (-2 * sigmoid(-2 * one) + 0.2 * (one - 0.5))
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([two], rel=1e-6)
    assert kept["personal"]["w"].tolist() == upload.arrays["arrays"]["w"].tolist()


def test_without_a_cloud_model_a_client_refuses() -> None:
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]))
    solver = SOLVERS["fedamp"](Config(), {}, {}, [{}], [{"cloud": {}}])
    with pytest.raises(WireError, match="'cloud' for each client"):
        solver.begin(task)


# ------------------------------------------------------------------------------------- the pipeline


def test_the_server_holds_what_clients_keep_and_attention_matters(tmp_path: Path) -> None:
    case = case_of(tmp_path, "fedamp", **fedamp.FedAMP.cases["few clients, stragglers, in a stack"])
    assert any(set(cohort) - set(case.cohorts[0]) for cohort in case.cohorts)  # somebody comes late
    for client, model in held(case.played, len(case.cohorts)).items():
        assert close(model, case.kept()[client], 0.0)
    # the models are not those of training from the plain mean
    weights = [row["metrics"]["self-weight"] for row in case.played.rows[1:]]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0.9


def test_each_client_gets_its_own_cloud_model_and_nothing_else(tmp_path: Path) -> None:
    case = case_of(tmp_path, "fedamp", nodes=2, fraction_evaluate=1.0)
    for m in case.played.messages():
        config = m.content.config_records["config"]
        clients = list(config["clients"])  # type: ignore[arg-type]
        assert [config[f"cloud:{c}"] for c in clients] == [[c] for c in clients]
        assert set(m.content.array_records) == {f"cloud.{c}" for c in clients}
    for m in case.played.messages("evaluate"):
        assert not m.content.array_records
    new = [c for c in case.cohorts[1] if c not in case.cohorts[0]]
    (record,) = (m.content.array_records[f"cloud.{new[0]}"] for m in case.played.messages()
                 if m.metadata.group_id == "2" and f"cloud.{new[0]}" in m.content.array_records)  # fmt: skip
    assert close(wire.read_arrays(record), case.played.arrays(1), 0.0)

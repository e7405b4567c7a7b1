"""FedNova: both halves by hand, and the pipeline against the reference."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.solvers.fednova import step_weight
from client_app.training.loop import train
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fednova import server_update
from task.config.algorithm_sections import FedNovaConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.federation import SIZES, loss_and_gradient, owners_config, play, write_owners
from tests.support.models import Noisy, OneNumber, blobs, task_on
from tests.support.rules import w


def test_the_server_takes_tau_eff_mean_steps_by_hand() -> None:
    # p = (1/4, 3/4), |a| = (2, 6): tau_eff = 5. The mean update is (1*8 + 3*4)/4 = 5: 10 + 5 * 5 = 35.
    update = w(5) | {"buffer": np.array([4.0], np.float32)}
    replies = AggregatedReplies(
        {"update": update}, ("a", "b"), np.array([1, 3]), {"step-weight": [2.0, 6.0]}, trainable=("w",)
    )
    state = ServerState(w(10) | {"buffer": np.array([9.0], np.float32)})
    new, metrics = server_update(state, replies, Config())
    assert {k: a.tolist() for k, a in new.arrays.items()} == {"w": [35.0], "buffer": [4.0]}
    assert new.arrays["w"].dtype == np.float32
    assert metrics == {"effective-steps": 5.0}


@pytest.mark.parametrize("policy", ["uniform", "proportional"])
@pytest.mark.parametrize("nodes", [5, 2])
def test_tau_eff_weighs_like_the_mean_of_the_updates(policy: str, nodes: int, tmp_path: Path) -> None:
    """Step weights are ceil(n_k / 4) here; drawn by n_k, the clients count alike in both means."""
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", algorithm="fednova", batch_size=4, num_server_rounds=1)
    played = play(keys | {"selection": policy, "local-epochs": 1}, nodes=nodes)
    row = played.rows[-1]
    p = {c: n if policy == "uniform" else 1 for c, n in SIZES.items()}
    want = sum(p[c] * math.ceil(n / 4) for c, n in SIZES.items()) / sum(p.values())
    assert row["metrics"]["effective-steps"] == pytest.approx(want, rel=1e-12)


def test_two_clients_that_count_alike_by_hand() -> None:
    # |a| = (1, 100), n = (1, 100): tau_eff = 50.5, not (1 * 1 + 100 * 100) / 101 = 99.02
    replies = AggregatedReplies(
        {"update": w(2)}, ("a", "b"), np.array([1, 100]), {"step-weight": [1.0, 100.0]}, trainable=("w",),
        weights=np.array([1, 1]),
    )  # fmt: skip
    new, metrics = server_update(ServerState(w(0)), replies, Config())
    assert metrics == {"effective-steps": 50.5}
    assert new.arrays["w"].tolist() == [101.0]


@pytest.mark.parametrize("tau", [1, 2, 3, 17])
def test_the_weight_of_steps_is_the_papers(tau: int) -> None:
    assert step_weight(tau) == tau
    rho, pull = 0.9, 0.05
    assert step_weight(tau, rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert step_weight(tau, 0.0, pull) == pytest.approx((1 - (1 - pull) ** tau) / pull)
    # both: the response of the loop itself to a gradient of 1
    v = y = 0.0
    for _ in range(tau):
        v = rho * v + (1.0 + pull * y)
        y -= v
    assert step_weight(tau, rho, pull) == pytest.approx(-y)


def test_the_client_divides_its_update_by_the_weight_of_its_steps() -> None:
    """x = 2, y = 1: w_1 = 0.5, w_2 = 0.5 + sigmoid(-1) - 0.5 mu 0.5; |a| = 1 + (1 - 0.5 mu)."""
    mu = 0.8
    task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=0.5)
    solver = SOLVERS["fednova"](Config(fednova=FedNovaConfig(mu=mu)), {}, {}, [{}])
    ((upload, kept),) = solver.finish(task, train(task, solver))
    weight = 1 + (1 - 0.5 * mu)
    moved = 0.5 + 1 / (1 + math.e) - 0.5 * mu * 0.5
    assert upload.scalars["step-weight"] == pytest.approx(weight)
    assert upload.arrays["update"]["w"].tolist() == pytest.approx([moved / weight])
    assert kept == {}


def test_buffers_go_up_as_they_are() -> None:
    model = Noisy()
    task = task_on(model, *blobs(8), batch_size=4)
    solver = SOLVERS["fednova"](Config(), {}, {}, [{}])
    ((upload, _),) = solver.finish(task, train(task, solver))
    state = {k: t.numpy() for k, t in model.state_dict().items()}
    up = upload.arrays["update"]
    buffers = [k for k in state if k not in task.program.names]
    assert all(np.array_equal(up[k], state[k]) and up[k].dtype == state[k].dtype for k in buffers)
    moved = (state["out.bias"] - task.received["out.bias"]) / 2
    assert up["out.bias"].tolist() == pytest.approx(moved.tolist(), rel=1e-6)


def test_unequal_work_does_not_pull_the_optimum_where_it_pulls_fedavgs(tmp_path: Path) -> None:
    """What the paper is about: stragglers' fewer steps must not weigh their clients less.

    Small steps, full batches: FedNova ends where the mean loss is stationary, FedAvg does not.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    client = np.repeat(["a", "b"], [12, 48])
    y = np.argmax(x @ [[1.0, -1.0], [0.3, 0.0]] + rng.gumbel(size=(60, 2)), axis=1)
    y = np.where(client == "a", 1 - y, y)
    np.savez(tmp_path / "c.npz", x=x, y=y, client=client, x_test=x[:2], y_test=y[:2])
    keys = owners_config(
        tmp_path / "c.npz", batch_size=6, local_epochs=3, learning_rate=0.004, num_server_rounds=250
    )

    def slope(name: str) -> float:
        # clients of 2 and 8 steps an epoch: FedAvg's weights are then n_k tau_k, not n_k
        W, b = play(keys | {"algorithm": name}, nodes=1).linear(250)
        _, (g_W, g_b) = loss_and_gradient((W, b), x, y)
        return float(max(np.abs(g_W).max(), np.abs(g_b).max()))

    assert slope("fednova") < slope("fedavg") / 4


def test_a_negative_mu_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r'"fednova.mu": expected float >= 0'):
        read_config({"algorithm": "fednova", "fednova.mu": -1.0})

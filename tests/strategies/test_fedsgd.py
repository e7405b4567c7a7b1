"""FedSGD: the rule by hand, the pipeline against the reference, and its two equals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord

from strategies import FedSGD
from strategies.engine.state import ServerState
from strategies.rules.fedsgd import server_update
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.read import read_config
from task.resolve.run_model import model_of, parts_of
from task.wire import messages as wire
from tests.support.apps import named_app
from tests.support.grid import LocalGrid
from tests.support.rules import reduced, w


def test_one_step_down_the_mean_gradient() -> None:
    # mean gradient (1*2 + 3*6) / 4 = 5 and (1*(-4) + 3*0) / 4 = -1; w - 0.5 g
    state = ServerState(w(1, 1))
    replies = reduced("fedsgd", {"a": (w(2, -4), 1), "b": (w(6, 0), 3)}, lr=0.5)
    new, metrics = server_update(state, replies, Config())
    assert new.arrays["w"].tolist() == [-1.5, 1.5]
    assert new.arrays["w"].dtype == np.float32
    assert metrics == {}
    assert state.arrays["w"].tolist() == [1.0, 1.0]  # pure


def test_buffers_have_no_gradient_and_stay() -> None:
    state = ServerState(w(1) | {"mean": np.array([3.0], np.float32), "seen": np.array(4, np.int64)})
    new, _ = server_update(state, reduced("fedsgd", {"a": (w(2), 1)}, lr=0.5), Config())
    assert new.arrays["w"].tolist() == [0.0]
    assert new.arrays["mean"].tolist() == [3.0]
    assert (int(new.arrays["seen"]), new.arrays["seen"].dtype) == (4, np.int64)


@pytest.mark.parametrize(
    ("algorithm", "instead"),
    [
        ("fedsgd", ', or .* "fedavg" with batch'),
        ("qfedsgd", ', or .* "qfedavg" with batch'),
        ("signsgd", ";"),
    ],
)
def test_statistics_that_no_client_sends_are_refused(algorithm: str, instead: str) -> None:
    config = read_config({"algorithm": algorithm, "model": "mlp-bn"})
    with pytest.raises(ConfigError, match=f"running_mean.* without batch normalisation{instead}"):
        parts_of(model_of(config, (8, 8), 10), config)
    constant = torch.nn.Linear(64, 10)
    constant.register_buffer("scale", torch.ones(1))  # training does not move it
    assert parts_of(constant, config).trainable == ("weight", "bias")


def test_a_learning_rate_in_train_config_is_that_of_the_servers_step() -> None:
    """Flower's ``train_config`` replaces the run's learning rate; for FedSGD the server takes the step."""

    def work(client: str, order: wire.TrainOrder) -> wire.ClientUpdate:
        return wire.ClientUpdate({"gradient": w(2)}, {"num-examples": 1, "train-loss": 1.0})

    grid = LocalGrid(named_app(lambda context: {"a": 1}, work, "fedsgd"), [{}])
    lr = ConfigRecord({"lr": 0.25})
    result = FedSGD().start(grid, wire.pack_arrays(w(1)), num_rounds=1, train_config=lr)
    # 1 - 0.25 * 2; with the configured 0.1 it would be 0.8
    assert wire.read_arrays(result.arrays)["w"].tolist() == [0.5]

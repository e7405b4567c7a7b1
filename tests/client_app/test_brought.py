"""Models that a user brings, under every algorithm: nothing in the rules or solvers knows ours alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.choice import program_of
from client_app.training.programs import Single
from client_app.training.stacked import Layers, Perceptron
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.models import build_model
from task.resolve.read import read_config
from task.resolve.run_model import parts_of
from tests.support.brought import NET, imported_from
from tests.support.federation import play, read_by
from tests.support.horizontal import HORIZONTAL
from tests.support.shapes import by_shape

# The first scales the columns of a linear layer, the others send no running statistics.
PLAIN = {"fsvrg-sparse", "fedsgd", "qfedsgd", "signsgd"}


@pytest.fixture(autouse=True)
def net(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "brought_net.py").write_text(NET)
    with imported_from(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("name", by_shape(((n,) for n in sorted(HORIZONTAL)), 2))
def test_any_module_trains_under_every_algorithm(name: str, tmp_path: Path) -> None:
    # Each client has 21 training examples: its last batch is a single one.
    keys = {
        "algorithm": name, "model": "brought_net:" + ("plain" if name in PLAIN else "Small"),
        "dataset": "digits", "num-clients": 4, "max-examples": 92, "num-server-rounds": 2,
        "learning-rate": 0.05, "batch-size": 10, "state-dir": str(tmp_path / "state"),
        "adaptive-tau.budget": 1.0, "public.examples": 8,
    }  # fmt: skip
    played = play(read_by(keys), nodes=1)
    assert not played.keep.lines, [str(line) for line in played.keep.lines]
    model = played.arrays(2)
    trained = [n for n, a in model.items() if a.dtype == np.float32 and "running" not in n]
    assert all(np.isfinite(a).all() for a in model.values())
    if not ALGORITHMS[name].personal:
        assert any((model[n] != played.arrays(1)[n]).any() for n in trained)
    if name == "fedavg":
        assert "mask" not in model  # which never changes
        # Three batches in each of two rounds, a single example among them, which does not move statistics.
        assert model["calls"] == 6
        assert model["body.0.norm.num_batches_tracked"] == 6
        assert model["norm.num_batches_tracked"] == 4


def test_a_plain_chain_of_a_users_own_is_taken_by_the_fast_program() -> None:
    model = build_model("brought_net:plain", (1, 8, 8), 10, 1)
    assert type(program_of(model, 0)[0]) is Perceptron


class Scaled(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


@pytest.mark.parametrize(
    "model",
    [
        Scaled(nn.Flatten(), nn.Linear(4, 2)),  # a forward of its own
        nn.Sequential(nn.Linear(4, 2), nn.Flatten()),  # of rows, not of the whole example
        nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)),
    ],
)
def test_what_only_looks_like_a_plain_chain_trains_alone(model: nn.Module) -> None:
    assert not Layers.takes(model)
    assert type(program_of(model, 0)[0]) is Single


@pytest.mark.parametrize(
    ("patterns", "private"),
    [
        ("fc2", "fc2.weight fc2.bias"),
        ("fc2.weight", "fc2.weight"),
        ("body.0.conv, fc*.bias", "body.0.conv.weight body.0.conv.bias fc1.bias fc2.bias"),
        ("body.2.norm.r*,scale", "body.2.norm.running_mean body.2.norm.running_var scale"),
    ],
)
def test_private_layers_by_name_or_pattern(patterns: str, private: str) -> None:
    config = read_config({"algorithm": "fedper", "model": "brought_net:Small", "private-layers": patterns})
    model = build_model("brought_net:Small", (1, 8, 8), 10, 1)
    assert {*parts_of(model, config).private} == {*private.split()}


def test_a_pattern_that_names_nothing_is_refused_with_the_layers() -> None:
    config = read_config({"algorithm": "fedrep", "model": "brought_net:Small", "private-layers": "fc2,haed"})
    model = build_model("brought_net:Small", (1, 8, 8), 10, 1)
    with pytest.raises(ConfigError, match=r'"private-layers": .*body.0.conv, .*fc2.*; got "haed"'):
        parts_of(model, config)


def test_private_layers_beside_personal_layers_are_refused() -> None:
    keys = {"algorithm": "fedper", "private-layers": "3", "personal.layers": 2}
    with pytest.raises(ConfigError, match=r'"personal.layers": nothing in this run reads it'):
        read_config(keys)

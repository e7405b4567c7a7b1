"""What a user's own code does wrong in training or in evaluation is found when a node registers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from client_app import trial
from client_app.data.node import Node, open_node
from client_app.data.registration import registration_of
from client_app.registering import register
from client_app.trial import try_out
from task.errors import ConfigError
from task.numerics.arrays import sha256
from task.resolve.model_checks import check_model
from task.resolve.read import read_config
from tests.support.brought import NET, imported_from

OWN = '''
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from client_app.solvers.sgd import Solver
from client_app.training.programs import Dense
from strategies.engine.rule import Rule
from task.catalogue.algorithms import ALGORITHMS


def mean(state, replies, config):
    return replace(state, arrays=replies.arrays["arrays"]), {}


def rule(name):
    entry = replace(ALGORITHMS["fedavg"], title=name, solver=f"trial_own:{name}")
    return type(name + "Rule", (Rule,), {"entry": entry}, update=mean)


class Listed(Solver):
    def gradient(self, task, batch):
        losses, gradient = super().gradient(task, batch)
        return losses, [0.5 * g for g in gradient]


class Foreach(Solver):
    def gradient(self, task, batch):
        losses, gradient = super().gradient(task, batch)
        return losses, Dense(torch._foreach_mul(gradient, 0.5))


class InPlace(Solver):
    def gradient(self, task, batch):
        losses, gradient = super().gradient(task, batch)
        for g in gradient:
            g.mul_(0.5)
        return losses, gradient


class Values(Solver):
    def gradient(self, task, batch):
        losses, gradient = super().gradient(task, batch)
        return losses, tuple(0.5 * g for g in gradient.values)


class Short(Solver):
    def gradient(self, task, batch):
        losses, gradient = super().gradient(task, batch)
        return losses, gradient[1:]


class Alone(Solver):
    def gradient(self, task, batch):
        return super().gradient(task, batch)[1]


class Raises(Solver):
    def terms(self, task):
        return self.missing


class Sends(Solver):
    def finish(self, task, stats):
        ((update, keep),) = super().finish(task, stats)
        update.arrays["more"] = update.arrays["arrays"]
        return [(update, keep)]


class Nothing(Solver):
    def finish(self, task, stats):
        return None


for _cls in (Listed, Foreach, InPlace, Values, Short, Alone, Raises, Sends, Nothing):
    globals()[_cls.__name__ + "Rule"] = rule(_cls.__name__)


class Flat(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Wrong(Flat):
    """Fails on real pixels in training alone."""

    def forward(self, x):
        if self.training and x.max() > 0.5:
            raise ValueError(f"no such pixel: {x.max()}")
        return super().forward(x)


class Ids(nn.Module):
    """Reads rows of ids of words; 0 is padding."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.words, self.fc = nn.Embedding(20, 4, padding_idx=0), nn.Linear(4, num_classes)

    def forward(self, x):
        x = x.long()
        if (x == 0).all(1).any():
            raise ValueError("only padding")
        return self.fc(self.words(x).mean(1))


def fails_in_training(outputs, y):
    if outputs.requires_grad and len(y) > 2:
        raise RuntimeError("a loss of many")
    return nn.functional.cross_entropy(outputs, y, reduction="none")


class Optimizer(torch.optim.SGD):
    def step(self):
        if len(self.param_groups[0]["params"]) > 1:
            raise RuntimeError("too many")
        super().step()


class Metric:
    def sums(self, outputs, y):
        if len(y) > 3:
            raise RuntimeError("too many")
        return {"n": len(y)}

    def value(self, sums):
        return float(sums["n"])
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "brought_net.py").write_text(NET)
    (tmp_path / "trial_own.py").write_text(OWN)
    with imported_from(tmp_path):
        yield tmp_path


def _node(tmp_path: Path, **keys: object) -> Node:
    usual = {
        "dataset": "digits", "model": "mlp", "num-clients": 4, "max-examples": 92, "batch-size": 10,
        "local-test-fraction": 0.2, "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    return open_node(read_config({**usual, **keys}), {})


@pytest.mark.parametrize("solver", ["Listed", "Foreach", "InPlace", "Values"])
def test_a_solver_of_ones_own_gets_tensors_and_may_return_a_list_of_them(solver: str, tmp_path: Path) -> None:
    """Also of a perceptron, whose gradient is factored for ours."""
    try_out(_node(tmp_path, algorithm=f"trial_own:{solver}Rule"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm": "trial_own:ShortRule"}, r"gradient of Short: expected .*a tensor for each parameter"),
        (
            {"algorithm": "trial_own:AloneRule"},
            r"gradient of Alone: expected \(losses, gradient\); got Dense",
        ),
        ({"algorithm": "trial_own:RaisesRule"}, r'"algorithm".*AttributeError.*missing.*trial_own.py, line'),
        ({"algorithm": "trial_own:SendsRule"}, r'"algorithm": "trial_own:SendsRule".*more'),
        ({"algorithm": "trial_own:NothingRule"}, r'"algorithm": "trial_own:NothingRule": .*TypeError'),
        ({"model": "trial_own:Wrong"}, r'"model": "trial_own:Wrong".*no such pixel.*trial_own.py, line'),
        ({"loss": "trial_own:fails_in_training"}, r'"loss": "trial_own:fails_in_training".*a loss of many'),
        ({"optimizer": "trial_own:Optimizer"}, r'"optimizer": "trial_own:Optimizer".*too many'),
        ({"metrics": "trial_own:Metric"}, r'"metrics": "trial_own:Metric".*too many'),
    ],
)
def test_what_fails_in_a_step_or_in_an_evaluation_is_refused(
    keys: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        try_out(_node(tmp_path, **keys))


def test_what_a_node_says_of_it_has_no_value_of_its_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        try_out(_node(tmp_path, model="trial_own:Wrong"))
    assert "no such pixel" not in error.value.public
    assert "trial_own.py" in error.value.public


def test_ids_of_words_are_tried_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "ids.npz", x=rng.integers(1, 20, (40, 6)).astype("f4"), y=np.arange(40) % 2)
    keys = {"dataset": "npz", "data-path": str(tmp_path / "ids.npz"), "model": "trial_own:Ids"}
    own = {"client-name": "anna", "data-path": str(tmp_path / "ids.npz")}
    node = open_node(read_config({"dataset": "npz", "model": "trial_own:Ids", "num-classes": 2}), own)
    registration_of(node)
    try_out(node)
    config = read_config({**keys, "num-clients": 2})
    node = open_node(config, {})
    check_model(node.config, (6,), 2, "classification", node.dataset)
    with pytest.raises(ConfigError, match="only padding"):
        check_model(node.config, (6,), 2, "classification")


def test_the_trial_leaves_no_trace(tmp_path: Path) -> None:
    node = _node(tmp_path, model="brought_net:Small")
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    model = sha256({n: t.numpy().copy() for n, t in node.model().state_dict().items()})
    try_out(node)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    assert sha256({n: t.numpy().copy() for n, t in node.model().state_dict().items()}) == model
    left = [p for p in (tmp_path / "state").rglob("*") if p.is_file() and p.name != "pool-id"]
    assert not left


def test_a_private_run_is_tried_and_charges_nothing(tmp_path: Path) -> None:
    keys = {
        "dp.unit": "example",
        "dp.noise": 1.0,
        "dp.clip": 1.0,
        "dp.delta": 1e-3,
        "model": "brought_net:plain",
    }
    node = _node(tmp_path, **keys)
    try_out(node)
    left = [p for p in (tmp_path / "state").rglob("*") if p.is_file() and p.name != "pool-id"]
    assert not left


def test_a_process_tries_once_for_all_virtual_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(trial, "_try", lambda *_: tried.append(1))
    for part in range(2):
        node = replace(_node(tmp_path, model="brought_net:Small"), share=(part, 2))
        register(node, Context(1, 1, {}, RecordDict(), {}))
    assert tried == [1]

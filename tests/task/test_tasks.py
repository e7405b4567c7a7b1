"""Tasks: losses by hand, what does not count, and what is refused before round 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.choice import program_of
from client_app.training.programs import Single
from task.config.knobs import Config
from task.datasets import load_dataset, load_owned
from task.errors import ConfigError, DataError
from task.models import build_model
from task.resolve.read import read_config
from task.tasks import TASKS, task_of
from task.tasks.base import counted, fill
from task.tasks.evaluate import measure
from task.tasks.kinds import make_task


def each(task: str, loss: str, outputs: Any, y: Any, padded: bool = False) -> list[float]:
    outputs, y = torch.tensor(outputs), torch.tensor(y)
    return [round(v, 5) for v in make_task(task, loss).each(outputs, y, padded).tolist()]


def test_losses_by_hand() -> None:
    assert each("regression", "mse", [[3.0], [1.0]], [1.0, 1.0]) == [4.0, 0.0]  # outputs [B, 1], targets [B]
    assert each("regression", "mae", [[3.0, 1.0]], [[1.0, 5.0]]) == [3.0]  # the mean of 2 and 4
    assert each("regression", "huber", [3.0, 1.5], [1.0, 1.0]) == [1.5, 0.125]  # |r| - 1/2 and r^2 / 2
    assert each("multi-label", "bce", [[0.0, 0.0]], [[1.0, 0.0]]) == [round(math.log(2), 5)]
    assert each("classification", "cross-entropy", [[0.0, 0.0]], [1]) == [round(math.log(2), 5)]
    assert each("classification", "focal", [[0.0, 0.0]], [1]) == [round(math.log(2) / 4, 5)]  # (1 - 1/2)^2
    assert each("multi-label", "focal", [[0.0, 0.0]], [[1.0, 0.0]]) == [round(math.log(2) / 4, 5)]  # the mean
    # 0.9 of the true class and 0.1 over both: 0.95 log 2 + 0.05 log 2
    assert each("classification", "label-smoothing", [[0.0, 0.0]], [1]) == [round(math.log(2), 5)]
    assert each("reconstruction", "mse", [[1.0, 2.0]], [[[1.0], [4.0]]]) == [2.0]  # flat outputs


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_inputs_beyond_0_and_1_are_not_reconstructed_by_bce(value: float) -> None:
    x = torch.tensor([[0.5, value]])
    with pytest.raises(ConfigError, match='"bce" reconstructs inputs from 0 to 1'):
        make_task("reconstruction", "bce").check(nn.Linear(2, 2), x, x, 2)


def test_every_task_has_its_own_loss_first() -> None:
    for name, spec in TASKS.items():
        for loss in spec.losses:
            make_task(name, loss)


@pytest.mark.parametrize(
    ("task", "loss", "outputs", "y"),
    [
        ("regression", "mse", torch.ones(4, 1), torch.zeros(4)),
        ("multi-label", "bce", torch.ones(4, 3), torch.zeros(4, 3)),
        ("classification", "cross-entropy", torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)),
        ("reconstruction", "mae", torch.ones(4, 2, 2), torch.zeros(4, 2, 2)),
    ],
)
def test_padding_has_no_loss_and_no_gradient(
    task: str, loss: str, outputs: torch.Tensor, y: torch.Tensor
) -> None:
    """A NaN of a padded target would make the whole gradient NaN."""
    y = y.unsqueeze(0).clone()
    fill(y, torch.tensor([[False, True, False, True]]))
    y = y[0]
    assert counted(y).tolist() == [1, 0, 1, 0]
    leaf = outputs.clone().requires_grad_()
    found = make_task(task, loss).each(leaf, y, True)
    found.sum().backward()
    assert leaf.grad is not None
    assert found[1] == found[3] == 0
    assert found[0] > 0
    assert not leaf.grad[[1, 3]].any()
    assert leaf.grad[[0, 2]].any()


def test_another_loss_trains_clients_one_by_one() -> None:
    """Stacked, the last bits of a gradient depend on who else is in the stack, that is on the nodes."""
    model = build_model("mlp", (4,), 1, seed=1)
    program, most = program_of(model, 8, make_task("regression", "mse"))
    assert (type(program), most) == (Single, 1)


def test_evaluation_without_an_accuracy() -> None:
    found, _ = measure(
        nn.Flatten(), torch.tensor([[3.0], [1.0]]), torch.ones(2), task=make_task("regression", "mse")
    )
    assert found == {"loss": 2.0, "num-examples": 2}


# ------------------------------------------------------------------------------------ the user's own loss


def squares(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs - y).square()


def check(loss: Any, outputs: int = 1, task: str = "regression") -> None:
    y = torch.zeros(2) if outputs == 1 else torch.zeros(2, outputs)
    make_task(task, "mine:loss", loss).check(nn.Linear(3, outputs), torch.ones(2, 3), y, outputs)


def test_a_loss_of_the_users_own_gets_targets_and_outputs_alike() -> None:
    check(squares)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda o, y: squares(o, y).mean(),
            r"a tensor of shape \[2\], and neither their mean .* got shape \[\]",
        ),
        (lambda o, y: 3.0, "got float for 2 examples"),
        (lambda o, y: squares(o, y).detach(), "must be differentiable"),
        (lambda o, y: squares(o, y) / 0, "finite losses"),
        (lambda o, y: o @ y @ o, '"mine:loss" failed on outputs torch.float32 .*RuntimeError'),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_with_what_it_should_be(loss: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f'(?s)"loss": .*{words}'):
        check(loss)


def test_a_loss_that_is_not_callable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'expected "mine:loss" to be a callable .* got int'):
        make_task("regression", "mine:loss", 3)


class Pair(nn.Module):
    """Outputs that are no tensor, as a variational autoencoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), torch.ones(len(x))


def test_outputs_of_any_form_train_with_a_loss_that_takes_them() -> None:
    def loss(outputs: tuple[torch.Tensor, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return (outputs[0] - y).square().mean(1) * outputs[1]

    task, x = make_task("reconstruction", "mine:loss", loss), torch.ones(2, 3)
    task.check(Pair(), x, x, 3)
    assert measure(Pair(), x, x, task=task)[0]["num-examples"] == 2
    with pytest.raises(ConfigError, match='"mse" failed on outputs of type tuple'):
        make_task("reconstruction", "mse").check(Pair(), x, x, 3)


def test_a_model_whose_outputs_do_not_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'"model": task = "regression" expects numbers \[2, 1\].*got.*\[2, 3\]'
    ):
        make_task("regression", "mse").check(nn.Linear(3, 3), torch.ones(2, 3), torch.zeros(2), 1)
    with pytest.raises(ConfigError, match=r"expects logits \[2, 4\] .*got.*\[2, 3\]"):
        make_task("classification", "focal").check(nn.Linear(3, 3), torch.ones(2, 3), torch.tensor([0, 1]), 4)


# ------------------------------------------------------------------------------------ keys and data


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"task": "regression", "algorithm": "moon"}, '"task": MOON .* expected classification or language'),
        ({"task": "regression", "attack.kind": "label-flip"}, "label-flip"),
        ({"task": "multi-label", "algorithm": "ensemble"}, "vote"),
        ({"task": "regression", "target-accuracy": 0.5}, '"target-accuracy"'),
        ({"loss": "mze"}, 'got .mze.. Did you mean "mse".*Expected one of bce, '),
        ({"task": "numbers"}, '"task"'),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_keys_are_read(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config(keys)


def task(found: str, **keys: Any) -> Any:
    return task_of(read_config(keys), found, 3)


def test_a_task_and_a_loss_must_fit_the_data() -> None:
    assert task("regression").name == "regression"
    assert task("classification", task="reconstruction").title == "mse"
    with pytest.raises(ConfigError, match=r'"task": the targets .* are those of classification'):
        task("classification", task="regression")
    with pytest.raises(ConfigError, match='"loss": of task = "regression"'):
        task("regression", loss="focal")
    with pytest.raises(ConfigError, match='"metrics": task = "regression"'):
        task("regression", metrics="auroc")
    with pytest.raises(ConfigError, match="MOON"):  # auto: known once the data are
        task("regression", algorithm="moon")


def npz(tmp_path: Path, y: Any, **keys: Any) -> Config:
    np.savez(tmp_path / "t.npz", x=np.ones((len(y), 2), np.float32), y=np.array(y))
    given = {"dataset": "npz", "data-path": str(tmp_path / "t.npz"), "cache-dir": str(tmp_path / "cache")}
    return read_config(given | keys)


@pytest.mark.parametrize(
    ("y", "keys", "name", "outputs"),
    [
        ([0, 1, 2], {}, "classification", 3),
        ([0.5, 1.0, 2.0], {}, "regression", 1),
        ([0, 1, 2], {"task": "regression"}, "regression", 1),
        ([[0.5, 1.0], [1, 1], [0, 2]], {}, "regression", 2),
        ([[0, 1], [1, 1], [0, 0]], {}, "multi-label", 2),
    ],
)
def test_an_npz_file_says_what_it_is_for(
    y: Any, keys: dict[str, Any], name: str, outputs: int, tmp_path: Path
) -> None:
    config = npz(tmp_path, y, **keys)
    data = load_dataset(config.data, config.synthetic, 1)
    assert (data.task, data.num_classes) == (name, outputs)
    targets = data.targets(slice(0, 3))
    assert targets.dtype == (torch.int64 if name == "classification" else torch.float32)
    assert targets.shape == (len(targets), *np.shape(y)[1:])


def test_targets_that_are_no_numbers_are_refused_by_row(tmp_path: Path) -> None:
    config = npz(tmp_path, [1.0, math.nan, 2.0])
    with pytest.raises(DataError, match=r"finite numbers .* in example 1"):
        load_dataset(config.data, config.synthetic, 1)
    config = npz(tmp_path, [[0, 1], [2, 1]], task="multi-label")
    with pytest.raises(DataError, match=r"labels 0 and 1 .* in example 1"):
        load_dataset(config.data, config.synthetic, 1)
    config = npz(tmp_path, [0.5, 1.5], task="classification")
    with pytest.raises(DataError, match="expects integers"):
        load_dataset(config.data, config.synthetic, 1)
    config = npz(tmp_path, [[0.5, 1.0], [1, 1]], **{"num-classes": 3})
    with pytest.raises(DataError, match="expected 2, the numbers of an example in y, or 0; got 3"):
        load_dataset(config.data, config.synthetic, 1)


def test_a_node_that_brings_numbers_needs_the_task_in_the_run_config(tmp_path: Path) -> None:
    """The server, which has no data, would build a classifier."""
    config = npz(tmp_path, [0.5, 1.5, 2.5], **{"num-classes": 1})
    with pytest.raises(ConfigError, match='expected task = "regression"'):
        load_owned(config.data, config.data.data_path, "ward-1", 1)
    config = npz(tmp_path, [0.5, 1.5, 2.5], task="regression")
    assert load_owned(config.data, config.data.data_path, "ward-1", 1).num_classes == 1


def test_numbers_are_not_dealt_by_class(tmp_path: Path) -> None:
    from task.datasets.partition import load_partition

    config = npz(tmp_path, [0.5, 1.0, 2.0, 3.0], partition="shards", **{"num-clients": 2})
    with pytest.raises(ConfigError, match="have no class"):
        load_partition(load_dataset(config.data, config.synthetic, 1), config.data, 1)

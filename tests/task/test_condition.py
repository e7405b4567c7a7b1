"""Conditions: whose number a row has, what the conditional model makes of it, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from client_app.data.node import open_node
from server_app.takeout.examples import read_examples
from task.datasets.condition import Conditioned
from task.datasets.skew import load_partitioned
from task.errors import ConfigError, DataError
from task.models.vae import VAE
from task.resolve.model_card import ModelCard
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from task.tasks import task_of
from tests.task.helpers import load

KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "cvae", "task": "reconstruction", "num-clients": 4,
    "local-test-fraction": 0.2, "feature-skew": "invert",
}  # fmt: skip


def dealt(**keys: Any) -> tuple[Conditioned, Any]:
    data, clients = load_partitioned(read_config(KEYS | keys))
    assert isinstance(data, Conditioned)
    return data, clients


def test_a_row_ends_with_its_clients_number_in_training_and_test() -> None:
    data, clients = dealt()
    plain = load_partitioned(read_config(KEYS | {"model": "vae"}))[0]
    for k in range(4):
        for rows in (clients.train(k), clients.test(k)):
            x = data.inputs(rows)
            assert torch.equal(x[:, :64], plain.inputs(rows).flatten(1))
            assert torch.equal(x[:, 64:], torch.eye(4)[k].expand(len(rows), 4))
    assert list(data.conditions) == list(clients.names)


def test_the_rows_of_the_global_test_set_have_number_and_skew_of_one_client() -> None:
    data, _ = dealt()
    raw = load(dataset="digits").inputs(data.test_rows).flatten(1)
    x = data.inputs(data.test_rows)
    number = x[:, 64:].argmax(1)
    assert torch.bincount(number).tolist() == [89, 89, 89, 88]
    assert torch.equal(x[:, :64], torch.where(number[:, None] % 2 == 1, 1 - raw, raw))


def test_without_skew_and_by_label() -> None:
    data, clients = dealt(**{"feature-skew": "none"})
    assert data.inputs(clients.train(2)[:1])[0, 64:].tolist() == [0, 0, 1, 0]
    data, clients = dealt(condition="label", partition="bootstrap", **{"feature-skew": "none"})
    assert data.inputs(np.arange(9))[:, 64:].argmax(1).tolist() == data.y[:9].tolist()
    assert list(data.conditions) == [str(c) for c in range(10)]


def test_what_it_learns_to_draw_are_the_pixels() -> None:
    data, _ = dealt()
    config = read_config(KEYS)
    task, rows = task_of(config, data.task, data.num_classes), slice(0, 3)
    assert torch.equal(task.targets(data, rows), data.drawn.inputs(rows))
    model = model_of(config, data.input_shape, data.num_classes).eval()
    assert sum(p.numel() for p in model.parameters()) == 19_792 + 2 * 4 * 128
    assert model(data.inputs(rows)).logits.shape == (3, 64)


def test_the_condition_is_read_by_encoder_and_decoder() -> None:
    """With all other weights at zero, the condition's columns are the answer."""
    model = VAE(2, hidden=1, latent=1, conditions=2).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.encoder[1].weight.copy_(torch.tensor([[0.0, 0.0, 3.0, 5.0]]))
        model.encoder[3].weight.copy_(torch.tensor([[1.0], [0.0]]))  # mean = hidden unit, log variance 0
        model.decoder[0].weight.copy_(torch.tensor([[0.0, 7.0, 11.0]]))
        model.decoder[2].weight.fill_(1.0)
    found = model(torch.tensor([[0.2, 0.4, 1.0, 0.0], [0.2, 0.4, 0.0, 1.0]]))
    assert found.mean.tolist() == [[3.0], [5.0]]
    assert found.logits.tolist() == [[7.0, 7.0], [11.0, 11.0]]
    drawn = model.sample(2, condition=torch.eye(2))
    assert drawn.tolist() == torch.sigmoid(torch.tensor([[7.0, 7.0], [11.0, 11.0]])).tolist()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"partition": "bootstrap", "feature-skew": "none"}, "condition.*do not overlap"),
        ({"dataset": "breast-cancer", "feature-skew": "none"}, "model.*reads images"),
        ({"fraction-heldout": 0.5}, "fraction-heldout.*no training has"),
    ],
)
def test_what_has_no_condition_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_partitioned(read_config(KEYS | keys))


def test_a_model_that_takes_none_data_of_a_nodes_own_and_files_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"condition.*expected model = \"cvae\""):
        read_config(KEYS | {"model": "vae", "condition": "label"})
    config = read_config(KEYS | {"dataset": "imagefolder", "num-classes": 2, "feature-skew": "none"})
    with pytest.raises(ConfigError, match="a node brings its own data"):
        open_node(config, {"client-name": "ward-1", "data-path": str(tmp_path)})
    card = ModelCard({"model": "cvae", "task": "reconstruction"}, (69,), 10, "features")
    with pytest.raises(DataError, match="given each example's client"):
        read_examples(tmp_path, card)

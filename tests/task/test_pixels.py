"""The range of pixels: each by hand, wherever inputs are made, and refused where there are no pixels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from server_app.extras.audit.inversion import pixels as images_of
from server_app.takeout.examples import read_examples
from server_app.takeout.export import export
from server_app.takeout.model import take
from server_app.takeout.predict import own_examples, predict
from task.config.knobs import Config
from task.config.read import defaults
from task.config.run_name import changed, default_name
from task.datasets import load_owned
from task.datasets.base import Dataset
from task.datasets.public import public_examples
from task.datasets.skew import load_partitioned
from task.datasets.trigger import stamped
from task.errors import ConfigError
from task.resolve.model_card import card_of
from task.resolve.read import read_config
from tests.server_app.test_takeout import trained
from tests.support.brought import imported_from
from tests.support.federation import play

NET = """
from torch import nn


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x - 1


def made(first, inputs, classes):
    return nn.Sequential(nn.Flatten(), first, nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, classes))


def doubled(input_shape, num_classes):
    return made(Doubled(), 64, num_classes)


def as_they_are(input_shape, num_classes):
    return made(nn.Identity(), 64, num_classes)
"""


def dealt(**keys: Any) -> tuple[Config, Dataset]:
    config = read_config({key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()})
    return config, load_partitioned(config)[0]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Eight colour pictures of a node's own, [8, 2, 2, 3]: 0, but for a corner of 51 and one of 255."""
    x = np.zeros((8, 2, 2, 3), np.uint8)
    x[:, 0, 0], x[:, 1, 1] = 51, 255
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(8) % 2)
    return tmp_path / "own.npz"


def owned(path: Path, pixels: str) -> Dataset:
    config = read_config({"dataset": "npz", "num-classes": 2, "pixels": pixels})
    return load_owned(config.data, str(path), "ward-1", 1)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [("auto", [-1, -0.6, 1]), ("centred", [-1, -0.6, 1]), ("unit", [0, 0.2, 1])],
)
def test_pictures_of_a_nodes_own_by_hand(own: Path, pixels: str, expected: list[float]) -> None:
    x = owned(own, pixels).inputs(slice(0, 2))
    assert x.shape == (2, 3, 2, 2)
    assert x.unique().tolist() == pytest.approx(expected)
    assert x[0, :, 0, 0].tolist() == pytest.approx([expected[1]] * 3)


@pytest.mark.parametrize("pixels", ["unit", "centred"])
def test_a_pixel_is_its_byte_over_the_scale_in_single_precision(tmp_path: Path, pixels: str) -> None:
    """Every byte; 255 is no power of two, so a product with its reciprocal has other last bits."""
    x = np.arange(256 * 3, dtype=np.uint32).reshape(3, 16, 16).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=np.repeat(x, 3, 0), y=np.arange(9) % 2)
    data = owned(tmp_path / "own.npz", pixels)
    assert len(np.unique(data.x)) == 256
    expected = data.x.astype(np.float32) / np.float32(255)
    if pixels == "centred":
        expected = (expected - np.float32(0.5)) / np.float32(0.5)
    np.testing.assert_array_equal(data.inputs(slice(0, 9)).numpy()[:, 0], expected)


def test_centred_is_twice_the_pixel_less_one_to_the_bit_and_the_default_changes_nothing() -> None:
    _, auto = dealt(dataset="digits")
    for pixels, expected in (
        ("unit", auto.inputs(slice(0, 9))),
        ("centred", 2 * auto.inputs(slice(0, 9)) - 1),
    ):
        _, data = dealt(dataset="digits", pixels=pixels)
        assert torch.equal(data.inputs(slice(0, 9)), expected)
        assert data.fingerprint == auto.fingerprint  # the data are the same, so partitions are
    config = read_config({"pixels": "auto"})
    assert "pixels" not in changed(config)
    assert default_name(config) == default_name(read_config({}))
    assert changed(read_config({"pixels": "unit"})) == {"pixels": "unit"}
    assert defaults()["pixels"] == "auto"


def test_a_data_sets_own_scaling_is_replaced() -> None:
    data = Dataset(
        name="", x=np.full((1, 3, 1, 1), 255, np.uint8), y=np.zeros(1, np.int64), num_train=1, num_classes=1,
        input_shape=(3, 1, 1), kind="image", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
    )  # fmt: skip
    found = {
        p: data.with_pixels(p).inputs(slice(0, 1)).flatten().tolist() for p in ("unit", "centred", "auto")
    }
    assert found["unit"] == found["centred"] == [1.0] * 3
    assert found["auto"] == pytest.approx([2.0591, 2.1265, 2.1158], abs=1e-4)


def test_skew_drift_trigger_and_inversion_know_the_range() -> None:
    keys: dict[str, Any] = {
        "num_clients": 5, "feature_skew": "styles", "drift__kind": "contrast", "drift__round": 1,
    }  # fmt: skip
    rows = np.arange(0, 1797, 7)
    unit, centred = (dealt(pixels=p, **keys)[1].at(2) for p in ("unit", "centred"))
    x, y = unit.inputs(rows), centred.inputs(rows)
    assert not torch.equal(x, dealt()[1].inputs(rows))
    assert torch.equal(y, 2 * x - 1)  # the skew and the drift are those of pixels from 0 to 1
    assert torch.equal(stamped(y), 2 * stamped(x) - 1)
    assert torch.equal(images_of(centred, y), images_of(unit, x))


def test_public_examples_have_the_range_of_the_run() -> None:
    for public in ("digits", ""):
        keys: dict[str, Any] = {"algorithm": "fedmd", "public__data": public, "public__examples": 30}
        found = [public_examples(*dealt(pixels=p, **keys)).x for p in ("unit", "centred")]
        assert torch.equal(found[1], 2 * found[0] - 1)


def test_a_run_is_that_of_a_model_that_doubles_the_pixels_itself_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "pixel_net.py").write_text(NET)
    keys: dict[str, Any] = {
        "dataset": "digits", "num-clients": 4, "num-server-rounds": 2, "fraction-evaluate": 1.0,
        "state-dir": str(tmp_path / "state"), "fraction-heldout": 0.25, "device": "cpu",
    }  # fmt: skip
    with imported_from(tmp_path):
        key = play(keys | {"model": "pixel_net:as_they_are", "pixels": "centred"})
        own = play(keys | {"model": "pixel_net:doubled"})
        neither = play(keys | {"model": "pixel_net:as_they_are"})
    for t in (1, 2):
        assert key.rows[t]["model_sha256"] == own.rows[t]["model_sha256"] != neither.rows[t]["model_sha256"]
        for measured in ("train_loss", "client_accuracy", "client_loss"):
            assert key.rows[t][measured] == own.rows[t][measured], measured


def test_a_model_file_says_its_scaling_and_what_is_exported_has_it(tmp_path: Path) -> None:
    folder = trained(tmp_path, pixels="centred", num_server_rounds=1)
    taken = take(folder)
    said = json.loads(taken.card.metadata()["bouquet"])
    assert said["normalisation"] == {"scale": 16.0, "mean": [0.5], "std": [0.5]}
    assert said["run"]["pixels"] == "centred"
    examples = own_examples(taken)
    found = predict(taken, examples)
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert found.scores["all"]["accuracy"] == last["accuracy"]
    export(taken, "onnx", tmp_path / "m.onnx", examples)
    raw = np.asarray(examples.data.x[examples.rows], np.float32).reshape(-1, 1, 8, 8)
    (answer,) = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": raw})
    np.testing.assert_allclose(answer, found.probabilities, atol=1e-5)


@pytest.mark.parametrize(("pixels", "expected"), [("unit", 0.2), ("centred", -0.6), ("auto", -0.6)])
def test_files_to_predict_are_read_as_the_nodes_read_theirs(
    pixels: str, expected: float, own: Path, tmp_path: Path
) -> None:
    """Of a deployed run the link has no data, so that only the run's key says how pictures were scaled."""
    config = read_config({"dataset": "imagefolder", "num-classes": 2, "pixels": pixels})
    Image.fromarray(np.full((2, 2, 3), 51, np.uint8)).save(tmp_path / "one.png")
    folder = card_of(config, (3, 2, 2), 2, None)
    read = read_examples(tmp_path / "one.png", folder).data.inputs(slice(0, 1))
    assert read.unique().tolist() == pytest.approx([expected])
    arrays = card_of(replace(config, data=replace(config.data, dataset="npz")), (3, 2, 2), 2, None)
    assert (folder.kind, arrays.kind) == ("image", "")
    assert folder.mean == ((0.0,) * 3 if pixels == "unit" else (0.5,) * 3)
    assert torch.equal(
        read_examples(own, arrays).data.inputs(slice(0, 8)), owned(own, pixels).inputs(slice(0, 8))
    )


@pytest.mark.parametrize("name", ["ag-news", "breast-cancer", "csv", "sent140", "shakespeare", "synthetic"])
def test_what_has_no_pixels_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf'"pixels".*dataset other than .*; got "unit" with dataset = "{name}"'
    ):
        read_config({"dataset": name, "pixels": "unit", "partition": "natural", "num-clients": 0})


def test_numbers_of_a_users_own_and_inputs_that_must_be_from_0_to_1_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", x=np.ones((20, 4), np.float32), y=np.arange(20) % 2)
    with pytest.raises(
        ConfigError, match=r'"pixels": expected images; got features of shape \(4,\) in "npz"'
    ):
        dealt(dataset="npz", data_path=str(tmp_path / "n.npz"), pixels="centred")
    with pytest.raises(
        ConfigError,
        match=r'"pixels": got .center.*"centred".*Expected one of auto, centred, standardised, unit',
    ):
        read_config({"pixels": "center"})
    generative: dict[str, Any] = {"model": "vae", "task": "reconstruction", "num-server-rounds": 1}
    play(generative | {"pixels": "unit"})
    with pytest.raises(ConfigError, match=r'"elbo" reconstructs inputs from 0 to 1.*set pixels = "unit"'):
        play(generative | {"pixels": "centred"})

"""Images of which a model reads the middle, and those that it reads by their own mean and deviation.

The middle and the numbers by hand; the same wherever inputs are made; refused where there are no images.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from server_app.extras.audit.inversion import MOST_DB, attack
from server_app.takeout.examples import read_examples
from server_app.takeout.export import export
from server_app.takeout.model import take
from server_app.takeout.predict import own_examples, predict
from task.datasets import load_owned
from task.datasets.base import Dataset, centre, standardised
from task.datasets.public import public_examples
from task.datasets.skew import load_partitioned
from task.errors import ConfigError, DataError
from task.models import build_model
from task.numerics.arrays import sha256
from task.resolve.model_card import card_of
from task.resolve.read import read_config
from tests.server_app.test_takeout import trained
from tests.support.federation import play

CROPPED: dict[str, Any] = {"crop": 6, "pixels": "standardised"}


def loaded(**keys: Any) -> Dataset:
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}
    return load_partitioned(read_config(keys))[0]


# --------------------------------------------------------------------------------------------- by hand


def test_the_middle_of_even_and_odd_sides() -> None:
    x = torch.arange(20).view(1, 4, 5)
    assert centre(x, 2).tolist() == [[[6, 7], [11, 12]]]  # a column less on the left
    assert centre(x, 3).tolist() == [[[1, 2, 3], [6, 7, 8], [11, 12, 13]]]  # a row less above
    assert centre(x, 4).tolist() == x[..., :4].tolist()
    assert centre(x, 0) is x


def test_standardised_images_and_the_least_deviation() -> None:
    """Bytes 0 and 2: mean 1, deviation 1. Of 7, 7, 7, 8 it is 0.43, less than 1 / sqrt(4), which divides."""
    x = torch.tensor([[0.0, 2, 2, 0], [7, 7, 7, 8], [9, 9, 9, 9]]).view(3, 1, 2, 2)
    expected = [[-1.0, 1, 1, -1], [-0.5, -0.5, -0.5, 1.5], [0, 0, 0, 0]]
    torch.testing.assert_close(standardised(x / 255, 255.0).flatten(1), torch.tensor(expected))
    both = torch.stack([x[0, 0], x[1, 0]]).unsqueeze(0)  # channels of one image have one mean: 33 / 8
    found = standardised(both / 16, 16.0)
    spread = float(np.std([0, 2, 2, 0, 7, 7, 7, 8]))
    torch.testing.assert_close(found.flatten(), (both.flatten() - 33 / 8) / spread)


def test_a_model_reads_the_middle_standardised_and_augmentation_the_whole(tmp_path: Path) -> None:
    x = np.arange(8 * 4 * 4 * 3).reshape(8, 4, 4, 3).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(8) % 2)
    keys = {
        "dataset": "npz",
        "num-classes": 2,
        "crop": 2,
        "pixels": "standardised",
        "local-test-fraction": 0.0,
    }
    config = read_config(keys)
    data = load_owned(config.data, str(tmp_path / "own.npz"), "ward-1", 1)
    assert (data.input_shape, data.whole_shape) == ((3, 2, 2), (3, 4, 4))
    pixels = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32)) / 255
    assert torch.equal(data.pixels(slice(0, 8)), pixels)
    middle = pixels[:, :, 1:3, 1:3]
    mean, spread = middle.mean((1, 2, 3), keepdim=True), middle.std((1, 2, 3), unbiased=False, keepdim=True)
    torch.testing.assert_close(data.inputs(slice(0, 8)), (middle - mean) / spread)
    for part in (pixels, middle):  # one that is cropped already stays whole
        assert torch.equal(data.as_read(part), data.inputs(slice(0, 8)))
    assert torch.equal(data.as_read(pixels[3:4])[0], data.inputs(np.arange(8))[3])  # whatever is read with it
    assert data.pixels(slice(0, 1)).max() <= 1  # nothing was changed in place


# --------------------------------------------------------------------------------- wherever inputs are made


def test_a_run_is_that_on_images_that_were_cropped_before_to_the_bit(tmp_path: Path) -> None:
    whole = loaded(dataset="digits").x
    y = loaded(dataset="digits").y
    for name, x in (("whole", whole), ("middle", whole[:, 1:7, 1:7])):
        scaled = (np.asarray(x) * 15).astype(np.uint8)
        np.savez(
            tmp_path / f"{name}.npz", x=scaled[:300], y=y[:300], x_test=scaled[300:500], y_test=y[300:500]
        )
    keys: dict[str, Any] = {
        "dataset": "npz", "num-clients": 4, "num-server-rounds": 2, "fraction-evaluate": 1.0,
        "pixels": "standardised", "state-dir": str(tmp_path / "state"), "device": "cpu",
    }  # fmt: skip
    middle = play(keys | {"data-path": str(tmp_path / "middle.npz")})
    cropped = play(keys | {"data-path": str(tmp_path / "whole.npz"), "crop": 6})
    for t in (1, 2):
        assert sha256(middle.arrays(t)) == sha256(cropped.arrays(t))
        for measured in ("loss", "accuracy", "client_loss", "train_loss"):
            assert middle.rows[t][measured] == cropped.rows[t][measured], measured


def test_skew_and_drift_act_on_the_whole_image() -> None:
    """A quarter turn after a crop of an odd margin would be of another middle."""
    rows, keys = np.arange(0, 1797, 7), {"num_clients": 5, "feature_skew": "rotate"}
    keys |= {"drift__kind": "contrast", "drift__round": 1}
    whole, middle = (loaded(pixels="unit", crop=side, **keys).at(2).inputs(rows) for side in (0, 5))
    assert torch.equal(middle, centre(whole, 5))


def test_public_examples_and_audits_are_read_alike() -> None:
    keys: dict[str, Any] = {"algorithm": "fedmd", "public.data": "digits", "public.examples": 30, **CROPPED}
    config = read_config(keys)
    data, _ = load_partitioned(config)
    assert public_examples(config, data).x.shape == (30, 1, 6, 6)
    model = build_model("mlp", data.input_shape, 10, 1)
    x, y = data.inputs(slice(0, 1)), data.targets(slice(0, 1))
    gradient = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), [*model.parameters()])
    change = {name: -g.numpy() for (name, _), g in zip(model.named_parameters(), gradient, strict=True)}
    found = attack(model, data, np.arange(1), change, steps=0)
    assert found.images.shape == (1, 1, 6, 6)
    assert 100 < found.mean <= MOST_DB  # what the model read, in pixels from 0 to 1
    assert 0.3 < float(found.images.mean()) < 0.7


# ------------------------------------------------------------------------------------ predict and export


@pytest.mark.parametrize("form", ["onnx", "torchscript", "safetensors"])
def test_what_is_exported_crops_and_standardises_images_of_any_size(form: str, tmp_path: Path) -> None:
    folder = trained(
        tmp_path, model="tf-cnn", num_server_rounds=1, batch_size=50, augment="crops-flips", **CROPPED
    )
    taken = take(folder)
    assert taken.card.input_shape == (1, 6, 6)
    said = json.loads(taken.card.metadata()["bouquet"])["normalisation"]
    assert said == {"scale": 16.0, "mean": [0.0], "std": [1.0], "crop": 6, "standardised": True}
    examples = own_examples(taken)
    found = predict(taken, examples)
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert found.scores["all"]["accuracy"] == last["accuracy"]
    path = tmp_path / "m"
    assert export(taken, form, path, examples).difference <= 1e-5
    raw = np.asarray(examples.data.x[examples.rows], np.float32).reshape(-1, 1, 8, 8)[:20]
    for x in (raw, np.pad(raw, ((0, 0), (0, 0), (2, 3), (1, 1)), constant_values=9), raw[..., 1:7, 1:7]):
        if form == "onnx":
            (answer,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
        elif form == "torchscript":
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch.jit is deprecated
                answer = torch.jit.load(str(path))(torch.from_numpy(x)).detach().numpy()
        else:
            np.savez(tmp_path / "x.npz", x=x[:, 0].astype(np.uint8))
            again = take(path)
            answer = predict(again, read_examples(tmp_path / "x.npz", again.card)).probabilities
        np.testing.assert_allclose(answer, found.probabilities[:20], atol=1e-5)


def test_an_export_without_examples_reads_images_of_any_size_too(tmp_path: Path) -> None:
    """Only the nodes of a deployed run have data; its card knows what a model reads."""
    keys: dict[str, Any] = {"dataset": "imagefolder", "num-classes": 2, "model": "cnn", "crop": 8}
    config = read_config(keys | {"pixels": "standardised"})
    card = card_of(config, (3, 8, 8), 2, None)
    taken = replace(take(trained(tmp_path, num_server_rounds=1)), card=card, config=config)
    taken = replace(taken, model=build_model("cnn", (3, 8, 8), 2, 1).eval())
    export(taken, "onnx", tmp_path / "m.onnx", None)
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (11, 13, 3), np.uint8)).save(
        tmp_path / "one.png"
    )
    examples = read_examples(tmp_path / "one.png", card)
    x = np.asarray(examples.data.x, np.float32)
    assert x.shape == (1, 3, 11, 13)
    (answer,) = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(answer, predict(taken, examples).probabilities, atol=1e-5)
    Image.fromarray(np.zeros((7, 13, 3), np.uint8)).save(tmp_path / "small.png")
    with pytest.raises(DataError, match=r"expected .* \(3, 8, 8\), or larger .*crop = 8.*; got \(3, 7, 13\)"):
        read_examples(tmp_path / "small.png", card)


# ------------------------------------------------------------------------------------------------ refused


def test_what_cannot_be_cropped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'"crop": expected at most 8, .*"digits" have 8x8 pixels; got 9'):
        loaded(dataset="digits", crop=9)
    np.savez(tmp_path / "n.npz", x=np.ones((20, 3, 8, 8), np.float32), y=np.arange(20) % 2)
    with pytest.raises(ConfigError, match=r'"crop": expected images; got features of shape \(3, 8, 8\)'):
        loaded(dataset="npz", data_path=str(tmp_path / "n.npz"), crop=4)
    masks = np.arange(64).reshape(8, 8) % 2 * np.ones((20, 1, 1), int)
    np.savez(tmp_path / "m.npz", x=np.ones((20, 8, 8), np.uint8), y=masks)
    with pytest.raises(ConfigError, match=r'"crop": expected images without masks; .* got 4\. Crop pictures'):
        loaded(dataset="npz", data_path=str(tmp_path / "m.npz"), crop=4)
    for name in ("breast-cancer", "csv"):
        with pytest.raises(ConfigError, match=r'"crop": nothing in this run reads it'):
            read_config({"dataset": name, "crop": 4})
    with pytest.raises(ConfigError, match=r'"pixels": expected another value with partition = "columns"'):
        loaded(
            dataset="digits", algorithm="splitnn", partition="columns", num_clients=2, pixels="standardised"
        )
    with pytest.raises(ConfigError, match=r'"elbo" reconstructs inputs from 0 to 1'):
        play({"model": "vae", "task": "reconstruction", "num-server-rounds": 1, "pixels": "standardised"})

"""Exported models: they answer as `bouquet predict` does, read raw examples, and say what 8 bits cost."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

from server_app.takeout import export as exports
from server_app.takeout.examples import read_examples
from server_app.takeout.export import SUFFIXES, export
from server_app.takeout.model import TakenModel, take
from server_app.takeout.predict import own_examples, predict
from task.datasets.skew import load_partitioned
from task.errors import BouquetError, ConfigError
from task.models import MODELS, build_model
from task.resolve.model_card import ModelCard, card_of
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from tests.server_app.test_takeout import trained


def fresh(name: str) -> TakenModel:
    text, vector = {"char-lstm": "shakespeare", "fasttext": "ag-news"}.get(name, ""), name == "logistic"
    shape, classes = ((20,), 256) if name == "char-lstm" else ((7,), 3) if vector else ((3, 32, 32), 5)
    shape = (20,) if text else shape
    kind = "text" if text else "features" if vector else "image"
    run = {"model": name, **({"dataset": text} if text else {})}
    run |= {"partition": "natural"} if name == "char-lstm" else {}
    run |= {"task": "reconstruction"} if name in ("cvae", "vae") else {}
    card = ModelCard(run, shape, classes, kind, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    return TakenModel(card, build_model(name, shape, classes, 1, kind).eval(), card.config)


def every_model() -> list[Any]:
    """Return all models in all forms; of the two large ones, one form each runs on every commit."""
    rare = {("resnet18", "torchscript"), ("resnet18-bn", "onnx")}
    cases = [(name, form) for name in sorted(MODELS) for form in ("onnx", "torchscript")]
    return [pytest.param(*case, marks=pytest.mark.full if case in rare else ()) for case in cases]


@pytest.mark.parametrize(("name", "form"), every_model())
def test_every_model_can_be_exported_and_reads_any_number_of_examples(
    name: str, form: str, tmp_path: Path
) -> None:
    """A number of examples that is fixed in the graph, or an operator without translation, would fail."""
    path = tmp_path / f"model{SUFFIXES[form]}"
    done = export(fresh(name), form, path, None)  # it checks 64 examples after a graph made from 2
    assert done.difference <= 1e-5
    assert path.stat().st_size == done.size


@pytest.mark.parametrize("model", ["vae", "cvae"])
def test_a_run_with_feature_skew_is_exported_for_the_images_that_its_clients_have(
    model: str, tmp_path: Path
) -> None:
    run = {"dataset": "digits", "feature-skew": "styles", "num-clients": 5, "task": "reconstruction"}
    config = read_config(run | {"model": model})
    data, _ = load_partitioned(config)
    card = card_of(config, data.input_shape, data.num_classes, data)
    taken = TakenModel(card, model_of(config, data.input_shape, data.num_classes).eval(), config)
    assert export(taken, "torchscript", tmp_path / "m.pt", own_examples(taken)).difference <= 1e-5


def test_onnxruntime_predicts_from_raw_pixels_what_predict_does(tmp_path: Path) -> None:
    """Scaling that is left to the user, or done twice, would show here."""
    taken = take(trained(tmp_path, model="mlp-bn"))
    examples = own_examples(taken)
    export(taken, "onnx", tmp_path / "m.onnx", examples)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    x = np.asarray(examples.data.x[examples.rows], np.float32).reshape(-1, 1, 8, 8)
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, predict(taken, examples).probabilities, atol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "state-dict"])
def test_a_clients_model_is_exported_whole_and_is_a_model_file_again(form: str, tmp_path: Path) -> None:
    """Without the private part of FedPer nobody could use the file."""
    folder = trained(tmp_path, algorithm="fedper", num_server_rounds=1)
    taken = take(folder, "client-1")
    examples = own_examples(taken)
    path = tmp_path / f"one{SUFFIXES[form]}"
    export(taken, form, path, examples)
    ours = predict(taken, examples).probabilities
    if form == "safetensors":
        again = take(path)
        assert again.card.taken == {"run_name": "trial", "client": "client-1"}
        assert (predict(again, examples).probabilities == ours).all()
    else:
        state = torch.load(path, weights_only=True)
        assert set(state) == {"1.weight", "1.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_int8_is_smaller_and_says_what_it_costs(form: str, tmp_path: Path) -> None:
    taken = take(trained(tmp_path, model="2nn"))
    done = export(taken, form, tmp_path / "m", own_examples(taken), int8=True)
    assert done.size < 0.45 * done.float_size
    assert 1e-5 < done.difference < 0.2
    before, after = done.scores["accuracy"]
    assert abs(before - after) < 0.02
    assert before == predict(taken, own_examples(taken)).scores["all"]["accuracy"]
    assert "in int8" in done.lines()[-1]


def test_a_file_of_codes_predicts_and_says_what_they_cost(tmp_path: Path) -> None:
    folder = trained(tmp_path, model="2nn")
    taken, path = take(folder), tmp_path / "small.safetensors"
    examples = own_examples(taken)
    done = export(taken, "safetensors", path, examples, int8=True)
    assert done.size < 0.27 * done.float_size
    again = take(path)
    before, after = predict(taken, examples), predict(again, examples)
    assert 0 < np.abs(before.probabilities - after.probabilities).max() == pytest.approx(done.difference)
    old, new = before.scores["all"], after.scores["all"]
    assert done.scores == {k: (old[k], new[k]) for k in ("loss", "accuracy")}
    assert again.card.int8 == {
        **{k: [old[k], new[k]] for k in ("loss", "accuracy")},
        "examples": old["examples"],
    }
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("1.weight").dtype == np.int8
        assert file.get_tensor("1.weight.scale").shape == file.get_tensor("1.bias").shape
    # In float32 again, the file says nothing of 8 bits.
    export(again, "safetensors", tmp_path / "whole.safetensors", examples)
    assert take(tmp_path / "whole.safetensors").card.int8 is None


def test_codes_without_labels_say_that_their_cost_was_not_measured(tmp_path: Path) -> None:
    done = export(fresh("cnn"), "safetensors", tmp_path / "m.safetensors", None, int8=True)
    assert done.scores == {}
    assert "not measured" in done.lines()[1]
    assert take(tmp_path / "m.safetensors").card.int8 == {}


def test_a_model_that_answers_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(exports.Deployed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 2e-5

    monkeypatch.setattr(exports, "Deployed", Wrong)
    with pytest.raises(BouquetError, match=r"within 1e-05 of ours; got a difference of 2\.0e-05"):
        export(fresh("logistic"), "torchscript", tmp_path / "m.pt", None)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = fresh("logistic")
    with pytest.raises(ConfigError, match="--int8: expected --format onnx, torchscript or safetensors"):
        export(taken, "state-dict", tmp_path / "m", None, int8=True)
    with pytest.raises(ConfigError, match="--format: expected one of"):
        export(taken, "pickle", tmp_path / "m", None)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'bouquet\[onnx\]'"):
        export(taken, "onnx", tmp_path / "m", None)


def test_pictures_in_csv_of_a_deployed_run_need_examples(tmp_path: Path) -> None:
    """Where only nodes have data, an npz file may hold pictures or numbers; a guess would scale wrongly."""
    card = ModelCard({"dataset": "npz", "model": "mlp"}, (1, 8, 8), 10)
    taken = TakenModel(card, build_model("mlp", (1, 8, 8), 10, 1).eval(), card.config)
    with pytest.raises(ConfigError, match="--data: expected examples to compare"):
        export(taken, "torchscript", tmp_path / "m", None)
    pictures = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", x=pictures)
    examples = read_examples(tmp_path / "x.npz", card)
    assert (examples.data.mean, examples.data.std) == ((0.5,), (0.5,))
    assert export(taken, "torchscript", tmp_path / "m", examples).difference <= 1e-5


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_graphs_name_their_inputs_and_outputs(form: str, int8: bool, tmp_path: Path) -> None:
    """Without them nobody knows which column of x is which, nor which probability is whose."""
    columns, classes = ("age", "job:category(clerk|nurse)", "outcome"), ("well", "ill")
    card = ModelCard({"model": "logistic"}, (3,), 2, "features", classes=classes, columns=columns)
    taken = TakenModel(card, build_model("logistic", (3,), 2, 1, "features").eval(), card.config)
    path = tmp_path / "m"
    export(taken, form, path, None, int8=int8)
    said = {"inputs": "", "outputs": "", "bouquet": ""}
    if form == "onnx":
        said = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
    else:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch.jit is deprecated
            torch.jit.load(str(path), _extra_files=said)
    assert json.loads(said["inputs"]) == ["age", "job=clerk", "job=nurse"]
    assert json.loads(said["outputs"]) == ["well", "ill"]
    assert json.loads(said["bouquet"])["columns"] == list(columns)

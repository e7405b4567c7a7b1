"""Which tensors of a model are private, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from task.errors import ConfigError
from task.models import build_model
from task.models.layer_split import last_linear, layers_of, private_names, top_parameters
from task.numerics.arrays import trainable_names

IMAGE = (1, 16, 16)
BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def model_of(name: str, *, twin: bool = False) -> nn.Module:
    if name == "char-lstm":
        return build_model(name, (80,), 256, seed=1)
    return build_model(name, IMAGE, 4, seed=1, twin=twin)


def norm(*paths: str) -> set[str]:
    return {f"{path}.{name}" for path in paths for name in BN}


# ---------------------------------------------------------------------------------------------- layers


def test_layers_are_the_modules_that_own_tensors() -> None:
    assert layers_of(model_of("2nn")) == [(f"{i}.weight", f"{i}.bias") for i in (1, 3, 5)]
    owners = [names[0].split(".")[0] for names in layers_of(model_of("cnn-bn"))]
    assert owners == ["0", "1", "4", "5", "9", "10", "12"]
    assert layers_of(model_of("cnn-bn"))[1] == tuple(f"1.{name}" for name in BN)
    lstm = layers_of(model_of("char-lstm"))
    assert [len(names) for names in lstm] == [1, 8, 2]
    assert lstm[1][0] == "lstm.weight_ih_l0"
    twin = layers_of(model_of("mlp", twin=True))
    assert [names[0] for names in twin] == ["shared.1.weight", "local.1.weight", "head.weight"]


def test_a_module_may_own_tensors_and_have_modules_that_do() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))
            self.inner = nn.Linear(2, 2)

    assert layers_of(Scaled()) == [("scale",), ("inner.weight", "inner.bias")]
    assert private_names(Scaled(), "head", 1) == {"scale", "inner.weight", "inner.bias"}


# ---------------------------------------------------------------------------------------- private names


@pytest.mark.parametrize(
    ("name", "layers", "wanted"),
    [
        ("2nn", 0, set()),
        ("2nn", 1, {"5.weight", "5.bias"}),
        ("2nn", 2, {"3.weight", "3.bias", "5.weight", "5.bias"}),
        ("char-lstm", 1, {"output.weight", "output.bias"}),
        ("cnn-bn", 1, {"12.weight", "12.bias"}),
        ("cnn-bn", 2, {"12.weight", "12.bias", *norm("10")}),
        ("cnn-bn", 3, {"12.weight", "12.bias", *norm("10"), "9.weight", "9.bias"}),
    ],
)
def test_the_head_is_the_last_layers(name: str, layers: int, wanted: set[str]) -> None:
    assert private_names(model_of(name), "head", layers) == wanted


@pytest.mark.parametrize(("name", "most"), [("2nn", 3), ("cnn-bn", 7), ("char-lstm", 3), ("logistic", 1)])
def test_all_layers_are_the_whole_model_and_no_more_are_there(name: str, most: int) -> None:
    model = model_of(name)
    assert private_names(model, "head", most) == private_names(model, "all") == set(model.state_dict())
    says = f'"personal.layers": expected 0 to {most}, the layers of the model; got {most + 1}'
    with pytest.raises(ConfigError, match=says):
        private_names(model, "head", most + 1)


def test_a_layer_without_parameters_goes_with_the_one_before_it() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)
    )
    assert private_names(model, "head", 1) == {"3.weight", "3.bias"}
    statistics = {f"2.{name}" for name in BN[2:]}
    assert private_names(model, "head", 2) == set(model.state_dict())
    assert private_names(model, "norm") == statistics | {f"0.{name}" for name in BN[2:]}
    with pytest.raises(ConfigError, match="expected 0 to 2"):
        private_names(model, "head", 3)


def test_nothing_and_everything() -> None:
    model = model_of("cnn-bn")
    assert private_names(model, "") == frozenset()
    assert private_names(model, "", 5) == frozenset()
    assert len(private_names(model, "all")) == 4 * 2 + 3 * 5


def test_norm_is_all_of_batch_normalisation() -> None:
    assert private_names(model_of("cnn-bn"), "norm") == norm("1", "5", "10")
    assert private_names(nn.BatchNorm2d(3), "norm") == set(BN)
    with pytest.raises(ConfigError, match=r"FedBN needs a model with batch normalisation, such as cnn-bn"):
        private_names(model_of("cnn"), "norm")


def test_twin_keeps_the_local_extractor_and_the_head() -> None:
    twin = model_of("cnn-bn", twin=True)
    private = private_names(twin, "twin")
    assert {name.split(".")[0] for name in private} == {"local", "head"}
    assert {name.split(".")[0] for name in set(twin.state_dict()) - private} == {"shared"}
    assert "local.1.running_mean" in private
    with pytest.raises(ConfigError, match=r"FENDA needs a twin model.*got Sequential"):
        private_names(model_of("cnn-bn"), "twin")


# ------------------------------------------------------------------------------------------- top layers


def test_top_parameters_by_layers() -> None:
    names = ("0.weight", "0.bias", "3.weight", "3.bias", "5.weight")
    assert top_parameters(names, 0) == ()
    assert top_parameters(names, 1) == ("5.weight",)
    assert top_parameters(names, 2) == ("3.weight", "3.bias", "5.weight")
    assert top_parameters(names, 3) == names
    with pytest.raises(ConfigError, match=r'"fedala.layers": expected 0 to 3, .* got 4'):
        top_parameters(names, 4)
    with pytest.raises(ConfigError, match=r'"fedala.layers": expected 0 to 0'):
        top_parameters((), 1)


@pytest.mark.parametrize("name", ["2nn", "cnn-bn", "char-lstm"])
def test_top_parameters_are_those_of_the_head(name: str) -> None:
    model = model_of(name)
    for layers in (0, 1, 2, 3):
        head = private_names(model, "head", layers)
        assert top_parameters(trainable_names(model), layers) == tuple(
            n for n in trainable_names(model) if n in head
        )


# ------------------------------------------------------------------------------------------ last layer


def test_last_linear() -> None:
    model = model_of("moon-cnn")
    assert isinstance(model, nn.Sequential)
    assert last_linear(model, "MOON") is model[-1]
    for other in (model_of("char-lstm"), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential()):
        with pytest.raises(ConfigError, match=f"MOON needs a chain .* got {type(other).__name__}"):
            last_linear(other, "MOON")

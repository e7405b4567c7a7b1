"""The models a run can name, and how their first parameters are drawn.

Every model takes an example as the data set gives it (images ``[B, C, H, W]`` float32, features
``[B, d]`` float32, text ``[B, T]`` int64), flattens it itself where it must, and returns logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from task.errors import ConfigError, choose_from
from task.numerics import seeds

if TYPE_CHECKING:  # torch costs seconds; who only checks a name does not pay
    from torch import nn

__all__ = ["MODELS", "ModelSpec", "build_model"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """One entry of `MODELS`.

    Args:
        description: One line for listings.
        inputs: What it can read, in words, for error messages.
        build: ``(input_shape, num_classes) -> model``; draws from torch's CPU generator.
        fits: ``(input_shape, num_classes) -> bool``.
        kinds: Kinds of data set it can read (`task.datasets.Dataset.kind`).
    """

    description: str
    inputs: str
    build: Callable[[Shape, int], nn.Module]
    fits: Callable[[Shape, int], bool]
    kinds: frozenset[str]


def _perceptron(*hidden: int) -> Callable[[Shape, int], nn.Module]:
    """Return a builder of Flatten, then Linear and ReLU for each hidden width, then Linear."""

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(shape)
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, num_classes))

    return build


def _mlp_bn(shape: Shape, num_classes: int) -> nn.Module:
    """Return the small perceptron with batch normalisation before its ReLU."""
    from torch import nn

    from task.models.layers import BatchNorm1d

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def _cnn(pad: int) -> Callable[[Shape, int], nn.Module]:
    """Return a builder of two 5x5 convolutions (32, 64) with pooling and a hidden layer of 512."""

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        from task.models.layers import Conv2d

        height, width = _after_convolutions(shape, pad)
        return nn.Sequential(
            Conv2d(shape[0], 32, 5, padding=pad),
            nn.MaxPool2d(2),
            nn.ReLU(),
            Conv2d(32, 64, 5, padding=pad),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * height * width, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )

    return build


def _cnn_bn(shape: Shape, num_classes: int) -> nn.Module:
    """Return the padded CNN with batch normalisation before each ReLU."""
    from torch import nn

    from task.models.layers import BatchNorm1d, Conv2d

    height, width = _after_convolutions(shape, 2)
    return nn.Sequential(
        Conv2d(shape[0], 32, 5, padding=2),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.ReLU(),
        Conv2d(32, 64, 5, padding=2),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * height * width, 512),
        BatchNorm1d(512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


def _lenet(*projection: int) -> Callable[[Shape, int], nn.Module]:
    """Return a builder of two 5x5 convolutions (6, 16) with pooling and hidden layers of 120 and 84.

    Args:
        projection: Widths of a projection head before the last layer; no ReLU follows it.
    """

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        from task.models.layers import Conv2d

        height, width = _after_convolutions(shape, 0)
        layers: list[nn.Module] = [
            Conv2d(shape[0], 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        ]
        features = 16 * height * width
        for size in (120, 84, *projection):
            layers += [nn.Linear(features, size), nn.ReLU()]
            features = size
        if projection:
            layers.pop()
        return nn.Sequential(*layers, nn.Linear(features, num_classes))

    return build


def _char_lstm(shape: Shape, num_classes: int) -> nn.Module:
    from task.models.char_lstm import CharLSTM

    return CharLSTM(num_classes)


def _after_convolutions(shape: Shape, pad: int) -> tuple[int, int]:
    """Return height and width of the second pooled map; 0 or less if the image is too small."""
    sides = []
    for side in shape[1:]:
        for _ in range(2):
            side = (side + 2 * pad - 4) // 2
        sides.append(side)
    return sides[0], sides[1]


def _is_image(pad: int) -> Callable[[Shape, int], bool]:
    return lambda shape, _: len(shape) == 3 and min(_after_convolutions(shape, pad)) >= 1


def _is_numbers(shape: Shape, num_classes: int) -> bool:
    return len(shape) >= 1


def _is_bytes(shape: Shape, num_classes: int) -> bool:
    return len(shape) == 1 and num_classes == 256


_NUMBERS = frozenset({"image", "features"})

MODELS: dict[str, ModelSpec] = {
    "2nn": ModelSpec(
        "two hidden layers of 200 ReLU (McMahan et al. 2017; 199,210 parameters on MNIST)",
        "images or feature vectors",
        _perceptron(200, 200),
        _is_numbers,
        _NUMBERS,
    ),
    "char-lstm": ModelSpec(
        "byte embedding 8, 2 x 256 LSTM (McMahan et al. 2017; 866,560 parameters)",
        "text windows (T,) of 256 byte classes",
        _char_lstm,
        _is_bytes,
        frozenset({"text"}),
    ),
    "cnn": ModelSpec(
        "two padded 5x5 convolutions, 512 ReLU (McMahan et al. 2017; 1,663,370 on MNIST)",
        "images (channels, height, width) of at least 4x4",
        _cnn(pad=2),
        _is_image(pad=2),
        _NUMBERS,
    ),
    "cnn-bn": ModelSpec(
        "cnn with batch normalisation after each hidden layer (for FedBN; 1,664,586 on MNIST)",
        "images (channels, height, width) of at least 4x4",
        _cnn_bn,
        _is_image(pad=2),
        _NUMBERS,
    ),
    "lenet": ModelSpec(
        "two unpadded 5x5 convolutions, 120 and 84 ReLU (NIID-Bench's CNN; 44,426 on MNIST)",
        "images (channels, height, width) of at least 16x16",
        _lenet(),
        _is_image(pad=0),
        _NUMBERS,
    ),
    "logistic": ModelSpec(
        "one linear layer: multinomial logistic regression",
        "images or feature vectors",
        _perceptron(),
        _is_numbers,
        _NUMBERS,
    ),
    "mlp": ModelSpec(
        "one hidden layer of 64 ReLU",
        "images or feature vectors",
        _perceptron(64),
        _is_numbers,
        _NUMBERS,
    ),
    "mlp-bn": ModelSpec(
        "mlp with batch normalisation (for FedBN; 51,018 on MNIST)",
        "images or feature vectors",
        _mlp_bn,
        _is_numbers,
        _NUMBERS,
    ),
    "moon-cnn": ModelSpec(
        "lenet with a projection head of 84 ReLU and 256 (Li, He and Song 2021, MOON; 92,626 on CIFAR-10)",
        "images (channels, height, width) of at least 16x16",
        _lenet(84, 256),
        _is_image(pad=0),
        _NUMBERS,
    ),
    "pfl-cnn": ModelSpec(
        "two unpadded 5x5 convolutions, 512 ReLU (PFLlib's and FedALA's CNN; 582,026 on MNIST)",
        "images (channels, height, width) of at least 16x16",
        _cnn(pad=0),
        _is_image(pad=0),
        _NUMBERS,
    ),
}


def build_model(
    name: str, input_shape: Shape, num_classes: int, seed: int, kind: str = "", twin: bool = False
) -> nn.Module:
    """Return the model with torch's default initialisation, a function of `seed` alone.

    torch's own generator is used while the layers are made and put back as it was.

    Args:
        name: Key of `MODELS`.
        input_shape: Shape of one example, without the batch.
        num_classes: Number of logits.
        seed: The run's seed.
        kind: The data set's kind, "image", "features" or "text", checked too if given.
        twin: Build its layers but the last one twice, as the extractors of a `task.models.twin.Twin`.

    Raises:
        ConfigError: No such model, or it cannot read such examples, or has no twin.
    """
    import torch

    if name not in MODELS:
        raise ConfigError(choose_from('run-config key "model"', name, MODELS))
    spec = MODELS[name]
    shape = tuple(input_shape)
    if not spec.fits(shape, num_classes) or (kind and kind not in spec.kinds):
        what = f"{kind} data" if kind else "a data set"
        raise ConfigError(
            f'run-config key "model": "{name}" expects {spec.inputs}; got {what} with examples of shape '
            f'{shape} and {num_classes} classes. Choose another "model" or "dataset".'
        )
    generator = torch.default_generator
    before = generator.get_state()
    try:
        # Not torch.manual_seed: that would seed the accelerators' generators as well.
        generator.manual_seed(seeds.seed_for(seed, seeds.MODEL))
        model = spec.build(shape, num_classes)
        return _twin(name, model, spec.build(shape, num_classes)) if twin else model
    finally:
        generator.set_state(before)


def _twin(name: str, first: nn.Module, second: nn.Module) -> nn.Module:
    """Return the twin model whose extractors are those of two models of one architecture."""
    from torch import nn

    from task.models.layer_split import last_linear
    from task.models.twin import Twin

    last = last_linear(first, "FENDA")
    shared, local = (nn.Sequential(*list(model.children())[:-1]) for model in (first, second))
    if not list(shared.parameters()):
        raise ConfigError(
            f'run-config key "model": FENDA needs layers to share before the last one; got "{name}", which '
            "has a single layer"
        )
    return Twin(shared, local, nn.Linear(2 * last.in_features, last.out_features))

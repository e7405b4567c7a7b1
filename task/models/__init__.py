"""The built-in models, and the initialisation of their parameters.

A user's own model is named ``package.module:name``, see `task.models.brought`.

Every model takes an example as the data set gives it (images ``[B, C, H, W]`` float32, features
``[B, d]`` float32, text ``[B, T]`` int64), flattens it itself where it must, and returns logits,
or whatever outputs its task takes (`task.tasks`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from task.errors import ConfigError, choose_from
from task.numerics import seeds
from task.references import is_reference

if TYPE_CHECKING:  # importing torch takes seconds, and checking a name does not need it
    from torch import nn

    from task.models.adapt import Interface

__all__ = ["MODELS", "WORD_BUCKETS", "ModelSpec", "build_model", "drawn"]

Shape = tuple[int, ...]
WORD_BUCKETS = 32_000  # numbers of words, 0 among them, which stands for no word
_TRIES = 4  # to make a model without importing a module


@dataclass(frozen=True)
class ModelSpec:
    """One entry of `MODELS`; `build` and `fits` take the shape of an example and the number of classes."""

    description: str  # one line for listings
    inputs: str  # what it can read, for error messages
    build: Callable[[Shape, int], nn.Module]  # draws from torch's CPU generator
    fits: Callable[[Shape, int], bool]
    kinds: frozenset[str] = frozenset({"image", "features"})  # of data sets, `task.datasets.Dataset.kind`
    gives_inputs: bool = False  # its outputs are its inputs again, whatever the classes
    loss: str = ""  # instead of the task's own, for a model that no other loss can train
    metrics: tuple[str, ...] = ()  # measured unless the run names others
    # Whether an example ends with a one-hot condition (`task.datasets.condition`); `build` and `fits` then
    # get the number of conditions instead of classes.
    conditional: bool = False


def _perceptron(description: str, *hidden: int, norm: bool = False) -> ModelSpec:
    """Return the entry of a perceptron with hidden layers of these widths."""

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Flatten(), *_dense(math.prod(shape), hidden, num_classes, norm=norm))

    return ModelSpec(description, "images or feature vectors", build, lambda shape, _: len(shape) >= 1)


def _autoencoder(*hidden: int) -> ModelSpec:
    """Return the entry of a perceptron with these hidden layers that gives back its inputs, flat."""

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Flatten(), *_dense(math.prod(shape), hidden, math.prod(shape), norm=False))

    description = (
        f'{", ".join(map(str, hidden))} ReLU and as many outputs as inputs (task = "reconstruction")'
    )
    return ModelSpec(
        description,
        "images or feature vectors",
        build,
        lambda shape, _: len(shape) >= 1,
        gives_inputs=True,
    )


def _vae(shape: Shape, num_classes: int) -> nn.Module:
    from task.models.vae import VAE

    return VAE(math.prod(shape))


def _cvae(shape: Shape, conditions: int) -> nn.Module:
    from task.models.vae import VAE

    return VAE(math.prod(shape) - conditions, conditions=conditions)


def _convolutional(
    description: str,
    channels: tuple[int, int],
    *hidden: int,
    pad: int = 0,
    norm: bool = False,
    bare: bool = False,
) -> ModelSpec:
    """Return the entry of two 5x5 convolutions, each with pooling and ReLU, and of `_dense` layers."""

    def sides(shape: Shape) -> list[int]:
        # height and width of the second pooled map; 0 or less if the image is too small
        return [((side + 2 * pad - 4) // 2 + 2 * pad - 4) // 2 for side in shape[1:]]

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        from task.models.layers import Conv2d

        layers: list[nn.Module] = []
        for before, width in pairwise((shape[0], *channels)):
            middle = [nn.BatchNorm2d(width)] if norm else []
            layers += [Conv2d(before, width, 5, padding=pad), *middle, nn.MaxPool2d(2), nn.ReLU()]
        dense = _dense(channels[-1] * math.prod(sides(shape)), hidden, num_classes, norm=norm, bare=bare)
        return nn.Sequential(*layers, nn.Flatten(), *dense)

    least = "4x4" if pad else "16x16"
    return ModelSpec(
        description,
        f"images (channels, height, width) of at least {least}",
        build,
        lambda shape, _: len(shape) == 3 and min(sides(shape)) >= 1,
    )


def _dense(
    inputs: int, hidden: tuple[int, ...], num_classes: int, *, norm: bool, bare: bool = False
) -> list[nn.Module]:
    """Return linear layers with ReLU after each hidden one; `bare`: but not after the last of these."""
    from torch import nn

    from task.models.layers import BatchNorm1d

    layers: list[nn.Module] = []
    for before, width in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, width), *([BatchNorm1d(width)] if norm else []), nn.ReLU()]
    if bare:
        layers.pop()
    return [*layers, nn.Linear((inputs, *hidden)[-1], num_classes)]


def _char_lstm(shape: Shape, num_classes: int) -> nn.Module:
    from task.models.layers import CharLSTM

    return CharLSTM(num_classes)


def _fasttext(shape: Shape, num_classes: int) -> nn.Module:
    from torch import nn

    from task.models.layers import MeanOfWords

    return nn.Sequential(MeanOfWords(WORD_BUCKETS, 32), nn.Linear(32, 32), nn.Linear(32, num_classes))


def _resnet18(description: str, *, batch_norm: bool = False) -> ModelSpec:
    """Return the entry of a ResNet-18 whose first layer is a 3x3 convolution without pooling."""

    def build(shape: Shape, num_classes: int) -> nn.Module:
        from torch import nn

        from task.models.layers import BatchNorm2d, Conv2d, ResidualBlock

        norm = BatchNorm2d if batch_norm else partial(nn.GroupNorm, 32)
        layers: list[nn.Module] = [Conv2d(shape[0], 64, 3, padding=1, bias=False), norm(64), nn.ReLU()]
        for before, width in pairwise((64, 64, 128, 256, 512)):
            layers += [ResidualBlock(before, width, 2 if width > before else 1, norm)]
            layers += [ResidualBlock(width, width, 1, norm)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))

    return ModelSpec(
        description,
        "images (channels, height, width) of at least 8x8",
        build,
        lambda shape, _: len(shape) == 3 and min(shape[1:]) >= 8,
    )


def _tutorial(shape: Shape, num_classes: int) -> nn.Module:
    """Return the model of TensorFlow's CIFAR-10 tutorial (``cifar10.py`` of tensorflow/models, 2015)."""
    from torch import nn

    from task.models.layers import Conv2d, LocalResponseNorm

    half = [-(-side // 2) for side in shape[1:]]
    # As TensorFlow pads: odd sides on both ends, even ones at the end, which is what rounding up does.
    pools = [
        nn.MaxPool2d(3, 2, padding=(height % 2, width % 2), ceil_mode=True)
        for height, width in (shape[1:], half)
    ]
    norms = [LocalResponseNorm(9, alpha=0.001, beta=0.75) for _ in range(2)]  # 0.001 / 9 by channel
    return nn.Sequential(
        *(Conv2d(shape[0], 64, 5, padding=2), nn.ReLU(), pools[0], norms[0]),
        *(Conv2d(64, 64, 5, padding=2), nn.ReLU(), norms[1], pools[1], nn.Flatten()),
        *_dense(64 * math.prod(-(-side // 2) for side in half), (384, 192), num_classes, norm=False),
    )


MODELS: dict[str, ModelSpec] = {
    "2nn": _perceptron(
        "two hidden layers of 200 ReLU (McMahan et al. 2017; 199,210 parameters on MNIST)", 200, 200
    ),
    "autoencoder": _autoencoder(64, 16, 64),
    "char-lstm": ModelSpec(
        "byte embedding 8, 2 x 256 LSTM (McMahan et al. 2017; 866,560 parameters)",
        "text windows (T,) of 256 byte classes",
        _char_lstm,
        lambda shape, num_classes: len(shape) == 1 and num_classes == 256,
        frozenset({"text"}),
    ),
    "cnn": _convolutional(
        "two padded 5x5 convolutions, 512 ReLU (McMahan et al. 2017; 1,663,370 on MNIST)",
        (32, 64), 512, pad=2,
    ),
    "cnn-bn": _convolutional(
        "cnn with batch normalisation after each hidden layer (for FedBN; 1,664,586 on MNIST)",
        (32, 64), 512, pad=2, norm=True,
    ),
    "cvae": ModelSpec(
        "vae that is given each example's client or class too, here one of ten (207,392 on MNIST)",
        "images from 0 to 1 with a condition", _cvae, lambda shape, count: 0 < count < math.prod(shape),
        loss="elbo", metrics=("neg-elbo", "neg-iwae"), conditional=True,
    ),
    "fasttext": ModelSpec(
        "mean of 32,000 word vectors of 32, a linear layer of 32 (PFLlib's fastText; 1,025,188 on AG-News)",
        "texts of words (T,) with one class each",
        _fasttext,
        lambda shape, num_classes: len(shape) == 1 and num_classes < 256,
        frozenset({"text"}),
    ),
    "lenet": _convolutional(
        "two unpadded 5x5 convolutions, 120 and 84 ReLU (NIID-Bench's CNN; 44,426 on MNIST)",
        (6, 16), 120, 84,
    ),
    "logistic": _perceptron("one linear layer: multinomial logistic regression"),
    "mlp": _perceptron("one hidden layer of 64 ReLU", 64),
    "mlp-bn": _perceptron("mlp with batch normalisation (for FedBN; 51,018 on MNIST)", 64, norm=True),
    "moon-cnn": _convolutional(
        "lenet with a projection head of 84 ReLU and 256 (Li, He and Song 2021, MOON; 92,626 on CIFAR-10)",
        (6, 16), 120, 84, 84, 256, bare=True,
    ),
    "pfl-cnn": _convolutional(
        "two unpadded 5x5 convolutions, 512 ReLU (PFLlib's and FedALA's CNN; 582,026 on MNIST)",
        (32, 64), 512,
    ),
    "resnet18": _resnet18(
        "ResNet-18 for small images with group normalisation of 32 groups (11,173,962 on CIFAR-10)"
    ),
    "resnet18-bn": _resnet18(
        "resnet18 with batch normalisation (for FedBN; 11,173,962 on CIFAR-10)", batch_norm=True
    ),
    "tf-cnn": ModelSpec(
        "CNN of TensorFlow's CIFAR-10 tutorial (McMahan et al. 2017; 1,068,298 on 3x24x24)",
        "images (channels, height, width) of at least 4x4",
        _tutorial,
        lambda shape, _: len(shape) == 3 and min(shape[1:]) >= 4,
    ),
    "vae": ModelSpec(
        'variational autoencoder, 128 ReLU and a code of 8 (task = "reconstruction"; 204,832 on MNIST)',
        "images or feature vectors from 0 to 1", _vae, lambda shape, _: len(shape) >= 1,
        loss="elbo", metrics=("neg-elbo", "neg-iwae"),
    ),
}  # fmt: skip


def build_model(
    name: str,
    input_shape: Shape,
    num_classes: int,
    seed: int,
    kind: str = "",
    twin: bool = False,
    features: int = 0,
    trainable: Sequence[str] = (),
    interface: Interface | None = None,
) -> nn.Module:
    """Return the model with torch's default initialisation, a function of `seed` alone.

    torch's own generator is used to make the layers, and then restored. `input_shape` is that of
    one example. The data set's `kind` is checked too if it is given. With `twin`, all layers but the last one
    are built twice, as the extractors of a `task.models.layers.Twin`. `features` > 0 gives the model this
    number of outputs, followed by a ReLU and a linear layer. Of parameters only those that a pattern of
    `trainable` names are trained, if there is any; see `task.models.frozen` for what then does not travel.
    `interface` is how a user's own is called.

    Raises:
        ConfigError: No such model, or it cannot read such examples, or has no twin.
    """
    shape = tuple(input_shape)
    build = _builder(name, shape, features or num_classes, kind, interface)
    if features:
        build = partial(_with_features, build, features, num_classes)
    make = (lambda: _twin(name, build(), build(), shape, kind)) if twin else build
    made = drawn(make, seed)
    if trainable or is_reference(name):
        from task.models.frozen import settle

        settle(name, made, trainable, shape, text=kind == "text", interface=interface)
    return made


def _with_features(build: Callable[[], nn.Module], features: int, num_classes: int) -> nn.Module:
    """Return the model that `build` makes with a ReLU after it, and a linear layer."""
    from torch import nn

    model = build()
    layers = model if type(model) is nn.Sequential else [model]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(features, num_classes))


def drawn(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model whose first parameters are a function of `seed` alone.

    A module that is imported while the model is made may draw numbers, too, but only at its first import in a
    process: then the model is made again.
    """
    import torch

    generator = torch.default_generator
    before = generator.get_state()
    try:
        for _ in range(_TRIES):
            imported = len(sys.modules)
            # Not torch.manual_seed: that would seed the accelerators' generators as well.
            generator.manual_seed(seeds.seed_for(seed, seeds.MODEL))
            made = build()
            if len(sys.modules) == imported:
                break
        return made
    finally:
        generator.set_state(before)


def _builder(
    name: str, shape: Shape, num_classes: int, kind: str, interface: Interface | None
) -> Callable[[], nn.Module]:
    """Return what makes the model, or refuse one that does not fit the data."""
    if is_reference(name):
        from task.models.brought import build_brought

        text = kind == "text"
        return partial(build_brought, name, shape, num_classes, text=text, interface=interface)
    if name not in MODELS:
        raise ConfigError(choose_from('run-config key "model"', name, MODELS))
    spec = MODELS[name]
    if not _reads(spec, shape, num_classes, kind):
        what = f"{kind} data" if kind else "a data set"
        known = kind or "features"  # no text: that is known beforehand
        others = [n for n, m in MODELS.items() if _classifies(m) and _reads(m, shape, num_classes, known)]
        fit = f"these fit: {', '.join(others)}" if others else "none of Bouquet's fits"
        raise ConfigError(
            f'run-config key "model": "{name}" expects {spec.inputs}; got {what} with examples of shape '
            f'{shape} and {num_classes} classes. Choose another "model" ({fit}) or "dataset".'
        )
    return partial(spec.build, shape, num_classes)


def _reads(spec: ModelSpec, shape: Shape, num_classes: int, kind: str) -> bool:
    return spec.fits(shape, num_classes) and (not kind or kind in spec.kinds)


def _classifies(spec: ModelSpec) -> bool:
    return not (spec.loss or spec.gives_inputs)


def _twin(name: str, first: nn.Module, second: nn.Module, shape: Shape, kind: str) -> nn.Module:
    """Return the twin model whose extractors are those of two models of one architecture."""
    from torch import nn

    from task.models.layer_split import last_linear
    from task.models.layers import Twin

    if isinstance(first, nn.Sequential) or not is_reference(name):
        last = last_linear(first, "FENDA")
        shared: nn.Module = nn.Sequential(*list(first.children())[:-1])
        local: nn.Module = nn.Sequential(*list(second.children())[:-1])
    else:
        from task.models.brought import without_output_layer

        last, shared = without_output_layer(name, first, shape, text=kind == "text")
        _, local = without_output_layer(name, second, shape, text=kind == "text")
    if not list(shared.parameters()):
        raise ConfigError(
            f'run-config key "model": FENDA needs layers to share before the last one; got "{name}", which '
            "has a single layer"
        )
    return Twin(shared, local, nn.Linear(2 * last.in_features, last.out_features))

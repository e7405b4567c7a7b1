"""Why do the 2NN and the CNN need other numbers of rounds here than published? A model for each suspect.

The paper does not say how it scaled inputs and drew first weights. Each model is ``2nn`` or ``cnn`` with one
of these changed. They are models of a user's own, so that they need no code of the package; pixels in
[-1, 1] are the key ``pixels``. docs/results/numbers.md has the commands and what they found.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from task.models import MODELS

MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels
Draw = Callable[[nn.Linear | nn.Conv2d], object]


class Scaled(nn.Module):
    """Scales the pixels, which arrive in [0, 1]."""

    def __init__(self, shift: float, scale: float) -> None:
        super().__init__()
        self.shift, self.scale = shift, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scale (x - shift)."""
        return self.scale * (x - self.shift)


def _two_hidden(shape: tuple[int, ...], classes: int, first: nn.Module, draw: Draw | None) -> nn.Module:
    sizes = [torch.Size(shape).numel(), 200, 200, classes]
    layers: list[nn.Module] = [nn.Flatten(), first]
    for before, after in pairwise(sizes):
        linear = nn.Linear(before, after)
        if draw is not None:
            draw(linear)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def standardised(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the 2NN of pixels of mean 0 and deviation 1."""
    return _two_hidden(shape, classes, Scaled(MEAN, 1 / STD), None)


def halves(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the 2NN of pixels in [-1/2, 1/2]."""
    return _two_hidden(shape, classes, Scaled(0.5, 1.0), None)


def _glorot(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _normal(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.trunc_normal_(layer.weight, 0.0, 0.1, -0.2, 0.2)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, 0.1)


def glorot(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the 2NN with Glorot's uniform weights and biases of 0."""
    return _two_hidden(shape, classes, nn.Identity(), _glorot)


def normal(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the 2NN with weights of deviation 0.1, cut at two deviations, and biases of 0.1."""
    return _two_hidden(shape, classes, nn.Identity(), _normal)


def _cnn(shape: tuple[int, ...], classes: int, draw: Draw) -> nn.Module:
    model = MODELS["cnn"].build(shape, classes)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            draw(layer)
    return model


def cnn_glorot(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the CNN with Glorot's uniform weights and biases of 0."""
    return _cnn(shape, classes, _glorot)


def cnn_normal(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the CNN with weights of deviation 0.1, cut at two deviations, and biases of 0.1."""
    return _cnn(shape, classes, _normal)


def char_lstm_tensorflow(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the character LSTM with TensorFlow's first weights.

    Matrices by Glorot, embeddings in [-0.05, 0.05], and biases of 0, but 1 at the forget gates.
    """
    model = MODELS["char-lstm"].build(shape, classes)
    for name, value in model.named_parameters():
        if name == "embedding.weight":
            nn.init.uniform_(value, -0.05, 0.05)
        elif "weight" in name:
            nn.init.xavier_uniform_(value)
        else:
            nn.init.zeros_(value)
            if "bias_ih" in name:
                gate = len(value) // 4  # input, forget, cell, output
                nn.init.ones_(value[gate : 2 * gate])
    return model

"""Layers and models that PyTorch lacks: memory order, small batches, text, residual blocks, twins."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d


class Conv2d(nn.Conv2d):
    """PyTorch's layer, but on a CPU it computes with the channels last, in and out.

    oneDNN's own order for convolutions and pooling: a training step of `pfl-cnn` at batch 10 takes a tenth
    less time on MNIST and a quarter less on CIFAR-10. Shapes and parameters are unchanged.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the activations ``[B, channels, height, width]``."""
        if not input.is_cpu:
            return super().forward(input)
        # not `contiguous`, which does not convert pictures of one channel
        return super().forward(input.to(memory_format=torch.channels_last))


class LocalResponseNorm(nn.LocalResponseNorm):
    """PyTorch's layer for images, with the sums over neighbouring channels as one convolution.

    On a CPU it takes a quarter of the time of PyTorch's own, whose pooling in three dimensions makes up half
    of a training step of `tf-cnn`. An even `size` counts one channel more.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised maps, of the shape that came in, ``[B, channels, height, width]``."""
        at = torch.arange(input.shape[1], device=input.device)
        near = (at - at.unsqueeze(1)).abs() <= self.size // 2
        weights = near.to(input.dtype).mul(self.alpha / self.size)[..., None, None]
        return input * (conv2d(input.square(), weights) + self.k).pow(-self.beta)


class BatchNorm1d(nn.BatchNorm1d):
    """PyTorch's layer, but a training batch of one example goes through as in evaluation.

    One example has no variance and PyTorch refuses it, yet a client's last batch may well be so short. Here
    the running statistics normalise it, and do not move.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised features ``[B, d]``."""
        if len(input) > 1 or not self.training:
            return super().forward(input)
        return batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class _LoneExample:
    """Batch normalisation of a training batch with one value per channel: as in evaluation.

    So is one picture whose maps have shrunk to a single pixel. Layers without running statistics refuse it.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised maps, of the shape that came in."""
        assert isinstance(self, nn.modules.batchnorm._BatchNorm)
        if not self.training or self.running_mean is None or input.numel() > input.shape[1]:
            return super().forward(input)  # type: ignore[misc, no-any-return]
        return batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class BatchNorm2d(_LoneExample, nn.BatchNorm2d):
    """PyTorch's layer, but one value per channel goes through as in evaluation."""


class BatchNorm3d(_LoneExample, nn.BatchNorm3d):
    """PyTorch's layer, but one value per channel goes through as in evaluation."""


# Replacements of PyTorch's layers in a user's own model.
LONE_EXAMPLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


class CharLSTM(nn.Module):
    """McMahan et al.'s character model: byte embedding, two LSTM layers, one logit per byte.

    It has 866,560 parameters (torch keeps two bias vectors per LSTM layer); the paper counts 866,578.
    The LSTM starts from zeros in every window.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, C, T]`` of byte windows ``[B, T]``, as `cross_entropy` wants them."""
        hidden, _ = self.lstm(self.embedding(x))
        logits: torch.Tensor = self.output(hidden)
        return logits.transpose(1, 2)


class MeanOfWords(nn.Module):
    """The mean of the vectors of a text's words; number 0 stands for no word and does not count.

    A text without words has the mean 0.
    """

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(numbers, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return means ``[B, width]`` of texts ``[B, T]``, int64."""
        there = (x > 0).unsqueeze(-1)
        total: torch.Tensor = (self.embedding(x) * there).sum(1)
        return total / there.sum(1).clamp(min=1)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, He et al. 2016 (arXiv 1512.03385), figure 2.

    `norm` makes a normalisation of a number of channels. A shortcut that changes the width is a 1x1
    convolution.
    """

    def __init__(self, before: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Conv2d(before, width, 3, stride, 1, bias=False), norm(width), nn.ReLU(),
            Conv2d(width, width, 3, 1, 1, bias=False), norm(width),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(Conv2d(before, width, 1, stride, bias=False), norm(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return maps ``[B, width, H / stride, W / stride]``."""
        return torch.relu(self.body(x) + self.shortcut(x))


class Twin(nn.Module):
    """``head([shared(x), local(x)])``; clients share the first extractor and keep the rest to themselves.

    The extractors give features ``[B, f]`` and ``[B, g]``, and the head takes f + g.
    """

    def __init__(self, shared: nn.Module, local: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.shared = shared
        self.local = local
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, C]``."""
        logits: torch.Tensor = self.head(torch.cat([self.shared(x), self.local(x)], dim=1))
        return logits

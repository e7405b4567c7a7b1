"""Layers and whole models beyond PyTorch's: the memory order of convolutions, small batches, text, twins."""

import torch
from torch import nn
from torch.nn.functional import batch_norm


class Conv2d(nn.Conv2d):
    """PyTorch's layer, but on a CPU it computes with the channels last, in and out.

    oneDNN's own order for convolutions and pooling: a training step of `pfl-cnn` at batch 10 takes a tenth
    less time on MNIST and a quarter less on CIFAR-10. Shapes and parameters are unchanged.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the activations ``[B, channels, height, width]``."""
        if not input.is_cpu:
            return super().forward(input)
        # not `contiguous`, which takes pictures of one channel for what they should be
        return super().forward(input.to(memory_format=torch.channels_last))


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


# What takes the place of PyTorch's layers in a model that a user brings.
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

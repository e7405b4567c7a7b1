"""The character model of McMahan et al. 2017."""

import torch
from torch import nn


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

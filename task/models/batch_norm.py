"""Batch normalisation that takes a batch of one example."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import batch_norm


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

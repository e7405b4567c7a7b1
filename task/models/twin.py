"""The model of FENDA, Tavakoli et al. 2024: two parallel extractors and a head on both."""

import torch
from torch import nn


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

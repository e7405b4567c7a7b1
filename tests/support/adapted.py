"""A small model with an adapter by the names of `peft`, without it."""

from __future__ import annotations

import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen layer W, and W + B A of rank 2 in its place; the head is trained."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        (inputs,) = input_shape
        self.base = nn.Linear(inputs, 5).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 5, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)  # type: ignore[arg-type]
        self.head = nn.Linear(5, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.lora_B["default"](self.lora_A["default"](x))
        out: torch.Tensor = self.head(torch.relu(self.base(x) + low))
        return out

"""A user's folder: modules that are found by reference, and forgotten after the test."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NET = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outs)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Small(nn.Module):
    """Nested, with batch normalisation, dropout, a scalar parameter and buffers of whole numbers."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        c, h, w = input_shape
        self.body = nn.Sequential(Block(c, 3), nn.MaxPool2d(2), Block(3, 4))
        self.drop = nn.Dropout(0.2)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))
        self.register_buffer("calls", torch.tensor(0))
        self.fc1 = nn.Linear(4 * (h // 2) * (w // 2), 8)
        self.norm = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, num_classes)

    def forward(self, x):
        if self.training:
            self.calls += 1
        x = self.body(x) * self.mask[:, None, None]
        x = self.drop(x.flatten(1)) * self.scale
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def plain(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))
'''


@contextmanager
def imported_from(folder: Path) -> Iterator[None]:
    """Take modules from a folder; forget them at the end."""
    before, path = set(sys.modules), [*sys.path]
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]

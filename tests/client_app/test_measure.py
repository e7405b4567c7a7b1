"""Losses of the received model, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from client_app.stages.loss import losses


class Scores(nn.Module):
    """Takes its inputs for the log-probabilities' exponents: x [B, C] or [B, C, T] are the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


def logits(*p: float) -> list[float]:
    return [math.log(q) for q in p]


@pytest.mark.parametrize("batch", [1, 2, 256])
def test_mean_and_rms_over_all_examples(batch: int) -> None:
    """The true classes have probability 1/2, 1/4 and 3/4, whatever the batch; dropout is off."""
    x = torch.tensor([logits(0.5, 0.5), logits(0.75, 0.25), logits(0.75, 0.25)])
    y = torch.tensor([0, 1, 0])
    each = [math.log(2), math.log(4), math.log(4 / 3)]
    model = Scores()
    found = losses(model, x, y, batch)
    assert found["loss"] == pytest.approx(sum(each) / 3, rel=1e-6)
    assert found["loss-rms"] == pytest.approx(math.sqrt(sum(v * v for v in each) / 3), rel=1e-6)
    assert found["num-examples"] == 3
    assert model.training  # as it was


def test_of_text_each_byte_counts_and_padding_does_not() -> None:
    """Two texts of two bytes, one of them padding: three examples with probabilities 1/2, 1/4 and 1/4."""
    first, second = [logits(0.5, 0.5), logits(0.75, 0.25)], [logits(0.75, 0.25), logits(0.9, 0.1)]
    x = torch.tensor([first, second]).transpose(1, 2)  # [B, C, T]
    y = torch.tensor([[0, 1], [1, -100]])
    each = [math.log(2), math.log(4), math.log(4)]
    found = losses(Scores(), x, y)
    assert found["num-examples"] == 3
    assert found["loss"] == pytest.approx(sum(each) / 3, rel=1e-6)
    assert found["loss-rms"] == pytest.approx(math.sqrt(sum(v * v for v in each) / 3), rel=1e-6)

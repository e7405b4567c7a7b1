"""The learning rate of each round, against values by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.resolve.read import read_config
from task.resolve.schedule import learning_rate


def rates(rounds: int = 6, **keys: Any) -> list[float]:
    config = TrainConfig(learning_rate=0.8, **keys)
    return [learning_rate(config, t, rounds) for t in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, [0.8] * 6),
        ({"lr_decay": 0.5}, [0.8, 0.4, 0.2, 0.1, 0.05, 0.025]),
        ({"lr_schedule": "step", "lr_decay": 0.5, "lr_step": 2}, [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
        # 1 + cos of 0, 30, 60, 90, 120 and 150 degrees
        ({"lr_schedule": "constant", "lr_decay": 0.5}, [0.8, 0.8, 0.8, 0.8, 0.8, 0.8]),
        ({"lr_schedule": "cosine"}, [0.8, 0.4 * 1.8660254, 0.6, 0.4, 0.2, 0.4 * 0.1339746]),
        # a third and two thirds of the rate; the schedule begins in round 3
        ({"lr_warmup": 2, "lr_decay": 0.5}, [0.8 / 3, 1.6 / 3, 0.8, 0.4, 0.2, 0.1]),
        ({"lr_warmup": 3, "lr_schedule": "cosine"}, [0.2, 0.4, 0.6, 0.8, 0.6, 0.2]),
        (
            {"lr_warmup": 1, "lr_schedule": "step", "lr_decay": 0.1, "lr_step": 3},
            [0.4, *[0.8] * 3, *[0.08] * 2],
        ),
    ],
)
def test_by_hand(keys: dict[str, Any], wanted: list[float]) -> None:
    assert rates(**keys) == pytest.approx(wanted, rel=1e-6)


def test_the_default_is_what_it_was_to_the_last_bit() -> None:
    """A rate of another rounding would change every model's bytes."""
    assert rates(60, lr_decay=0.99) == [0.8 * 0.99 ** (t - 1) for t in range(1, 61)]


def test_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.8)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    wanted = []
    for _ in range(9):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(9, lr_schedule="cosine") == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lr-schedule": "step"}, '"lr-decay"'),
        ({"lr-schedule": "cosine", "lr-decay": 0.9}, '"lr-decay"'),
        ({"lr-step": 5}, '"lr-step"'),
        ({"lr-warmup": 10}, '"num-server-rounds" = 10'),
        ({"lr-schedule": "constant", "lr-decay": 0.9}, '"lr-decay"'),
        ({"lr-schedule": "linear"}, "cosine"),
    ],
)
def test_what_has_no_effect_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys)
    assert said in str(refused.value)

"""When a run counts as no longer better, by hand; a whole run that stops there, and its resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task.errors import ConfigError
from task.numerics.plateau import plateau
from task.resolve.read import read_config
from tests.server_app.test_app import go


def stops(values: list[float | None], patience: int, delta: float = 0.0, key: str = "accuracy") -> int | None:
    """Return the round in which a run with these values would stop."""
    rows = [{"round": t, key: v} for t, v in enumerate(values)]
    return next((t for t in range(len(rows)) if plateau(rows[: t + 1], patience, delta)), None)


@pytest.mark.parametrize(
    ("values", "patience", "delta", "wanted"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 1, 0.0, None),
        ([0.1, 0.5, 0.5, 0.5, 0.5], 2, 0.0, 3),  # an equal one is not better
        ([0.1, 0.5, 0.4, 0.6, 0.5, 0.5], 2, 0.0, 5),
        ([0.1, 0.5, 0.54, 0.58, 0.6], 2, 0.05, None),  # small steps add up to a better one
        ([0.1, 0.5, 0.52, 0.54, 0.6], 2, 0.05, 3),
        ([0.1, 0.5, None, None, 0.5], 2, 0.0, 4),  # only a measured round stops
        ([0.5, 0.4, 0.3, 0.2, 0.1], 3, 0.0, 3),
        ([0.5, 0.4, 0.3, 0.2, 0.1], 0, 0.0, None),  # never
    ],
)
def test_by_hand(values: list[float | None], patience: int, delta: float, wanted: int | None) -> None:
    assert stops(values, patience, delta) == wanted


def test_a_loss_counts_downwards_and_only_where_there_is_no_accuracy() -> None:
    assert stops([1.0, 0.5, 0.5, 0.6], 2, key="loss") == 3
    assert stops([1.0, 0.8, 0.6, 0.4], 2, key="client_loss") is None
    rows = [{"round": t, "accuracy": a, "loss": 1.0} for t, a in enumerate([0.1, 0.2, 0.3])]
    assert not plateau(rows, 1, 0.0)


def test_a_run_stops_says_why_and_goes_on_under_more_patience(tmp_path: Path) -> None:
    """With a tiny rate nothing gets better by 0.5: the run ends after the rounds of its patience."""
    keys: dict[str, Any] = {"learning_rate": 1e-6, "plateau_delta": 0.5, "num_server_rounds": 9}
    folder = go(tmp_path, plateau_rounds=2, **keys)
    result = json.loads((folder / "result.json").read_text())
    assert (result["rounds"], result["ended_by"]) == (2, "plateau-rounds")
    again = go(tmp_path, plateau_rounds=2, resume=True, **keys)
    assert json.loads((again / "result.json").read_text())["rounds"] == 2
    longer = go(tmp_path, plateau_rounds=4, resume=True, **keys)
    at_once = go(tmp_path, plateau_rounds=4, run_name="at-once", **keys)
    for path in (longer, at_once):
        assert json.loads((path / "result.json").read_text())["rounds"] == 4
    assert (longer / "model.safetensors").read_bytes() == (at_once / "model.safetensors").read_bytes()


def test_a_run_that_does_all_its_rounds_says_so(tmp_path: Path) -> None:
    result = json.loads((go(tmp_path) / "result.json").read_text())
    assert result["ended_by"] == "num-server-rounds"


@pytest.mark.parametrize(
    "keys",
    [
        {"plateau-rounds": 2, "evaluate-every": 0},
        {"plateau-rounds": 2, "dataset": "csv"},
        {"plateau-delta": 0.1},
        {"target-accuracy": 0.9, "evaluate-every": 0},
        {"target-accuracy": 0.9, "pool-test": True},
        {"target-accuracy": 0.9, "dataset": "csv"},
        {"metrics": "f1-macro", "evaluate-every": 0},
    ],
)
def test_a_measure_that_nobody_takes_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f'"{next(iter(keys))}": '):
        read_config(keys)

"""The grid of server rules: its keys exist, and its table says what the runs gave."""

from __future__ import annotations

import pytest

from strategies import STRATEGIES
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import read_recipe
from task.resolve.read import read_config
from tests.bench.grid import GRID, RECIPE, outcome, table

HERE = sorted(set(GRID) & set(ALGORITHMS))


@pytest.mark.parametrize("name", HERE)
def test_every_setting_of_the_grid_is_a_run(name: str) -> None:
    key, values = GRID[name]
    assert len(values) == 4
    assert ALGORITHMS[name].rule in STRATEGIES
    for value in values:
        read_config(read_recipe(RECIPE) | {"algorithm": name, key: value})


def test_the_table_ranks_by_rounds_and_then_by_accuracy() -> None:
    def run(name: str, value: float, *accuracy: float) -> dict[str, object]:
        key, _ = GRID[name]
        return {"keys": {"algorithm": name, key: value}, "accuracy": list(accuracy)}

    found = [
        run("fedavg", 0.464, 0.1, 0.5, 0.6),
        run("fedavg", 0.0464, 0.1, 0.6, 0.9),  # crosses 0.9 in round 2
        run("fedavg", 0.1, 0.1, 0.9),  # in round 1
        run("fedavgm", 0.1, 0.1, 0.2),
        run("fedavgm", 1.0, 0.1, 0.3),
    ]
    lines = table(found, 0.9).splitlines()
    assert lines[2:] == [
        "| FedAvg | `learning-rate` | 0.1 | 1 | 0.0464: 2; 0.464: not (60.00 % by round 2) |",
        "| FedAvgM | `fedavgm.server-lr` | 1 | not (30.00 % by round 1) | 0.1: not (20.00 % by round 1) |",
    ]


def test_the_target_is_crossed_between_two_rounds() -> None:
    # from 0.4 to 0.8: 0.7 is three quarters of the way from round 1 to round 2
    (rank, _), said = outcome([0.1, 0.4, 0.8], 0.7)
    assert (rank, said) == (pytest.approx(1.75), "2")

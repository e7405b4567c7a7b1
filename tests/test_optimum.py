"""Where the algorithms end on a logistic regression among unlike clients, against scikit-learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.catalogue.algorithms import ALGORITHMS
from tests.support.federation import loss_and_gradient
from tests.support.optimum import RUNS, centred, distances, optimum, write_problem

EXACT = [name for name in RUNS if name != "fedavg" and name.split()[0] in ALGORITHMS]


@pytest.mark.parametrize("name", EXACT)
def test_it_reaches_the_optimum_of_the_pooled_data(name: str, tmp_path: Path) -> None:
    target = optimum(*write_problem(tmp_path / "owners.npz"))
    assert max(distances(tmp_path / "owners.npz", name, target)[-20:]) <= 1e-6


def test_fedavg_stops_short_of_it(tmp_path: Path) -> None:
    target = optimum(*write_problem(tmp_path / "owners.npz"))
    late = distances(tmp_path / "owners.npz", "fedavg", target)[-20:]
    assert min(late) > 1e-2
    assert max(late) - min(late) < 1e-4 * min(late)  # it has converged


def test_the_optimum_is_stationary(tmp_path: Path) -> None:
    X, Y = write_problem(tmp_path / "owners.npz")
    target = optimum(X, Y)
    W, b = target[: X.shape[1] * 3].reshape(-1, 3), target[X.shape[1] * 3 :]
    assert abs(centred((W, b)) - target).max() < 1e-12
    _, gradient = loss_and_gradient((W, b), X, Y)
    assert max(abs(g).max() for g in gradient) < 1e-8

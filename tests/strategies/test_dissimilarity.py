"""Gradient dissimilarity: by hand, against a reference, and in runs whose models stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.results.plots import by_round
from strategies.stages.dissimilarity import spread
from tests.strategies.test_contribution import evaluate
from tests.support.federation import SIZES, Model, loss_and_gradient, owners_config, play, write_owners

B, VARIANCE = "gradient-dissimilarity", "gradient-variance"


def test_three_clients_by_hand() -> None:
    # gradients (2, 0), (0, 2), (2, 2) of 1, 1 and 2 examples: E |g_k|^2 = (4 + 4 + 16) / 4 = 6,
    # mean (6, 6) / 4, of squared length 4.5
    found = spread(6.0, {"a": np.array([1.5], np.float32), "b": np.array([[1.5]], np.float32)})
    assert found == {VARIANCE: 1.5, B: pytest.approx(np.sqrt(6 / 4.5))}


def test_equal_gradients_and_those_that_cancel() -> None:
    assert spread(25.0 - 1e-9, {"a": np.array([3.0, 4.0])}) == {VARIANCE: 0.0, B: 1.0}
    assert spread(25.0, {"a": np.zeros(2)}) == {VARIANCE: 25.0}  # B is infinite


def flat_gradient(model: Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean loss, W and b in one vector."""
    return np.concatenate([a.ravel() for a in loss_and_gradient(model, x, y)[1]])


def of(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [{k: row["metrics"][k] for k in (VARIANCE, B) if k in row["metrics"]} for row in rows]


def test_it_is_that_of_the_full_gradients_of_all_clients(tmp_path: Path) -> None:
    owners = write_owners(tmp_path / "o.npz")
    keys = owners_config(tmp_path / "o.npz", num_server_rounds=2, fraction_train=0.4)
    run = play(keys | {"gradient-dissimilarity": True, "evaluate-every": 2}, nodes=2, evaluate_fn=evaluate)
    assert of(run.rows)[:2] == [{}, {}]  # before the training, and a round that is not evaluated
    grads = np.stack([flat_gradient(run.linear(2), *owners[name]) for name in SIZES])
    share = np.array([*SIZES.values()]) / sum(SIZES.values())
    square, whole = share @ np.sum(grads**2, 1), np.sum((share @ grads) ** 2)
    found = of(run.rows)[2]
    assert found[VARIANCE] == pytest.approx(square - whole, rel=1e-4)
    assert found[B] == pytest.approx(np.sqrt(square / whole), rel=1e-4)


@pytest.mark.parametrize(
    "more",
    [
        {},
        *({"algorithm": name} for name in ("scaffold", "fsvrg", "fedacg")),
        {"codec.up": "stc", "codec.down": "int8"},
    ],
)
def test_the_models_stay_the_same_and_the_numbers_do_on_any_nodes(
    more: dict[str, Any], tmp_path: Path
) -> None:
    write_owners(tmp_path / "o.npz")
    keys = owners_config(tmp_path / "o.npz", num_server_rounds=3, fraction_train=0.6) | more

    def run(on: bool, nodes: int) -> Any:
        state = {"state-dir": str(tmp_path / f"{on}{nodes}")}
        return play(keys | state | {"gradient-dissimilarity": on}, nodes=nodes, evaluate_fn=evaluate)

    plain, one, other = run(False, 1), run(True, 1), run(True, 3)
    for played in (one, other):
        assert [r["model_sha256"] for r in played.rows] == [r["model_sha256"] for r in plain.rows]
    assert of(one.rows) == of(other.rows)
    assert all(found[B] >= 1 for found in of(one.rows)[1:])
    assert one.rows[1]["bytes_up"] > plain.rows[1]["bytes_up"]
    assert [plot.name for plot in by_round(one.rows) if "gradient" in plot.name] == ["gradients"]
    assert not [plot for plot in by_round(plain.rows) if "gradient" in plot.name]

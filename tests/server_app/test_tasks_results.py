"""Results of tasks without an accuracy: the loss leads, further metrics are columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server_app.results.headline import headline
from server_app.results.plots import by_round
from server_app.results.summary import measured_on, score, summarise
from server_app.run.progress import _measured
from server_app.takeout.examples import read_examples
from server_app.takeout.export import _largest
from server_app.takeout.model import TakenModel
from server_app.takeout.predict import predict
from server_app.takeout.taken import as_csv
from task.errors import DataError
from task.resolve.model_card import ModelCard


def row(number: int) -> dict[str, Any]:
    return {"round": number, "asked": 2, "answered": 2, "seconds": {"train": 1.0, "total": 1.0}}


def rows(*losses: float | None) -> list[dict[str, Any]]:
    """Return rounds of a regression."""
    made = []
    for i, loss in enumerate(losses):
        further = {"measures": ["mae", "r2"], "mae": 2 * (loss or 0.0), "r2": 0.5, "client_r2": 0.25}
        made.append({**row(i), "accuracy": None, "client_accuracy": None, "loss": loss, **further})
    return made


def test_without_an_accuracy_the_lowest_loss_is_best() -> None:
    found = summarise(rows(3.0, 1.0, 2.0), [], {})
    assert (found["measured_on"], found["accuracy"], found["best_accuracy"]) == ("server", None, None)
    assert (found["loss"], found["best_loss"], found["best_round"]) == (2.0, 1.0, 1)
    assert found["measures"] == {"mae": 4.0, "r2": 0.5}
    assert found["client_measures"] == {"r2": 0.25}
    said = dict(headline(found))
    assert (said["Loss, lowest"], said["mae"], said["r2"]) == ("1.000 (round 1)", "4.000", "0.500")
    assert not [label for label in said if "ccuracy" in label]


def test_an_accuracy_goes_before_a_loss_measured_elsewhere() -> None:
    """Else a personalised run would be judged by the server's loss."""
    both = [{**row(1), "loss": 0.5, "accuracy": None, "client_accuracy": 0.9, "client_loss": 0.4}]
    assert measured_on(both) == "clients"


def test_the_line_of_a_round_has_loss_and_metrics() -> None:
    assert _measured(rows(3.0)[0]) == ["loss 3.000", "mae 6.000", "r2 0.500"]


def test_the_best_model_is_that_of_the_lowest_loss() -> None:
    """With the accuracy alone none would be written."""
    assert [score(r, "server") for r in rows(3.0, None)] == [-3.0, None]
    assert score({"accuracy": 0.2, "loss": 9.0}, "server") == 0.2


def test_further_metrics_have_a_plot_of_their_own() -> None:
    names = [plot.name for plot in by_round(rows(3.0, 1.0))]
    assert names == ["accuracy", "loss", "metrics", "seconds", "bytes", "replies"]
    plain = [{k: v for k, v in r.items() if k != "measures"} for r in rows(3.0)]
    assert "metrics" not in [plot.name for plot in by_round(plain)]


def test_the_model_of_a_regression_predicts_numbers(tmp_path: Path) -> None:
    """As probabilities of one class they would all be 1."""
    model = torch.nn.Linear(3, 1)
    card = ModelCard({"dataset": "npz", "data-path": "t.npz", "task": "regression"}, (3,), 1)
    np.savez(tmp_path / "t.npz", x=np.eye(3, dtype=np.float32), y=np.array([0.5, 1.0, 2.0]))
    found = predict(TakenModel(card, model, card.config), read_examples(tmp_path / "t.npz", card))
    outputs = model(torch.eye(3)).detach()[:, 0]
    rows = [f"{i},{float(p):.9g}" for i, p in enumerate(outputs)]
    assert as_csv(found.columns()).splitlines() == ["id,predicted", *rows]
    squares = (outputs - torch.tensor([0.5, 1.0, 2.0])).square()
    assert found.scores["all"] == {"loss": pytest.approx(float(squares.mean())), "examples": 3}
    assert card.metadata()["bouquet"].count('"task": "regression"') == 2  # its own, and the run's key


@pytest.mark.parametrize("target", ["nan", "inf", "much"])
def test_a_target_of_a_regression_is_a_finite_number(target: str, tmp_path: Path) -> None:
    """NaN would make the loss of the whole file NaN."""
    card = ModelCard({"dataset": "csv", "data-path": "t.csv", "task": "regression"}, (1,), 1, "features")
    (tmp_path / "t.csv").write_text(f"a,y:target\n1,2\n3,{target}\n")
    with pytest.raises(DataError, match=f"line 3: expected a number as target; got '{target}'"):
        read_examples(tmp_path / "t.csv", card)


def test_an_exported_answer_beyond_1_is_compared_relative_to_it() -> None:
    """Answers near 1e6 differ by more than 1e-5 from one library to the next, which is 1e-7 of them."""
    answers = np.array([[1e6]], np.float32)
    assert 1e-8 < _largest(np.nextafter(answers, np.float32(np.inf)), answers) < 1e-6
    assert _largest(np.array([[0.5]]), np.array([[0.25]])) == 0.25  # of a probability the plain one

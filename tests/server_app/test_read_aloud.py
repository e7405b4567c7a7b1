"""What a terminal says, read as its user does."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from server_app.deploy.link.status import tables
from server_app.run.progress import Progress
from task.config.options import parse_options
from task.errors import ConfigError


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("learning-rate=0.l", "learning-rate: expected a number, such as 0.1; got 0.l"),
        ("num-clients=1O", "num-clients: expected a whole number"),
        ("secagg=yes", "secagg: expected true or false; got yes"),
        ("dataset=mnist seed=x1", "seed: expected a whole number"),
    ],
)
def test_a_typo_of_a_number_suggests_no_quotes(pairs: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options([pairs])
    assert said in str(caught.value)
    assert '"' not in str(caught.value)


def test_a_text_without_quotes_still_gets_them() -> None:
    with pytest.raises(ConfigError, match="""Type: -c 'dataset="mnist" secagg=true'"""):
        parse_options(["dataset=mnist secagg=True"])


def lines_of(*rows: dict[str, Any]) -> list[str]:
    console = Console(width=200, record=True, force_terminal=False)
    progress = Progress("log", 100, "a", console)
    for row in rows:
        progress.round_done({"asked": 10, "answered": 9, "seconds": {"total": 1.0}} | row)
    return console.export_text().splitlines()


def test_an_own_metric_stands_in_the_rounds_line() -> None:
    row = {"round": 3, "loss": 0.5, "accuracy": 0.75, "measures": ["f1"], "f1": 0.625}
    (line,) = lines_of(row)
    assert "loss 0.500  accuracy 0.750  f1 0.625" in line


def test_rounds_lines_stand_below_each_other() -> None:
    rows = [{"round": t, "loss": 0.5, "accuracy": 0.75, "answered": t} for t in (9, 10)]
    first, second = lines_of(*rows)
    for word in ("loss", "accuracy", "clients", "1.00 s"):
        assert first.index(word) == second.index(word)


def test_the_numbers_of_a_status_align_right_with_their_headers() -> None:
    node = {"name": "a", "online": True, "last_seen": 1.0, "clients": 1, "examples": 12345}
    run = {
        "name": "r",
        "state": "running",
        "round": 1,
        "rounds": 9,
        "attempts": 1,
        "updated": 0,
        "reason": "",
    }
    _, nodes, runs = tables({"state": "green", "warnings": [], "nodes": [node], "runs": [run]})
    right = {str(c.header) for table in (nodes, runs) for c in table.columns if c.justify == "right"}  # type: ignore[union-attr]
    assert right == {"clients", "examples", "round", "attempts"}

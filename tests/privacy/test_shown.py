"""What a private run has spent is shown wherever its other figures are."""

from __future__ import annotations

import json
from pathlib import Path

from server_app.results.headline import headline
from server_app.results.report import TILES
from server_app.results.rows import round_row
from server_app.results.summary import summarise
from server_app.run.progress import _replies
from server_app.run.repeat import keys_of_run
from task.config.read import as_run_config
from task.resolve.read import read_config

KEYS = {"dp.noise": 1.0, "dp.delta": 1e-5, "dp.clip": 0.2, "num-server-rounds": 9, "dp.max-epsilon": 2.0}


def rows(**last: float) -> list[dict[str, object]]:
    common = {"loss": None, "accuracy": None, "skipped": False, "quarantined": [], "seconds": {}}
    return [
        {"round": 0, "epsilon": 0.0, "epsilon_next": None, **common},
        {"round": 1, "epsilon": 1.25, "epsilon_next": 1.9, "asked": 3, "answered": 3, **common, **last},
    ]


def test_result_and_headline_say_what_is_promised() -> None:
    config = as_run_config(read_config(KEYS))
    result = summarise(rows(), [], config)
    assert result["privacy"] == {
        "epsilon": 1.25, "unit": "client", "delta": 1e-5, "noise": 1.0, "clip": 0.2, "clip-quantile": 0.0,
    }  # fmt: skip
    assert dict(headline(result))["Privacy"] == "epsilon 1.25 at delta 1e-05 for each client, there or not"
    assert "Privacy" in TILES
    assert result["ended_by"] is None


def test_a_run_that_has_spent_its_budget_says_so() -> None:
    config = as_run_config(read_config(KEYS))
    result = summarise(rows(epsilon_next=2.1), [], config)
    assert result["ended_by"] == "dp.max-epsilon"
    assert "privacy budget spent" in dict(headline(result))["Rounds"]


def test_the_monitor_and_the_log_have_it_in_each_round() -> None:
    row = rows()[1]
    assert round_row(row)["epsilon"] == 1.25
    assert "epsilon 1.25" in _replies(row)
    script = Path(__file__).parents[2] / "server_app/extras/monitor/static/run.js"
    assert "['Epsilon', 'epsilon']" in script.read_text(encoding="utf-8")


def test_a_run_without_noise_says_nothing_of_it() -> None:
    plain = [{k: v for k, v in row.items() if not k.startswith("epsilon")} for row in rows()]
    result = summarise(plain, [], as_run_config(read_config({})))
    assert "privacy" not in result
    assert "Privacy" not in dict(headline(result))
    assert "epsilon" not in " ".join(_replies(plain[1]))


def test_who_repeats_a_private_run_is_told_that_it_differs(tmp_path: Path) -> None:
    keys = as_run_config(read_config(KEYS))
    (tmp_path / "config.json").write_text(json.dumps({"run": keys, "environment": {}}))
    found, lines = keys_of_run(tmp_path)
    assert found["dp.noise"] == 1.0
    assert "a different model" in lines[-1]

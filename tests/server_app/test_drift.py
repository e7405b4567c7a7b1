"""What a drift cost, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from server_app.results.drift import lines_of, recoveries, turns
from server_app.results.plots import by_round

KEYS: dict[str, Any] = {"drift.kind": "invert", "drift.round": 3, "drift.pattern": "sudden", "drift.span": 2}


def rows(*accuracy: float | None) -> list[dict[str, Any]]:
    return [{"round": t, "accuracy": a} for t, a in enumerate(accuracy)]


@pytest.mark.parametrize(
    ("accuracy", "found"),
    [
        ((0.1, 0.5, 0.8, 0.2, 0.7, 0.77, 0.6), {"after": 0.2, "lowest": 0.2, "recovery_rounds": 2}),
        ((0.1, 0.5, 0.8, 0.2, 0.7, 0.75), {"after": 0.2, "lowest": 0.2, "recovery_rounds": None}),
        ((0.1, 0.5, 0.8, 0.78, 0.77), {"after": 0.78, "lowest": 0.77, "recovery_rounds": 0}),
        ((0.1, None, 0.8, None, 0.3, 0.8), {"after": 0.3, "lowest": 0.3, "recovery_rounds": 2}),
        ((0.1, 0.5, 0.8, 0.78, 0.3, 0.8), {"after": 0.78, "lowest": 0.3, "recovery_rounds": 2}),
    ],
)
def test_recovery_by_hand(accuracy: tuple[float | None, ...], found: dict[str, Any]) -> None:
    assert recoveries(rows(*accuracy), KEYS) == [{"round": 3, "before": 0.8, **found}]


def test_each_turn_is_a_change_and_the_bands_are_the_new_concepts() -> None:
    keys = KEYS | {"drift.pattern": "recurring"}
    found = recoveries(rows(0.1, 0.5, 0.8, 0.2, 0.8, 0.4, 0.8, 0.7), keys)
    assert [(r["round"], r["before"], r["lowest"], r["recovery_rounds"]) for r in found] == [
        (3, 0.8, 0.2, 1),
        (5, 0.8, 0.4, 1),
        (7, 0.8, 0.7, None),
    ]
    assert turns(keys, 7) == [(3, 4), (7, 7)]
    assert turns(KEYS, 7) == [(3, 7)]
    assert [label for label, _ in lines_of({"drift": found})] == [f"Drift in round {t}" for t in (3, 5, 7)]
    assert lines_of({"drift": found})[0][1] == (
        "accuracy 0.800 before, 0.200 at worst, 95 % of it again after 1 round"
    )
    gained = recoveries(rows(0.1, 0.5, 0.7, 0.8, 0.9), KEYS)  # a change may also help
    assert lines_of({"drift": gained})[0][1] == "accuracy 0.700 before, 0.800 after"
    accuracy, *_ = by_round(rows(0.1, 0.5, 0.8, 0.2, 0.8, 0.4, 0.8, 0.7), keys=keys)
    bands = [one for one in accuracy.series if one.kind == "band"]
    assert [one.name for one in bands] == ["new concept", ""]
    assert [(p.x, p.y, p.base) for p in bands[0].points] == [(2.5, 0.8, 0.1), (4, 0.8, 0.1)]


@pytest.mark.parametrize("keys", [{}, {"drift.kind": "invert", "drift.round": 9}, {"drift.round": "x"}])
def test_without_a_drift_there_is_nothing(keys: dict[str, Any]) -> None:
    assert recoveries(rows(0.1, 0.9, 0.2), keys) == recoveries([], KEYS) == turns(keys, 2) == []
    assert not [one for one in by_round(rows(0.1, 0.9), keys=keys)[0].series if one.kind == "band"]

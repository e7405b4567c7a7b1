"""The benchmark of the rules' steps runs for every entry of the catalogue and tells what it says."""

from __future__ import annotations

import pytest

from task.catalogue.algorithms import ALGORITHMS
from tests.bench.server_update import RULES, server_update, target_of


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_measured(name: str) -> None:
    (row,) = server_update(quick=True, only=name, repeat=1)
    assert row.name == name
    assert row.ratio == pytest.approx(row.update_ms / row.pass_ms)
    stacked = any(f.reduce == "collect" for f in ALGORITHMS[name].up)
    assert row.given_mb > (8 if stacked else 2) * 4 * 1010 / 1e6 * 0.9


def test_targets_go_by_what_a_rule_is_given() -> None:
    want = {"fedavg": 2.0, "fedatt": 6.0, "geometric-median": 6.0, "krum": 10.0, "median": None}
    assert {name: target_of(ALGORITHMS[name]) for name in want} == want

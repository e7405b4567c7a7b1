"""Whole runs with mutated replies, some seconds of them; ``make fuzz`` goes on for as long as it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.check import violations
from tests.fuzz.runs import FORMS, VARIANTS, Case, Player

SEED = 20_000  # another constant is another set of cases


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("fuzz"))


def cases() -> Iterator[Any]:
    """Yield every form of every variant; for every commit one of every second variant, forms taking turns."""
    for turn, variant in enumerate(VARIANTS):
        for i, form in enumerate(FORMS):
            often = turn % 2 == 0 and i == turn // 2 % len(FORMS)
            yield pytest.param(
                Case(variant, form, SEED + i), id=f"{variant}-{form}", marks=() if often else pytest.mark.full
            )


@pytest.mark.parametrize("case", list(cases()))
def test_a_run_bears_whatever_its_nodes_answer(case: Case, player: Player) -> None:
    found = violations(player.play(case), player)
    assert not found, "\n".join([*found, case.command])

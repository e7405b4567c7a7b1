"""Whole runs with mutated replies, for about a minute; ``make fuzz`` goes on for as long as it may."""

from __future__ import annotations

import pytest

from tests.fuzz.check import violations
from tests.fuzz.runs import FORMS, VARIANTS, Case, Player

SEED = 20_000  # another constant is another minute's worth of cases


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_bears_whatever_its_nodes_answer(variant: str, player: Player) -> None:
    broken = []
    left_out = list(VARIANTS).index(variant) % len(FORMS)  # three forms of each are a minute in all
    for i, form in enumerate(FORMS):
        if i == left_out:
            continue
        case = Case(variant, form, SEED + i)
        played = player.play(case)
        broken += [f"{line}\n    {case.command}" for line in violations(played, player)]
    assert not broken, "\n".join(broken)

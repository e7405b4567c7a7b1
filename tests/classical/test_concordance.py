"""Harrell's c of Cox's regression: that of all pairs of persons, by lifelines and by hand, up to its bins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from client_app.classical.concordance import closed_scores
from server_app.results.hazards import hazard_lines
from task.classical.bins import merged
from task.classical.concordance import Concordance, concordance
from task.classical.cox import Strata
from task.errors import ConfigError
from tests.classical.support import declared, patients, splits
from tests.classical.test_cox import COLUMNS, ROSSI, PlayedCox, config_with
from tests.classical.test_cox_runs import FRAME, PEOPLE, RUN, at_sites, written
from tests.support.federation import play

LUNG = (
    patients("lung")[["time", "status", "age", "sex", "ph.ecog"]].dropna().rename(columns={"ph.ecog": "ecog"})
)


def pairs(time: np.ndarray, event: np.ndarray, score: np.ndarray) -> Concordance:
    """Count all pairs of persons, one by one."""
    found = [0, 0, 0]
    for i in np.flatnonzero(event):
        other = (time > time[i]) | ((time == time[i]) & ~event)
        found[0] += int((score[i] > score[other]).sum())
        found[1] += int((score[i] == score[other]).sum())
        found[2] += int(other.sum())
    return Concordance(*found)


def found_in(played: PlayedCox) -> Concordance:
    return Concordance(*map(int, played.arrays["concordance"]))


LUNG_KEYS = {"time": "time(0..1022)", "event": "status(0..1)"}


@pytest.mark.parametrize(
    ("frame", "columns", "scores", "keys", "lifelines"),
    [
        (ROSSI, COLUMNS, 1000, {}, 0.6403292470997135),
        (LUNG, declared(LUNG, "age", "sex", "ecog"), 400, LUNG_KEYS, 0.6371354930004548),
    ],
    ids=["rossi", "lung"],
)
def test_c_is_that_of_lifelines_up_to_its_bins(
    frame: pd.DataFrame, columns: str, scores: int, keys: dict[str, Any], lifelines: float
) -> None:
    """Written down from lifelines 0.30, whose fit was as exact as it gets."""
    config = config_with(columns, concordance=scores, **keys)
    played = PlayedCox(config, splits(frame)["3"])
    found = found_in(played)
    assert found.index is not None
    assert found.error is not None
    assert found.error < 0.01
    assert abs(found.index - lifelines) <= found.error
    # The same pairs one by one, of scores in bins that are made here.
    names, beta = played.cox.names, played.arrays["coefficients"]
    middle = (np.array([v.low + v.high for v in played.cox.design.variables])) / 2
    half = np.array([v.high - v.low for v in played.cox.design.variables]) / 2
    most = (half * abs(beta)).sum()
    score = np.floor(((frame[[*names]].to_numpy() - middle) @ beta + most) / (2 * most / scores))
    time, event = (frame[v.name].to_numpy() for v in (played.cox.survival.time, played.cox.survival.event))
    assert found == pairs(time, event == 1, score)


def test_any_division_gives_the_same_bits_and_without_c_nothing_changes() -> None:
    config = config_with("fin(0..1), age(0..64), prio(0..32)", strata="race(0..1)", concordance=64)
    played = {name: PlayedCox(config, parts).arrays for name, parts in splits(FRAME).items()}
    first = played["1"]
    for other in played.values():
        assert {n: a.tobytes() for n, a in other.items()} == {n: a.tobytes() for n, a in first.items()}
    without = config_with("fin(0..1), age(0..64), prio(0..32)", strata="race(0..1)")
    plain = PlayedCox(without, [FRAME]).arrays
    assert set(first) - set(plain) == {"concordance"}
    assert {n for n in plain if plain[n].tobytes() != first[n].tobytes()} == {"sums-sha256"}


def test_pairs_by_hand() -> None:
    """Two strata, in which ten pairs can be compared.

    In the first, times 1* 2 2* 3 have scores 1 1 0 0, * with the event: 1* has three pairs, one tied and two
    concordant; 2* has two, with the other at 2, which is discordant, and with 3, which is tied.
    """
    cells = np.zeros((2, 4, 2), np.int64)
    strata = Strata([0, 0, 1], [1, 2, 1], [1, 1, 1], [4, 3, 2], cells)
    counts = np.array([[5, 5], [0, 1], [0, 0], [1, 0], [1, 1], [0, 1], [3, 2]])
    assert concordance(strata, counts) == Concordance(2 + 0 + 3, 1 + 1 + 2, 3 + 2 + 5)
    assert concordance(strata, counts).index == 0.7
    assert Concordance(0, 0, 0).index is Concordance(0, 4, 4).index is Concordance(0, 4, 4).error is None


def test_too_many_bins_are_refused_before_round_1() -> None:
    with pytest.raises(ConfigError, match=r"survival\.concordance.*at most 1323 bins.*99 cells.*got 2000"):
        PlayedCox(config_with(concordance=2000), [ROSSI])


def test_a_run_has_the_same_c_masked_or_not(tmp_path: Path) -> None:
    keys = written(tmp_path, 3) | {"survival.concordance": 50}
    config = config_with(str(RUN["survival.columns"]), strata="race(0..1)", concordance=50)
    want = PlayedCox(config, [FRAME])
    for more in ({}, {"secagg": True}):
        played = play(keys | more, nodes=3)
        found = played.arrays(len(played.rows) - 1)
        assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in want.arrays.items()}
    assert want.table.as_dict()["concordance"] == found_in(want).index


# ------------------------------------------------------------------------------------------- policy


def test_bins_with_few_persons_of_a_cell_are_merged_and_under_masks_of_all_cells() -> None:
    """Bins 0 to 2 | 3: cell 1 has 11 | 3 persons, cells 1 and 3, with the event, 21 | 8; then 4 in bin 2."""
    counts = np.array([[0, 0, 0, 0], [9, 2, 0, 3], [3, 9, 4, 5], [0, 4, 6, 5]])
    ends = [merged(3, closed_scores(counts, 5, masked=masked).tolist()).tolist() for masked in (False, True)]
    assert ends == [[3, 3, 3, 3], [2, 2, 2, 3]]
    assert not closed_scores(counts, 0, masked=False).any()


def test_a_bound_leaves_fewer_bins_and_c_says_how_far_off_it_may_be(tmp_path: Path) -> None:
    parts = [PEOPLE.iloc[i::3] for i in range(3)]
    config = config_with("fin(0..1), age(0..100)", time="week(0..100)", concordance=600)
    exact = found_in(PlayedCox(config, [PEOPLE])).index
    found = {}
    for masked in (False, True):
        keys = {"survival.concordance": 64, "secagg": masked, "run-name": f"masked-{masked}"}
        folder = at_sites(tmp_path, parts, 5, **keys)
        found[masked] = json.loads((folder / "result.json").read_text())
    clear, table = (found[masked]["table"] for masked in (False, True))
    assert clear["concordance"] is clear["concordance_error"] is None
    assert abs(table["concordance"] - exact) < table["concordance_error"] < 0.3
    text = dict(hazard_lines(found[False]))["Harrell's c"], dict(hazard_lines(found[True]))["Harrell's c"]
    assert text[0].startswith("none: the sites have too few persons")
    assert text[1] == f"{table['concordance']:.5g}, off by 0.24 at most, by its bins"

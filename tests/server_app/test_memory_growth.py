"""How much memory a further parameter of a model takes in a simulation: one more copy anywhere fails this."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.data import ROOT
from tests.bench.parameters import keys_of
from tests.bench.processes import bouquet, environment, run

FEW, MANY = 10_000_000, 25_000_000
MOST = 48.0  # bytes: 44 were measured, and a copy in each of two workers has 8


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="models are shared as pages on Linux alone")
def test_a_further_parameter_takes_no_more_bytes_than_its_known_copies(tmp_path: Path) -> None:
    env = environment(tmp_path, ROOT / "data")
    peaks = []
    for size in (FEW, MANY):
        folder = tmp_path / f"{size}"
        keys = keys_of(size) | {"roll-call-timeout": 900.0}  # the nodes try the model on a busy machine first
        peaks.append(run(bouquet(folder, keys), folder, env, memory=True).pss)
    assert 16.0 < (peaks[1] - peaks[0]) / (MANY - FEW) < MOST

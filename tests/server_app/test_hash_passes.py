"""How often a run hashes its model: SHA-256 takes longer than anything else that reads each number once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.app import make_app
from server_app.app import run
from server_app.run import checkpoint
from task.numerics import arrays
from task.resolve.read import read_config
from tests.support.grid import LocalGrid

ROUNDS = 3


# Checkpoints of rounds 0 to 3; of 0, 1, 2 and 3, as round 2's may go back to 1; of 3 and 2.
@pytest.mark.parametrize(("every", "written"), [(1, 4), (2, 4), (0, 2)])
def test_a_round_hashes_the_model_once_and_its_checkpoint_is_checked_by_a_quick_sum(
    every: int, written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: dict[str, int] = {"sha256": 0, "xxh3": 0}
    theirs = arrays.hash_into

    def counting(digest: Any, of: Mapping[str, np.ndarray]) -> None:
        passes["sha256" if digest.name == "sha256" else "xxh3"] += 1
        theirs(digest, of)

    monkeypatch.setattr(arrays, "hash_into", counting)
    monkeypatch.setattr(checkpoint, "hash_into", counting)
    keys = {
        "dataset": "digits", "model": "logistic", "num-clients": 4, "num-server-rounds": ROUNDS,
        "max-examples": 80, "checkpoint-every": every, "run-name": "hashed", "progress": "none",
        "runs-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    run(LocalGrid(make_app(keys), [{"partition-id": 0, "num-partitions": 1}]), read_config(keys))
    assert passes == {"sha256": ROUNDS + 1, "xxh3": written}  # round 0 is one

"""The seeds of model, data and training: each moves its own random numbers and none of the others'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task.config.knobs import Config, Seeds
from tests.server_app.test_app import go

KEYS: dict[str, Any] = {
    "num_server_rounds": 1, "local_test_fraction": 0.3, "partition": "dirichlet", "max_examples": 300,
}  # fmt: skip


def traces(tmp_path: Path, name: str, **keys: Any) -> dict[str, Any]:
    """Return what each kind of seed decides, and the hash of the final model."""
    folder = go(tmp_path, run_name=name, **KEYS, **keys)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    card = json.loads((folder / "config.json").read_text())["data"]
    return {
        "model": rows[0]["model_sha256"],
        "data": (card["fingerprint"], card["skew"]),
        "train": rows[1]["selected"],
        "bytes": rows[-1]["model_sha256"],
    }


@pytest.mark.parametrize("kind", ["model", "data", "train"])
def test_a_seed_moves_its_own_numbers_only(kind: str, tmp_path: Path) -> None:
    """A role that reads another's seed would move with it, or stay."""
    plain = traces(tmp_path, "plain")
    other = traces(tmp_path, "other", **{f"{kind}_seed": 2})
    assert {what for what in plain if plain[what] != other[what]} == {kind, "bytes"}


def test_the_seeds_of_one_run_are_its_seed_unless_they_are_set(tmp_path: Path) -> None:
    assert Config(seed=5, data_seed=0).seeds == Seeds(5, 0, 5)
    plain = traces(tmp_path, "plain")
    said = traces(tmp_path, "said", model_seed=1, data_seed=1, train_seed=1)
    assert said == plain
    assert traces(tmp_path, "all", seed=2) == traces(
        tmp_path, "each", model_seed=2, data_seed=2, train_seed=2
    )

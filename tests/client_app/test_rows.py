"""Runs whose cohorts go up as rows, as on a GPU, end in the models of those whose arrays are copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from client_app.training.programs import Tensors
from client_app.training.stacked import Stacked
from task.numerics.arrays import Arrays
from task.numerics.stack import RowStack, rows_of
from tests.support.federation import owners_config, play, write_owners
from tests.support.horizontal import HORIZONTAL
from tests.support.shapes import by_shape
from tests.test_catalogue import ACTIVE

FEATURES: dict[str, dict[str, Any]] = {
    "bound": {"max-update-norm": 5.0},
    "robust": {"algorithm": "krum"},
    "codec": {"codec.up": "int8"},
    "diverged": {"learning-rate": 1e30},
}


def _lent(self: Stacked, params: Tensors) -> list[Arrays]:
    if len(params[0]) == 1:
        return self.states(params)
    return cast(list[Arrays], rows_of(dict(zip(self.names, params, strict=True))))


def _digests(keys: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = play(keys, nodes=1).rows
    return [(row["model_sha256"], row["train_loss"], row["quarantined"]) for row in rows[1:]]


def _both(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, int]:
    """Return what a run ends in by copies and by rows, and how many stacks were summed as such."""
    copied, calls, units = _digests(keys), [], RowStack.units
    monkeypatch.setattr(Stacked, "lent", _lent)
    monkeypatch.setattr(RowStack, "units", lambda *a, **k: (calls.append(1), units(*a, **k))[1])
    return copied, _digests(keys), len(calls)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    write_owners(tmp_path / "owners.npz")
    more = {"model": "mlp", "stack": 8, "num_server_rounds": 2}
    return owners_config(tmp_path / "owners.npz", **more)


@pytest.mark.parametrize("algorithm", by_shape(((n,) for n in sorted(HORIZONTAL)), 2))
def test_every_algorithm_takes_rows(algorithm: str, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, rows, _ = _both(keys | {"algorithm": algorithm} | ACTIVE[algorithm], monkeypatch)
    assert rows == copied


@pytest.mark.parametrize("feature", FEATURES)
def test_features_take_rows(feature: str, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, rows, _ = _both(keys | FEATURES[feature], monkeypatch)
    assert rows == copied


def test_a_plain_cohort_is_summed_as_one(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of one cohort, and four tensors of the model."""
    copied, rows, calls = _both(keys, monkeypatch)
    assert rows == copied
    assert calls == 2 * 4

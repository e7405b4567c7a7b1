"""Clients held out: they are drawn once, take no part in training, and are measured at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.results.headline import headline
from strategies.membership.client_registry import ClientRegistry
from strategies.stages.columns import ColumnsStage
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.server_app.test_app import go
from tests.support.federation import Keep, play, write_owners
from tests.support.horizontal import HORIZONTAL
from tests.test_contract import config

OWN = [name for name, entry in HORIZONTAL.items() if entry.personal and not entry.pooled]


class Held(Keep):
    def measured_last(self, server_round: int, lines: list[dict[str, Any]]) -> None:
        self.lines = lines


@pytest.mark.parametrize("name", [*OWN, "fedavg", "fedprox", "scaffold", "feddc", "moon"])
def test_they_are_measured_and_take_no_part(name: str, tmp_path: Path) -> None:
    """A solver that needs the client among the population, or what it kept, would fail as it adapts."""
    path = tmp_path / "owners.npz"
    write_owners(path)
    keys = config(path, name, num_server_rounds=2, local_test_fraction=0.3) | {"fraction-heldout": 0.4}
    journal = Held()
    played = play(keys, nodes=2, journal=journal)
    everybody = set(played.names)  # they have joined by now
    held = {line["name"] for line in journal.lines}
    assert len(held) == round(0.4 * len(everybody))
    assert not any(held & set(row["selected"]) for row in played.rows)
    assert {row["population"] for row in played.rows[1:]} == {len(everybody) - len(held)}
    phases = ["heldout", "heldout-adapted"] if name in OWN else ["heldout"]
    assert [line["phase"] for line in journal.lines] == [p for p in phases for _ in held]
    assert all(0 <= line["metrics"]["accuracy"] <= 1 and line["examples"] for line in journal.lines)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]


def of(folder: Path, phase: str) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["phase"] == phase]


KEYS: dict[str, Any] = {"fraction_heldout": 0.2, "local_test_fraction": 0.3, "fraction_train": 1.0}


def test_the_result_has_them_apart_from_the_others(tmp_path: Path) -> None:
    """Counted among the clients that train, they would move those means."""
    folder = go(tmp_path, algorithm="fine-tune", num_server_rounds=3, **KEYS)
    before, after = of(folder, "heldout"), of(folder, "heldout-adapted")
    result = json.loads((folder / "result.json").read_text())
    found = result["heldout"]
    assert found["count"] == len(before) == 2
    assert found["mean"] == pytest.approx(np.mean([row["metrics"]["accuracy"] for row in before]))
    assert found["adapted"]["mean"] == pytest.approx(np.mean([r["metrics"]["accuracy"] for r in after]))
    assert result["clients"]["count"] == 8
    assert result["participation"]["clients"] == result["participation"]["population"] == 8
    held = {row["name"] for row in before}
    assert not held & {row["name"] for row in rows(folder) if not row["phase"].startswith("heldout")}
    assert {"Held-out clients", "Held out, after training"} <= {label for label, _ in headline(result)}


def test_a_run_without_has_none(tmp_path: Path) -> None:
    assert json.loads((go(tmp_path) / "result.json").read_text())["heldout"] is None


def test_a_longer_run_holds_out_the_same_and_measures_them_once(tmp_path: Path) -> None:
    """Drawn again, or left in clients.jsonl, the resumed run would not be the one in one go."""
    short = go(tmp_path, num_server_rounds=2, algorithm="fedper", **KEYS)
    held = {row["name"] for row in of(short, "heldout")}
    longer = go(tmp_path, num_server_rounds=3, algorithm="fedper", resume=True, **KEYS)
    at_once = go(tmp_path, num_server_rounds=3, algorithm="fedper", run_name="at-once", **KEYS)
    for phase in ("heldout", "heldout-adapted"):
        assert of(longer, phase) == of(at_once, phase)
        assert {row["name"] for row in of(longer, phase)} == held
    assert (longer / "model.safetensors").read_bytes() == (at_once / "model.safetensors").read_bytes()


def test_no_client_left_to_train_is_refused() -> None:
    registry = ClientRegistry(1.0, 1)
    registry.names = ["a"]
    with pytest.raises(ConfigError, match='"fraction-heldout"'):
        registry.hold_out(0.2, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"fraction-heldout": 0.2, "local-test-fraction": 0.0}, '"local-test-fraction"'),
        ({"fraction-heldout": 0.2, "algorithm": "centralised"}, "all clients' data"),
        ({"fraction-heldout": 1.0}, "< 1"),
    ],
)
def test_what_could_not_be_measured_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys)
    assert said in str(refused.value)


def test_the_means_of_columns_are_those_of_the_clients_that_train(tmp_path: Path) -> None:
    """Standardised by everybody's columns, the held-out clients' data would be in every model."""
    path = tmp_path / "owners.npz"
    write_owners(path)
    keys = config(path, "fedavg", num_server_rounds=1, local_test_fraction=0.3, standardise=True)
    journal = Held()
    played = play(keys | {"fraction-heldout": 0.4}, nodes=2, journal=journal)
    registry, columns = played.strategy.registry, played.strategy.engine.find(ColumnsStage)
    assert columns is not None
    moments = columns.moments
    trained = [name for name in played.names if name not in {line["name"] for line in journal.lines}]
    assert moments is not None
    assert set(moments.count.tolist()) == {sum(registry.num_examples(trained).values())}

"""A run without rounds: clients test a given model, and nothing is trained, kept or taken for more."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from server_app.results.headline import headline
from task.errors import BouquetError, ConfigError
from task.resolve.read import read_config
from tests.support.federation import in_one_process, owners_config

# Each owner has examples of one class, and the model says 0 to everything: its logits are (2, 0).
ROWS = {"anna": (8, 0), "ben": (4, 1)}
RIGHT = -math.log(math.e**2 / (math.e**2 + 1))
WRONG = RIGHT + 2.0


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    names = [name for name, (n, _) in ROWS.items() for _ in range(n)]
    y = np.array([label for n, label in ROWS.values() for _ in range(n)])
    x = np.zeros((len(y), 2), np.float32)
    np.savez(tmp_path / "owners.npz", x=x, y=y, client=names, x_test=x[6:], y_test=y[6:])
    given = {"1.weight": np.zeros((2, 2), np.float32), "1.bias": np.array([2, 0], np.float32)}
    save_file(given, tmp_path / "given.safetensors")
    left_out = ("fraction-evaluate", "num-server-rounds")
    own = owners_config(tmp_path / "owners.npz", local_test_fraction=0.5, run_name="alone", progress="none")
    return {k: v for k, v in own.items() if k not in left_out} | {
        "num-server-rounds": 0, "initial-model": str(tmp_path / "given.safetensors")
    }  # fmt: skip


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_every_client_tests_the_given_model_and_the_figures_are_right(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    folder = in_one_process(keys, tmp_path)
    found = {line["name"]: line for line in rows(folder, "clients.jsonl")}
    wanted = {"anna": (4, 1.0, RIGHT), "ben": (2, 0.0, WRONG)}
    assert found.keys() == wanted.keys()
    for name, (examples, accuracy, loss) in wanted.items():
        assert (found[name]["phase"], found[name]["examples"]) == ("evaluate", examples)
        assert found[name]["metrics"] == {"accuracy": accuracy, "loss": pytest.approx(loss, rel=1e-6)}
    (row,) = rows(folder, "rounds.jsonl")
    assert (row["round"], row["population"], row["asked"]) == (0, 2, 0)
    assert row["client_accuracy"] == pytest.approx(4 / 6)
    assert row["client_loss"] == pytest.approx((4 * RIGHT + 2 * WRONG) / 6)
    assert row["accuracy"] == pytest.approx(2 / 6)  # of the server's own test set
    result = json.loads((folder / "result.json").read_text())
    assert result["by_client"]["ben"] == {"examples": 2, **found["ben"]["metrics"]}
    assert dict(headline(result))["Client ben"] == "accuracy 0.000, loss 2.127, 2 test examples"


def test_nothing_is_trained_or_kept(keys: dict[str, Any], tmp_path: Path) -> None:
    folder = in_one_process(keys, tmp_path)
    given, left = load_file(keys["initial-model"]), load_file(folder / "model.safetensors")
    assert {name: a.tobytes() for name, a in left.items()} == {n: a.tobytes() for n, a in given.items()}
    assert [path.name for path in (tmp_path / "state").rglob("*") if path.is_file()] == ["pool-id"]
    result = json.loads((folder / "result.json").read_text())
    assert (result["rounds"], result["train_loss"], result["participation"]["clients"]) == (0, None, 0)


def test_secure_aggregation_shows_the_pooled_figures_alone(keys: dict[str, Any], tmp_path: Path) -> None:
    more = {f"more-{i}": (4, i % 2) for i in range(4)}  # three nodes are needed, and each has a client
    names = [name for name, (n, _) in more.items() for _ in range(n)]
    y = np.array([label for n, label in more.values() for _ in range(n)])
    x = np.zeros((len(y), 2), np.float32)
    np.savez(tmp_path / "owners.npz", x=x, y=y, client=names, x_test=x, y_test=y)
    folder = in_one_process(keys | {"secagg": True}, tmp_path, nodes=4)
    (row,) = rows(folder, "rounds.jsonl")
    assert row["client_accuracy"] == pytest.approx(0.5)
    assert all(not line["metrics"] for line in rows(folder, "clients.jsonl"))
    assert "by_client" not in json.loads((folder / "result.json").read_text())


REFUSED = {
    "initial-model": ({"initial-model": ""}, '"num-server-rounds": 0 trains nothing'),
    "fraction-evaluate": ({"fraction-evaluate": 0.0}, "only evaluate; expected > 0"),
    "a model of each client's own": ({"algorithm": "ditto"}, 'expected "fedavg" with num-server-rounds = 0'),
    "a model in parts": ({"algorithm": "splitnn"}, "parts of the model"),
    "encryption": ({"he": True}, '"he": expected false with num-server-rounds = 0, as nothing is trained'),
    "noise": ({"dp.noise": 1.0, "dp.clip": 1.0}, '"dp.noise": it does not go with num-server-rounds = 0'),
    "an attack": ({"attack.kind": "scale"}, '"attack.kind": expected "none"'),
    "a transcript": ({"transcript": "sums"}, '"transcript": expected "none"'),
    "clients that do not train": ({"fraction-heldout": 0.5}, '"fraction-heldout": expected 0'),
    "a part of the model": ({"width.levels": "1,0.5", "model": "mlp"}, '"width.levels": expected 1'),
}


@pytest.mark.parametrize(("more", "said"), REFUSED.values(), ids=REFUSED)
def test_what_means_otherwise_is_refused(more: dict[str, Any], said: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys | more)
    assert said in str(refused.value)


def test_a_run_of_which_no_client_could_test_the_model_fails(keys: dict[str, Any], tmp_path: Path) -> None:
    # It would else end well, with a result that measures nothing.
    x = np.zeros((2, 2), np.float32)  # one example each, which is for training
    np.savez(
        tmp_path / "owners.npz", x=x, y=np.array([0, 1]), client=["anna", "ben"], x_test=x, y_test=[0, 1]
    )
    with pytest.raises(BouquetError, match="expected at least one client that evaluates the model"):
        in_one_process(keys, tmp_path)
    assert not (tmp_path / "alone" / "result.json").exists()


def test_a_result_folder_is_the_model_that_it_ended_with(keys: dict[str, Any], tmp_path: Path) -> None:
    first = in_one_process(keys, tmp_path)
    again = in_one_process(keys | {"run-name": "again", "initial-model": str(first)}, tmp_path)
    assert rows(again, "clients.jsonl") == rows(first, "clients.jsonl")

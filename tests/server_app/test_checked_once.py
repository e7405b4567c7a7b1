"""A run's keys are judged where the run begins; files that carry some of them are read without a verdict."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from client_app.app import make_app
from client_app.data.owner import config_of_node
from server_app.app import run
from server_app.results.folder import RunFolder
from server_app.run.stopped import finish_stopped
from server_app.takeout.examples import read_examples
from server_app.takeout.model import take
from server_app.takeout.predict import own_examples, predict
from task.errors import ConfigError
from task.resolve.model_card import OF_THE_MACHINE, card_of
from task.resolve.read import read_config
from tests.support.grid import LocalGrid

MEASURED = {"metrics": "f1-macro", "target-accuracy": 0.999, "plateau-rounds": 5}


def csv_file(folder: Path) -> Path:
    rng, path = np.random.default_rng(0), folder / "mine.csv"
    rows = [f"{a:.3f},{b:.3f},{'yes' if a < b else 'no'}" for a, b in rng.random((60, 2))]
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")
    return path


def npz_file(folder: Path) -> Path:
    rng, path = np.random.default_rng(0), folder / "mine.npz"
    x = rng.random((60, 2)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, 0] < x[:, 1]).astype(np.int64))
    return path


def picture_folder(folder: Path) -> Path:
    rng, path = np.random.default_rng(0), folder / "pictures"
    for label, light in (("day", 200), ("night", 20)):
        (path / label).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 40, (8, 8)).astype(np.uint8) + np.uint8(light)
            Image.fromarray(pixels).save(path / label / f"{i}.png")
    return path


def keys_in(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": "logistic", "num-clients": 3, "num-server-rounds": 2, "run-name": "mine", "progress": "none",
        "runs-dir": str(folder / "runs"), "state-dir": str(folder / "state"), **more,
    }  # fmt: skip


def played(keys: dict[str, Any]) -> Path:
    return run(LocalGrid(make_app(keys), [{"partition-id": 0, "num-partitions": 1}]), read_config(keys))


@pytest.mark.parametrize(
    ("dataset", "make"), [("csv", csv_file), ("npz", npz_file), ("imagefolder", picture_folder)]
)
def test_own_data_with_a_test_set_are_measured_by_every_key_that_asks_for_it(
    dataset: str, make: Any, tmp_path: Path
) -> None:
    """The model's card lacks the path, by which the run alone could see that the server has a test set."""
    path = make(tmp_path)
    keys = keys_in(tmp_path, dataset=dataset, **MEASURED, **{"data-path": str(path)})
    folder = played(keys)
    last = RunFolder(folder).rounds()[-1]
    assert {"accuracy", "f1-macro"} <= last.keys()
    taken = take(folder)
    assert predict(taken, own_examples(taken)).scores["all"]["accuracy"] == last["accuracy"]
    alone = tmp_path / "elsewhere.safetensors"  # on a machine without the run's folder and data
    shutil.copy(folder / "model.safetensors", alone)
    taken = take(alone)
    assert taken.config.metrics == "f1-macro"
    assert len(predict(taken, read_examples(path, taken.card)).ids) >= 40
    played({**keys, "num-server-rounds": 3, "resume": True})
    (folder / "result.json").unlink()
    assert finish_stopped(folder, "by the user")


@pytest.mark.parametrize("key", sorted(OF_THE_MACHINE))
def test_a_card_needs_no_key_of_the_machine(key: str, tmp_path: Path) -> None:
    """Its config is read back whatever the run had set there."""
    given: dict[str, Any] = {
        "data-path": "mine.csv", "nodes": "ward-1", "device": "cpu", "threads": 2, "stack": 1,
        "min-replies": 2, "enough-replies": 2, "run-name": "mine", "resume": True, "progress": "none",
        "checkpoint-every": 2, "min-nodes": 2, "keep-state": False, "round-timeout": 5.0, "tracker": "",
        "roll-call-timeout": 5.0,
    }  # fmt: skip
    own = {"dataset": "csv", "data-path": "mine.csv", "model": "logistic", **MEASURED}
    config = read_config(own | {key: given.get(key, str(tmp_path))})
    card = card_of(config, (2,), 2, None)
    assert key not in card.run
    assert card.config.metrics == "f1-macro"
    assert card.metadata()


def test_a_nodes_path_does_not_change_whether_the_keys_go_together(tmp_path: Path) -> None:
    """With a path of its own a node took num-clients, which such a run does not read, for its clients."""
    ward = {"client-name": "ward-1", "data-path": str(csv_file(tmp_path))}
    of_link = {"dataset": "csv", "model": "logistic", "num-classes": 2, "min-replies": 11, "min-nodes": 11}
    read_config(of_link)
    assert config_of_node(of_link, ward).data.data_path == ward["data-path"]
    with pytest.raises(ConfigError, match='"metrics": expected a model that is measured'):
        config_of_node({**of_link, "metrics": "f1-macro"}, ward)

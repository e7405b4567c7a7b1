"""Run-config keys of earlier versions: still read, in every place that keys come from."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_app.results.folder import CONFIG, RunFolder
from server_app.run.repeat import keys_of_run
from server_app.run.same_run import check_resumed
from task.config import renamed
from task.config.options import parse_options
from task.config.read import as_run_config, defaults, flatten, read_recipe
from task.config.renamed import RENAMED
from task.errors import ConfigError
from task.resolve.model_card import ModelCard, read_model
from task.resolve.read import fuse, read_config
from task.storage.files import write_safetensors

OLD, NEW = "heldout-clients", "fraction-heldout"


@pytest.fixture(autouse=True)
def said_afresh() -> Iterator[None]:
    renamed._warn.cache_clear()
    yield
    renamed._warn.cache_clear()


def test_old_names_are_free_and_new_ones_exist() -> None:
    assert not RENAMED.keys() & defaults().keys()
    assert set(RENAMED.values()) <= defaults().keys()


def test_a_key_by_its_old_name_is_read_and_its_new_name_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        configs = [read_config({OLD: 0.25, "local-test-fraction": 0.2}) for _ in range(2)]
    assert [config.server.fraction_heldout for config in configs] == [0.25, 0.25]
    assert [record.getMessage() for record in caplog.records] == [
        f'run-config key "{OLD}" is now "{NEW}"; the old name goes with version 2.0'
    ]


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match=f'"{OLD}" is now "{NEW}": expected one of the two names; got both'):
        flatten({OLD: 0.1, NEW: 0.1})


def test_files_and_options_may_have_old_names(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"{OLD} = 0.5\n[lora]\nrank = 4\ntargets = 'q'\n")
    wanted = {NEW: 0.5, "lora.rank": 4, "lora.target-modules": "q"}
    assert read_recipe(str(file)) == parse_options([str(file)]) == wanted
    # What the user types replaces what a recipe says, whichever name each of them uses.
    keys, _ = fuse({NEW: 0.5, "local-test-fraction": 0.2}, parse_options([f"{OLD}=0.1"]))
    assert keys[NEW] == 0.1
    assert OLD not in keys


def test_result_folders_and_model_files_of_an_earlier_version_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"run": {OLD: 0.2, "algorithm": "fedavg"}}))
    assert RunFolder(tmp_path).config()["run"] == {NEW: 0.2, "algorithm": "fedavg"}
    assert keys_of_run(tmp_path)[0] == {NEW: 0.2}
    card = ModelCard({OLD: 0.2}, (4,), 2).metadata()
    assert OLD in card["bouquet"]
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {}, card)
    assert read_model(file)[0].run == {NEW: 0.2}
    assert keys_of_run(file)[0] == {NEW: 0.2}


def test_a_run_of_an_earlier_version_can_be_resumed(tmp_path: Path) -> None:
    """It had another default of a key that its algorithm does not read."""
    config = read_config({})
    before = as_run_config(config)
    del before["fedprox.measure-gamma"]
    (tmp_path / CONFIG).write_text(json.dumps({"run": {**before, "fedprox.gamma": True}}))
    check_resumed(config, tmp_path)
    prox = read_config({"algorithm": "fedprox"})
    (tmp_path / CONFIG).write_text(
        json.dumps({"run": {**before, "algorithm": "fedprox", "fedprox.gamma": True}})
    )
    with pytest.raises(ConfigError, match=r'"fedprox\.measure-gamma": expected True'):
        check_resumed(prox, tmp_path)

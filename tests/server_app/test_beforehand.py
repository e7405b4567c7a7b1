"""A run is resumed with its own keys, and what needs no torch is refused before torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client_app.app import make_app
from server_app.app import run as run_server
from server_app.cli import exits
from server_app.cli.common import read_keys
from server_app.cli.run import _stopping
from server_app.run.beforehand import check_beforehand
from server_app.run.data_card import data_card
from server_app.run.naming import drop_unbegun
from server_app.run.remarks import unmeasured
from server_app.run.run_lock import holding
from server_app.takeout.model_file import find
from task.config.read import as_run_config
from task.datasets.facts_in_words import in_words
from task.datasets.skew import load_partitioned
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.server_app.test_naming import put
from tests.server_app.test_takeout import trained
from tests.support.grid import LocalGrid

KEYS = {"algorithm": "fedprox", "fedprox.mu": 0.5, "partition": "dirichlet", "seed": 3}


def test_a_run_is_resumed_by_its_name_alone_and_lengthened(tmp_path: Path) -> None:
    """The defaults took the place of keys that were not typed again: another data set, another model."""
    whole = trained(tmp_path, "whole", **KEYS, num_server_rounds=3)
    trained(tmp_path, **KEYS)
    runs = str(tmp_path / "runs")
    keys = read_keys("", ["num-server-rounds=3"], "trial", runs, resume=True)
    given: dict[str, Any] = dict(keys)
    config = read_config(given)
    assert check_beforehand(config) == tmp_path / "runs" / "trial"
    folder = trained(tmp_path, **given)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["seed=4"], r'"seed": expected 3, .*got 4.*Leave the key out'),
        (['algorithm="fedavg"'], r'"algorithm": expected .fedprox., .*got .fedavg.'),
    ],
)
def test_a_key_that_may_not_change_is_refused_with_both_values(
    tmp_path: Path, pairs: list[str], message: str
) -> None:
    folder = put(tmp_path / "mine")
    _record(folder, KEYS)
    with pytest.raises(ConfigError, match=message):
        check_beforehand(read_config(read_keys("", pairs, "mine", str(tmp_path), resume=True)))


def test_a_resume_to_fewer_rounds_than_a_run_has_is_refused(tmp_path: Path) -> None:
    """The run went on "after round 300" to "round 300/200", and its config.json said 200 then."""
    folder = put(tmp_path / "mine")
    _record(folder, KEYS | {"num-server-rounds": 3})
    (folder / "rounds.jsonl").write_text("".join(json.dumps({"round": t}) + "\n" for t in range(4)))
    for rounds in ("num-server-rounds=3", "num-server-rounds=4"):
        check_beforehand(read_config(read_keys("", [rounds], "mine", str(tmp_path), resume=True)))
    with pytest.raises(ConfigError, match=r'"num-server-rounds": expected at least 3, as .*mine has.*got 2'):
        check_beforehand(
            read_config(read_keys("", ["num-server-rounds=2"], "mine", str(tmp_path), resume=True))
        )


def _record(folder: Path, keys: dict[str, Any]) -> None:
    """Write the config.json of a run with these keys."""
    (folder / "config.json").write_text(json.dumps({"run": as_run_config(read_config(keys))}))


def test_code_that_only_the_folder_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("task.trust._named", set())
    _record(put(tmp_path / "mine"), {"model": "stranger:Net"})
    with pytest.raises(ConfigError, match=r'mine/config.json.*"model".*add --code stranger'):
        read_keys("", None, "mine", str(tmp_path), resume=True)
    assert (
        read_keys("", None, "mine", str(tmp_path), resume=True, code=["stranger"])["model"] == "stranger:Net"
    )


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"dataset": "csv", "data-path": "/no/such.csv"}, DataError, "no/such.csv"),
        ({"model": "no_such_module:Net"}, ConfigError, '"model": expected module "no_such_module"'),
        ({"model": "tests.nothing:Net"}, ConfigError, '"model": expected module "tests.nothing"'),
        ({"run-name": "taken"}, ConfigError, "taken"),
    ],
)
def test_what_is_not_there_is_found_before_torch_is_imported(
    tmp_path: Path, keys: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """These errors came after imports of 18 to 62 seconds."""
    put(tmp_path / "taken", result=True)
    with pytest.raises(kind, match=message):
        check_beforehand(read_config({"runs-dir": str(tmp_path), **keys}))


def test_checks_beforehand_and_the_look_for_a_run_import_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom server_app.cli.main import app\n"
        "for words in (['run', '-c', 'model=\"no_such:Net\"'], ['predict', 'runs/nix'], ['compare', 'nix'],\n"
        "  ['run', '-c', 'dataset=\"csv\" data-path=\"nix.csv\"']):\n"
        "  try: app(words, standalone_mode=False)\n"
        "  except Exception as err: print(err)\n"
        "print('torch' in sys.modules)"
    )
    put(tmp_path / "runs" / "mine")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1] == "False", done.stdout + done.stderr
    assert len([line for line in lines if "runs has mine" in line]) == 2, done.stdout
    assert "starting" not in done.stderr


def test_a_start_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    """A wrong key of lora left an empty folder, which then looked like a run."""
    with pytest.raises(RuntimeError), holding(tmp_path / "mine", 0.0):
        raise RuntimeError
    assert not (tmp_path / "mine").exists()
    with holding(tmp_path / "mine", 0.0):
        (tmp_path / "mine" / "file").touch()
    assert (tmp_path / "mine" / "file").exists()


def test_ctrl_c_says_whether_there_is_something_to_resume(tmp_path: Path) -> None:
    nothing = pytest.raises(exits.StoppedError, match="before round 1; there is nothing to resume")
    with nothing, _stopping(tmp_path / "mine"):
        raise KeyboardInterrupt
    put(tmp_path / "mine")
    something = pytest.raises(exits.StoppedError, match="`bouquet run --resume --run-name mine` continues")
    with something, _stopping(tmp_path / "mine"):
        raise KeyboardInterrupt
    drop_unbegun(tmp_path / "mine")
    assert (tmp_path / "mine").exists()


def test_a_run_that_is_stopped_before_its_first_checkpoint_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("server_app.app.Recorder", stopped)  # config.json is written by now
    with pytest.raises(KeyboardInterrupt):
        _start(tmp_path, stop_is_end=True)
    assert not (tmp_path / "mine").exists()
    with pytest.raises(KeyboardInterrupt):
        _start(tmp_path, stop_is_end=False)  # a link goes on with it
    assert (tmp_path / "mine" / "config.json").exists()


def _start(runs: Path, *, stop_is_end: bool) -> None:
    keys = {"runs-dir": str(runs), "run-name": "mine", "progress": "none"}
    run_server(LocalGrid(make_app(keys), [{}]), read_config(keys), stop_is_end=stop_is_end)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ""),
        ({"pool-test": True}, "set fraction-evaluate, such as 1.0, to test at the clients"),
        ({"evaluate-every": 0}, "set evaluate-every"),
        ({"pool-test": True, "fraction-evaluate": 1.0}, ""),
    ],
)
def test_a_run_that_tests_nothing_says_so(keys: dict[str, Any], words: str) -> None:
    """Such a run printed no accuracy, and no reason."""
    config = read_config(keys)
    dataset, _ = load_partitioned(config)
    found = unmeasured(config, dataset)
    assert found == "" if not words else found.startswith(f"no test figures: {words}")


def test_examples_that_are_held_out_are_counted_and_said_to_be_unread() -> None:
    def clients(**more: Any) -> str:
        config = read_config({"num-clients": 10, "partition": "iid", **more})
        dataset, _ = load_partitioned(config)
        return dict(in_words(data_card(config, dataset, labelled=False)))["clients"]

    unread = (
        "; 140 more are held out for clients' own tests, which this run leaves out (fraction-evaluate = 0)"
    )
    assert clients().endswith(unread)
    assert clients(**{"fraction-evaluate": 0.5}).endswith("; 140 more are held out for clients' own tests")
    assert "held out" not in clients(**{"local-test-fraction": 0.0})


def test_the_runs_that_are_there_are_named(tmp_path: Path) -> None:
    put(tmp_path / "demo")
    with pytest.raises(ConfigError, match=r"got .*demos\. .* has demo\. Did you mean \"demo\""):
        find(tmp_path / "demos")


def test_a_run_is_resumed_from_python_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bouquet import api

    _record(put(tmp_path / "mine"), KEYS)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(api, "simulate", lambda keys, nodes, gpus: seen.update(keys))
    given = {"resume": True, "run_name": "mine", "runs_dir": str(tmp_path), "num_server_rounds": 20}
    api.run("", "", "", False, (), 0, 0, given)
    assert {key: seen[key] for key in KEYS} == KEYS
    assert seen["num-server-rounds"] == 20

"""``bouquet run --from``: the keys of a run that is there are those that made its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server_app.cli.common import read_keys
from server_app.run.repeat import keys_of_run
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.server_app.test_takeout import trained


def test_a_run_repeats_itself_bit_for_bit_under_another_name(tmp_path: Path) -> None:
    """A key that is forgotten changes the model; a name that is kept would refuse the run."""
    first = trained(
        tmp_path,
        "first",
        algorithm="fedprox",
        partition="dirichlet",
        seed=3,
        momentum=0.5,
        **{"fedprox.mu": 0.5},
    )
    keys, lines = keys_of_run(first)
    assert not lines
    assert "run-name" not in keys
    assert "state-dir" not in keys
    again = trained(tmp_path, "again", **keys)
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert keys_of_run(again)[0] == keys
    of_file, _ = keys_of_run(first / "model.safetensors")  # the file alone is enough
    assert read_config(of_file) == read_config(keys)


def test_keys_on_top_of_a_repeated_run_win(tmp_path: Path) -> None:
    folder = trained(tmp_path, num_server_rounds=1, algorithm="fedprox", **{"fedprox.mu": 0.5})
    keys = read_keys("", ['algorithm="fedavg" seed=9'], repeat=folder)
    config = read_config(keys)  # fedprox.mu is left out, since nothing reads it any more
    assert (config.algorithm, config.seed, config.data.num_clients) == ("fedavg", 9, 4)
    with pytest.raises(ConfigError, match="--from: expected it alone"):
        read_keys("demo", None, repeat=folder)
    with pytest.raises(ConfigError, match="--from: expected a result folder"):
        read_keys("", None, repeat=tmp_path)


def test_other_versions_are_said(tmp_path: Path) -> None:
    folder = trained(tmp_path, num_server_rounds=1)
    path = folder / "config.json"
    record = json.loads(path.read_text())
    record["environment"]["torch"] = "1.13"
    path.write_text(json.dumps(record))
    (line,) = keys_of_run(folder)[1]
    assert "torch 1.13 -> " in line
    record["run"]["no-such-key"] = 1
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="run-config keys of this version; got no-such-key"):
        keys_of_run(folder)

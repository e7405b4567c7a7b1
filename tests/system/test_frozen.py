"""A run with a frozen part on three nodes over TLS: one of them has the file, the others are sent it once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from server_app.engines.federation import federation
from server_app.results.folder import RunFolder
from task.numerics.arrays import state_of
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from task.storage.files import write_safetensors
from tests.support import frozen_models
from tests.support.brought import imported_from
from tests.support.federation import in_one_process

pytestmark = pytest.mark.system
NODES = 3
KEYS: dict[str, Any] = {
    "algorithm": "scaffold", "model": "frozen_nets:Bert", "trainable": "*lora*,classifier*",
    "dataset": "digits",
    "num-clients": 6, "max-examples": 120, "num-server-rounds": 3, "device": "cpu", "progress": "none",
}  # fmt: skip


def test_frozen_runs_end_in_one_model_in_one_process_resumed_and_on_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUQUET_CODE", str(tmp_path))
    shutil.copy(frozen_models.__file__, tmp_path / "frozen_nets.py")
    file, runs = tmp_path / "base.safetensors", tmp_path / "runs"
    with imported_from(tmp_path):
        drawn = model_of(read_config(KEYS | {"seed": 9}), (1, 8, 8), 10)
        write_safetensors(file, state_of(drawn))
        own = KEYS | {"initial-model": str(file)}
        here = RunFolder(in_one_process(own | {"run-name": "here"}, runs))
        half = own | {"run-name": "half", "cache-dir": str(tmp_path / "cache")}
        in_one_process(half | {"num-server-rounds": 1}, runs)
        resumed = RunFolder(in_one_process(half | {"resume": True}, runs, nodes=3))
        nodes = {f"n{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
        nodes["n0"] += ["--initial-model", str(file)]
        with federation(nodes, runs, ["frozen_nets"]) as fed:
            shutil.copy(file, fed.kit.path)
            fed.run(KEYS | {"initial-model": str(fed.kit.path / file.name), "run-name": "nodes"})
    found = RunFolder(runs / "nodes")
    rows, size = found.rounds(), found.config()["frozen"]["bytes"]
    for other in (resumed, found):
        assert [row["model_sha256"] for row in other.rounds()] == [r["model_sha256"] for r in here.rounds()]
    assert not any(row["quarantined"] for row in rows)
    sent = rows[1]["bytes_down"] - rows[2]["bytes_down"]
    assert 2 * size < sent < 2.1 * size
    assert rows[2]["bytes_down"] == rows[3]["bytes_down"] < size

"""The script that measures cells on a borrowed machine goes on where its last call ended, here on a CPU."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TABLE = """
title = "A tiny table"
paper = "Nobody 2026"
where = "Table 7"
metric = "rounds"
seeds = [1]
learning-rates = [0.1]
round-seconds = 60
gpu-round-seconds = 60

[keys]
dataset = "digits"
model = "logistic"
num-clients = 4
local-test-fraction = 0.0
num-server-rounds = 5000
target-accuracy = 0.97

[cells.big]
setting = "B = 10"
published = 8
"""


@pytest.mark.full
def test_a_second_call_on_another_machine_goes_on(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    rounds = list[int]()
    for machine in ("first", "second"):
        folder = tmp_path / machine
        folder.mkdir()
        table = folder / "tiny.toml"
        table.write_text(TABLE, "utf-8")
        call = ["sh", "tests/gpu/tables.sh", str(tmp_path / "kept"), "0.4", str(table)]
        subprocess.run(call, check=True, env={**os.environ, "PYTHON": sys.executable})
        with tarfile.open(tmp_path / "kept" / "runs.tar") as tar:
            (member,) = (m for m in tar.getmembers() if m.name.endswith("/rounds.jsonl"))
            found = tar.extractfile(member)
            assert found is not None
            rounds.append(json.loads(found.read().splitlines()[-1])["round"])
    assert 0 < rounds[0] < rounds[1]

"""The U-Net of the page on texts and masks finds circles: in one process, resumed, and on a link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server_app.results.folder import RunFolder
from tests.support.brought import imported_from
from tests.support.texts_and_masks import commands, lines, run, write_modules

pytestmark = [pytest.mark.system, pytest.mark.full]


def test_the_u_net_finds_circles_to_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """One process with two nodes, stopped after round 2 and resumed; and three nodes over TLS."""
    write_modules(tmp_path)
    keys = commands()["circles"]
    with imported_from(tmp_path):
        run(tmp_path, keys | {"num-server-rounds": 2})
        here = run(tmp_path, keys | {"resume": True}, 3)
    measures = here.result()["measures"]
    assert measures["miou"] > 0.8  # though the first pictures of the file have no circle
    assert measures["dice"] > measures["miou"]
    assert measures["pixel-accuracy"] > 0.95

    config = f'{lines()["circles"]} device="cpu"'
    line = [sys.executable, "-m", "server_app.cli.main", "federation", "-c", config, "--run-name", "link"]
    env = os.environ | {"BOUQUET_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = RunFolder(tmp_path / "runs/link").rounds()
    assert [row["model_sha256"] for row in rows] == [row["model_sha256"] for row in here.rounds()]
    assert [row["miou"] for row in rows] == [row["miou"] for row in here.rounds()]

"""A user's own folder on real processes: one model in simulation, under `flwr run` and on a federation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from server_app.deploy.host.host import APP_DIR
from tests import own_folder

pytestmark = pytest.mark.system
OTHERS = [name for name in own_folder.FAMILIES if name != own_folder.OWN]


def same_three_ways(*algorithms: str) -> None:
    line = [sys.executable, "-m", "tests.own_folder", "--only", ",".join(algorithms)]
    done = subprocess.run(line, cwd=APP_DIR, env=os.environ.copy(), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_the_same_folder_three_ways_under_its_own_rule() -> None:
    same_three_ways(own_folder.OWN)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_the_same_folder_three_ways_under_an_algorithm_of_each_family() -> None:
    same_three_ways(*OTHERS)

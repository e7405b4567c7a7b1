"""Plain Flower runs the app, ``flwr run . --stream``, through its own local SuperLink and the bundle.

So it does with a user's own folder; its model is that of the simulation and of a federation.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_app.deploy.host.host import APP_DIR
from task.flower.app import build_bundle
from tests import own_folder
from tests.support.flwr_run import ROOT, flwr_run, local_superlink

pytestmark = pytest.mark.system
OTHERS = [name for name in own_folder.FAMILIES if name != own_folder.OWN]


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of `flwr run` with one local SuperLink for all tests."""
    with local_superlink(tmp_path_factory.mktemp("superlink")) as env:
        yield env


def test_flwr_run_trains_and_leaves_the_result_folder(superlink: dict[str, str], tmp_path: Path) -> None:
    keys = (
        f'num-server-rounds=2 algorithm="fedprox" fedprox.mu=0.1 run-name="plain" runs-dir="{tmp_path}/runs" '
        f'cache-dir="{tmp_path}/cache"'
    )
    app = tmp_path / "app"  # `flwr run` reads all files of a folder, in a checkout also those of .venv
    with zipfile.ZipFile(io.BytesIO(build_bundle(ROOT))) as bundle:
        bundle.extractall(app)
    output = flwr_run(superlink, app, keys)
    result = tmp_path / "runs" / "plain" / "result.json"
    assert result.exists(), output[-4000:]
    assert json.loads(result.read_text())["algorithm"] == "fedprox"
    assert "round 2/2" in output


@pytest.mark.full
def test_flwr_run_refuses_a_bad_value(superlink: dict[str, str], tmp_path: Path) -> None:
    refused = flwr_run(superlink, ROOT, f'algorithm="fedprx" runs-dir="{tmp_path}/bad"')
    assert 'Did you mean "fedprox"?' in refused
    assert not (tmp_path / "bad").exists()


def same_three_ways(superlink: dict[str, str], *algorithms: str) -> None:
    line = [sys.executable, "-m", "tests.own_folder", "--only", ",".join(algorithms)]
    done = subprocess.run(line, cwd=APP_DIR, env=superlink, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.full
def test_the_same_folder_three_ways_under_its_own_rule(superlink: dict[str, str]) -> None:
    same_three_ways(superlink, own_folder.OWN)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_the_same_folder_three_ways_under_an_algorithm_of_each_family(superlink: dict[str, str]) -> None:
    same_three_ways(superlink, *OTHERS)

"""Plain Flower runs the app: ``flwr run . --stream``, through its own local SuperLink and the bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server_app.deploy.host.host import free_port

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a Flower home and a local SuperLink of its own, stopped afterwards."""
    mark = str(tmp_path)
    yield os.environ | {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "BOUQUET_TEST": mark,
    }
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BOUQUET_TEST") == mark:
                process.kill()
                left.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    psutil.wait_procs(left, timeout=10)


def flwr_run(env: dict[str, str], keys: str) -> str:
    line = [str(Path(sys.executable).with_name("flwr")), "run", str(ROOT), "--stream", "-c", keys]
    done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_flwr_run_trains_and_leaves_the_result_folder_and_refuses_a_bad_value(
    env: dict[str, str], tmp_path: Path
) -> None:
    keys = (
        f'num-server-rounds=2 algorithm="fedprox" fedprox.mu=0.1 run-name="plain" runs-dir="{tmp_path}/runs" '
        f'cache-dir="{tmp_path}/cache"'
    )
    output = flwr_run(env, keys)
    result = tmp_path / "runs" / "plain" / "result.json"
    assert result.exists(), output[-4000:]
    assert json.loads(result.read_text())["algorithm"] == "fedprox"
    assert "round 2/2" in output
    output = flwr_run(env, f'algorithm="fedprx" runs-dir="{tmp_path}/bad"')
    assert 'Did you mean "fedprox"?' in output
    assert not (tmp_path / "bad").exists()

"""Plain Flower runs the app: ``flwr run . --stream``, through its own local SuperLink and the bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.flwr_run import ROOT, flwr_run, local_superlink

pytestmark = pytest.mark.system


def test_flwr_run_trains_and_leaves_the_result_folder_and_refuses_a_bad_value(tmp_path: Path) -> None:
    keys = (
        f'num-server-rounds=2 algorithm="fedprox" fedprox.mu=0.1 run-name="plain" runs-dir="{tmp_path}/runs" '
        f'cache-dir="{tmp_path}/cache"'
    )
    with local_superlink(tmp_path) as env:
        output = flwr_run(env, ROOT, keys)
        refused = flwr_run(env, ROOT, f'algorithm="fedprx" runs-dir="{tmp_path}/bad"')
    result = tmp_path / "runs" / "plain" / "result.json"
    assert result.exists(), output[-4000:]
    assert json.loads(result.read_text())["algorithm"] == "fedprox"
    assert "round 2/2" in output
    assert 'Did you mean "fedprox"?' in refused
    assert not (tmp_path / "bad").exists()

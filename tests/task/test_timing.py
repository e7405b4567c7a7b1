"""The table of waits: its declared orderings, its facts of Flower's, and the scale for tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common import constant as flower

from task import timing

ROOT = Path(__file__).resolve().parents[2]
TABLE = {name: wait for name, wait in vars(timing).items() if isinstance(wait, timing.Timing)}


def test_a_wait_exceeds_what_it_says() -> None:
    for name, wait in TABLE.items():
        assert wait > 0, name
        assert name.endswith("_S"), name
        for other in wait.above:
            assert wait > other, f"{name}: {wait:g} s, for {wait.waits_for}; {other:g}, for {other.waits_for}"


def test_every_wait_is_waited() -> None:
    packages = ("task", "strategies", "client_app", "server_app")
    files = (p for package in packages for p in (ROOT / package).rglob("*.py") if p.name != "timing.py")
    used = {name for p in files for name in re.findall(r"\btiming\.(\w+)", p.read_text(encoding="utf-8"))}
    own = Path(timing.__file__).read_text(encoding="utf-8")
    assert not {name for name in TABLE.keys() - used if own.count(name) == 1}


def test_flower_sets_what_the_table_says_it_sets() -> None:
    beat = (flower.HEARTBEAT_BASE_MULTIPLIER + max(flower.HEARTBEAT_RANDOM_RANGE)) * (
        timing.BEAT_INTERVAL_S - flower.HEARTBEAT_CALL_TIMEOUT
    )
    assert pytest.approx(beat) == timing.LONGEST_BEAT_S
    assert flower.HEARTBEAT_PATIENCE * flower.HEARTBEAT_DEFAULT_INTERVAL == timing.ONLINE_S
    assert flower.HEARTBEAT_MIN_INTERVAL <= timing.BEAT_INTERVAL_S


def test_the_health_check_of_a_container_waits_as_long() -> None:
    """It runs without the packages, so it has two waits of its own."""
    tree = ast.parse((ROOT / "docker" / "health.py").read_text(encoding="utf-8"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values == {"OLD_S": timing.STATUS_OLD_S, "SILENT_S": timing.NODE_STALE_S}


@pytest.mark.parametrize(("pytest_runs", "expected"), [(True, 0.05), (False, 0.5)])
def test_only_tests_scale_waits(pytest_runs: bool, expected: float) -> None:
    code = "from task import timing; print(timing.LINK_LOOK_S, timing.ONLINE_S, timing.NOT_LET_IN_S)"
    env = {timing.TEST_SCALE: "0.1"} | ({"PYTEST_VERSION": "8"} if pytest_runs else {})
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [float(word) for word in done.stdout.split()] == [pytest.approx(expected), 60, 75]

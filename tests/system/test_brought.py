"""A user's own folder on real processes: one model in simulation, under `flwr run` and on a federation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server_app.deploy.host.host import APP_DIR
from tests import own_folder
from tests.support.flwr_run import local_superlink

pytestmark = pytest.mark.system
RULES = """
from dataclasses import replace

from client_app.solvers.sgd import Solver, proximal
from strategies.engine.rule import Rule
from task.spec.algorithms import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]


def mean(state, replies, config):
    return replace(state, arrays=replies.arrays["arrays"]), {}


class Pulled(Rule, update=mean):
    entry = replace(FEDAVG, solver="rules:PulledSolver", phases={"twice": FEDAVG})

    def round(self, state, context):
        replies = yield context.phase("twice", state)
        return (yield from super().round(replace(state, arrays=replies.arrays["arrays"]), context))


class PulledSolver(Solver):
    def terms(self, task):
        return proximal(task, 0.5)
"""
CORE = ("qfedavg", "krum")
OTHERS = [name for name in own_folder.FAMILIES if name not in CORE]


def same_three_ways(*algorithms: str) -> None:
    line = [sys.executable, "-m", "tests.own_folder", "--only", ",".join(algorithms)]
    done = subprocess.run(line, cwd=APP_DIR, env=os.environ.copy(), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_the_same_folder_three_ways() -> None:
    same_three_ways(*CORE)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_same_folder_three_ways_under_an_algorithm_of_each_other_family() -> None:
    same_three_ways(*OTHERS)


def test_a_rule_with_a_solver_and_a_phase_of_its_own(tmp_path: Path) -> None:
    """Server and clients each take their half of it, in the simulation and on nodes."""
    folder = tmp_path / "mine"
    own_folder.make_folder(folder)
    (folder / "rules.py").write_text(RULES)
    with local_superlink(tmp_path) as env:
        for how, algorithm in (("run", "fedavg"), ("run", "rules:Pulled"), ("federation", "rules:Pulled")):
            name = f"{how}-{algorithm[:5]}"
            keys = own_folder.KEYS | {"algorithm": algorithm, "run-name": name}
            output = own_folder.bouquet(env, folder, how, "-c", own_folder.text(keys))
            assert (folder / "runs" / name / "result.json").exists(), output[-4000:]
    plain, run, federation = (
        own_folder.found(folder / "runs" / name) for name in ("run-fedav", "run-rules", "federation-rules")
    )
    assert run == federation
    assert run[0] != plain[0]
    code = json.loads((folder / "runs" / "federation-rules" / "config.json").read_text())["code"]
    assert set(code) == {"data", "net", "rules"}

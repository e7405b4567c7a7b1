"""Secure aggregation on real gRPC nodes with TLS and kits: a node killed at each of the four stages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from server_app.engines.federation import federation
from server_app.results.folder import RunFolder
from tests.support.federation import play
from tests.support.grid import LocalGrid

pytestmark = pytest.mark.system
NODES = ("a", "b", "c", "d")
FULL = pytest.mark.full
STAGES = [pytest.param("keys", marks=FULL), pytest.param("shares", marks=FULL), "masked",
          pytest.param("unmask", marks=FULL)]  # fmt: skip
KEYS: dict[str, Any] = {
    "dataset": "digits", "num-clients": 10, "num-server-rounds": 3, "max-examples": 600, "device": "cpu",
    "progress": "none", "fraction-evaluate": 0.0,
}  # fmt: skip
# A module that Python imports at its start: it kills the node whose process works on a stage in round 2.
KILLER = """
import importlib.abc, importlib.machinery, os, signal, sys

STAGE = os.environ.get("BOUQUET_TEST_STAGE", "")

def kill(server_round):
    if os.path.basename(os.path.dirname(os.environ["FLWR_HOME"])) == "d" and server_round == 2:
        import psutil
        warm = psutil.Process(os.getppid())
        for process in (warm.parent(), warm):
            process.send_signal(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

def patch(module):
    answer_stage, masking = module.answer_stage, module.Masking
    def answer(stage, content, config, context, **more):
        if stage == "secagg_" + STAGE:
            kill(module.secure.record_in(content)["round"])
        return answer_stage(stage, content, config, context, **more)
    def content(self, *arguments):
        kill(self.session.round)
        return unpatched(self, *arguments)
    module.answer_stage = answer
    if STAGE == "masked":
        unpatched, masking.content = masking.content, content

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "client_app.stages.secure_aggregation":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            patch(module)
        spec.loader.exec_module = exec_module
        return spec

if STAGE:
    sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_goes_on_when_a_node_is_killed_at_a_stage(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(KILLER)
    path = os.pathsep.join([str(tmp_path / "early"), *filter(None, [os.environ.get("PYTHONPATH")])])
    runs = tmp_path / "runs"
    nodes = {name: ["--partition", f"{i}/{len(NODES)}"] for i, name in enumerate(NODES)}
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("BOUQUET_TEST_STAGE", stage)
    with federation(nodes, runs) as fed:
        fed.run({**KEYS, "secagg": True, "round-timeout": 8.0, "run-name": stage})
        assert fed.processes["d"].poll() is not None
        assert all(fed.processes[name].poll() is None for name in ("a", "b", "c", "link"))
    rows = RunFolder(runs / stage).rounds()
    out = {row["round"]: {q["client"] for q in row["quarantined"]} for row in rows}
    assert not any(row["skipped"] for row in rows)
    assert bool(out[2]) == (stage != "unmask")
    assert not out[1]

    class Silent(LocalGrid):
        """One client a node; those that were out of a round's sum do not answer."""

        def _deliver(self, message: Message) -> Message | None:
            config = message.content.config_records.get("config", {})
            mine = set(config.get("clients", ())) & out.get(int(message.metadata.group_id), set())
            return None if message.metadata.message_type == "train" and mine else super()._deliver(message)

    plain = play({**KEYS, "round-timeout": 2.0}, nodes=10, grid_type=Silent)
    assert [row["model_sha256"] for row in rows] == [row["model_sha256"] for row in plain.rows]
    lines = [json.loads(line) for line in (runs / stage / "clients.jsonl").read_text().splitlines()]
    assert {line["examples"] for line in lines if line["phase"] == "train"} == {None}

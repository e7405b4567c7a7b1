"""Adapters of a GPT-2: one model in a simulation, resumed, and on three nodes of which one is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server_app.deploy.link import follow
from server_app.deploy.link.jobs import Jobs
from server_app.engines.federation import federation
from server_app.results.folder import RunFolder
from tests.support import fine_tune
from tests.support.brought import imported_from

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of transformers, in peft
]
NODES, ROUNDS, AT = 3, 6, 2  # a node is killed after round AT


def until(true: Callable[[], bool], within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(900)
def test_adapters_end_in_one_model_simulated_resumed_and_with_a_killed_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUQUET_CODE", str(tmp_path))
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    fine_tune.make(tmp_path)
    keys = fine_tune.keys("gpt2", **fine_tune.SHORT) | {
        "model": f"transformers:{tmp_path / 'gpt2'}", "num-server-rounds": ROUNDS, "num-clients": 6,
        "max-examples": 48,
    }  # fmt: skip
    del keys["cache-dir"]
    with imported_from(tmp_path):
        here = fine_tune.run(tmp_path, keys, "here")
        half = fine_tune.run(tmp_path, keys | {"num-server-rounds": AT}, "half", NODES)
        assert len(half.rounds()) == AT + 1
        resumed = fine_tune.run(tmp_path, keys | {"resume": True}, "half", 2)
        shares = {f"n{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
        with federation(shares, tmp_path / "runs", ["words", "base", "transformers"]) as fed:
            jobs = Jobs(fed.kit.jobs, fed.kit.runs)
            nodes = RunFolder(tmp_path / "runs/nodes")
            follow.submit(fed.kit, keys | {"run-name": "nodes", "min-nodes": NODES, "round-timeout": 120.0})

            def at(count: int) -> bool:
                ended = (job := jobs.read("nodes")) is not None and job.ended
                assert not ended or count > ROUNDS, fed.logs()
                return ended or ((nodes.path / "rounds.jsonl").exists() and len(nodes.rounds()) >= count)

            until(lambda: at(AT + 1))
            victim = fed.node("n1")
            victim.kill()
            victim.wait()
            fed.start("n1", "node", str(fed.kit.path.parent / "n1"), *shares["n1"])
            until(lambda: (job := jobs.read("nodes")) is not None and job.ended)
            job = jobs.read("nodes")
            assert job is not None
            assert (job.state, job.attempts) == ("finished", 1), fed.logs()
    want = [row["model_sha256"] for row in here.rounds()]
    assert len(set(want)) == ROUNDS + 1
    for other in (resumed, nodes):
        assert [row["model_sha256"] for row in other.rounds()] == want
        assert [row["answered"] for row in other.rounds()[1:]] == [6] * ROUNDS

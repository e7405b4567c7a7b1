"""Asynchronous runs on a link with a slow node, whose server or node is killed.

One of real arrivals whose server is killed is in `tests.system.test_link`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from server_app.deploy.link import follow
from server_app.deploy.link.jobs import Job, Jobs
from server_app.engines.federation import Federation, federation

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(600)]
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
KEYS: dict[str, Any] = {
    "algorithm": "fedbuff", "dataset": "digits", "model": "mlp", "num-clients": 9, "fraction-train": 0.67,
    "fedbuff.buffer": 3, "num-server-rounds": 8, "learning-rate": 0.1, "progress": "none", "min-nodes": 3,
    "threads": 1, "device": "cpu",
}  # fmt: skip
SHARES = {f"node-{i + 1}": ["--partition", f"{i}/3"] for i in range(3)}
SHARES["node-3"] += ["--bandwidth", "1mbit"]
STEPS = 300  # take longer than it takes to give a node up


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A link and three nodes, one of them behind a slow line."""
    runs = tmp_path_factory.mktemp("arrivals") / "runs"
    with federation(SHARES, runs) as fed:
        yield fed


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rounds.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def until(true: Callable[[], Any], within_s: float = 240.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def server_of(fed: Federation) -> psutil.Process | None:
    """Return the process of the run's server."""
    for child in psutil.Process(fed.processes["link"].pid).children():
        with suppress(psutil.Error):
            if "server_app.deploy.flower.warm" in " ".join(child.cmdline()):
                return next(iter(child.children()), None)
    return None


def killed(fed: Federation, name: str, keys: dict[str, Any]) -> tuple[Path, Job]:
    """Run, kill the server with SIGKILL after the second step, and wait for the end."""
    jobs, folder = Jobs(fed.kit.jobs, fed.kit.runs), fed.kit.runs / name
    follow.submit(fed.kit, keys | {"run-name": name})
    until(lambda: len(rows(folder)) >= 3)
    server = server_of(fed)
    assert server is not None
    server.kill()

    def ended() -> bool:
        job = jobs.read(name)
        return job is not None and job.ended

    until(ended)
    job = jobs.read(name)
    assert job is not None
    assert (job.state, job.attempts) == ("finished", 2), job.reason
    return folder, job


def bouquet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BOUQUET, *arguments], capture_output=True, text=True, timeout=300)


def test_a_run_in_virtual_time_survives_its_server_with_the_bytes_of_the_simulation(
    fed: Federation, tmp_path: Path
) -> None:
    folder, _ = killed(fed, "virtual", KEYS)
    keys = " ".join(f"{k}={json.dumps(v)}" for k, v in KEYS.items() if k != "min-nodes")
    done = bouquet("run", "-c", keys, "--runs-dir", str(tmp_path), "--run-name", "same")
    assert done.returncode == 0, done.stderr
    hashes = [row["model_sha256"] for row in rows(folder)]
    assert hashes == [row["model_sha256"] for row in rows(tmp_path / "same")]
    refused = bouquet("replay", str(folder))
    assert refused.returncode == 78
    assert 'expected a run with order-of-arrival = "real"; got "virtual"' in refused.stderr


def test_fedasync_takes_real_arrivals_without_a_killed_node_and_replays_to_the_same_bytes(
    fed: Federation,
) -> None:
    """Each update is a step; node-3 dies, its clients' starts are given up, and it comes back."""
    jobs, folder = Jobs(fed.kit.jobs, fed.kit.runs), fed.kit.runs / "fedasync"
    own = {
        "algorithm": "fedasync",
        "order-of-arrival": "real",
        "num-server-rounds": STEPS,
        "evaluate-every": 50,
    }
    own |= {"run-name": "fedasync", "fedasync.staleness": "polynomial"}
    follow.submit(fed.kit, {k: v for k, v in KEYS.items() if k != "fedbuff.buffer"} | own)

    def events(kind: str) -> list[dict[str, Any]]:
        path = folder / "arrivals.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    def ended() -> bool:
        job = jobs.read("fedasync")
        return job is not None and job.ended

    until(lambda: len(events("step")) >= 3)
    node = fed.node("node-3")
    node.kill()
    node.wait()
    until(lambda: events("lost") or ended())
    lost = events("lost")
    assert lost, "the run ended before the node was given up"
    fed.start("node-3", "node", str(fed.kit.path.parent / "node-3"), *SHARES["node-3"])
    until(ended)
    job = jobs.read("fedasync")
    assert job is not None
    assert (job.state, job.attempts) == ("finished", 1), job.reason
    assert {e["client"] for e in lost} <= {"client-2", "client-5", "client-8"}
    arrivals = events("arrival")
    assert [e["updates"] for e in events("step")] == [[e["client"]] for e in arrivals]
    assert len(arrivals) == STEPS
    assert any(e["staleness"] for e in arrivals)
    assert [e["weight"] for e in arrivals] == pytest.approx(
        [0.6 * (1 + e["staleness"]) ** -0.5 for e in arrivals]
    )
    done = bouquet("replay", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    last = rows(folder)[-1]["model_sha256"]
    assert f"the same model after each round; after the last one SHA-256 {last}" in done.stdout

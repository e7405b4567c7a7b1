"""``python -m tests.compat``: the app as it is, deployed on this Python's Flower, with TLS and node keys.

Two runs, an averaging one and a personalised one whose clients keep state, are done in the simulation of this
version and then on a SuperLink and three SuperNodes; both must end in the same model bytes, with every
client's metrics equal. Prints a line per check; exit code 1 if one fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from task.config.read import read_recipe
from tests.support.stock import GRPC, Stock, stock

RUNS: dict[str, dict[str, Any]] = {
    "fedprox": {"algorithm": "fedprox", "fedprox.mu": 0.1, "stragglers": 0.5, "num-server-rounds": 3},
    "ditto": {
        "algorithm": "ditto", "num-server-rounds": 2, "fraction-evaluate": 1.0, "local-test-fraction": 0.25,
    },
}  # fmt: skip


def simulate(keys: dict[str, Any]) -> None:
    """Do a run in the simulation, in a process of its own."""
    pairs = " ".join(f"{k}={json.dumps(v)}" for k, v in keys.items())
    subprocess.run(
        [sys.executable, "-m", "server_app.cli.main", "run", "-c", pairs, "--nodes", "2"],
        check=True, stdout=subprocess.DEVNULL, env=os.environ.copy(),
    )  # fmt: skip


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def check(what: str, holds: bool) -> bool:
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    return holds


def compare(simulated: Path, deployed: Path, name: str) -> bool:
    """Hold a deployed run to the simulated one."""
    if not check(f"{name}: the run ends with a result", (deployed / "result.json").exists()):
        return False
    a, b = rows(simulated, "rounds.jsonl"), rows(deployed, "rounds.jsonl")
    clients = [
        sorted(
            (r["round"], r["name"], r["phase"], json.dumps(r["metrics"], sort_keys=True))
            for r in rows(f, "clients.jsonl")
        )
        for f in (simulated, deployed)
    ]
    model = "model.safetensors"
    return all(
        (
            check(f"{name}: nobody quarantined", not any(r["quarantined"] for r in a + b)),
            check(
                f"{name}: the same model bytes as in the simulation",
                (simulated / model).read_bytes() == (deployed / model).read_bytes()
                and [r["model_sha256"] for r in a] == [r["model_sha256"] for r in b],
            ),
            check(f"{name}: the same metrics of every client", clients[0] == clients[1]),
        )
    )


def deploy(link: Stock, keys: dict[str, Any], name: str) -> None:
    began = time.monotonic()
    link.run(keys | {"min-nodes": 3})
    print(f"     {name}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Run all of it."""
    transport = "gRPC" if GRPC else "HTTP"
    print(f"flwr {version('flwr')}, nodes reach the SuperLink over {transport}, TLS, node keys", flush=True)
    demo = dict(read_recipe("demo"))
    good = True
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as folder:
        home, runs = Path(folder, "home"), Path(folder, "runs")
        home.mkdir()
        nodes = [{"partition-id": i, "num-partitions": 3, "run-paths": True} for i in range(3)]
        with stock(home, nodes) as link:
            for name, more in RUNS.items():
                keys = demo | more | {"progress": "none", "runs-dir": str(runs)}
                simulate(keys | {"run-name": f"{name}-simulated", "state-dir": str(runs / "state-simulated")})
                deploy(link, keys | {"run-name": name, "state-dir": str(runs / "state")}, name)
                good &= compare(runs / f"{name}-simulated", runs / name, name)
            if not good:
                print(link.logs())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

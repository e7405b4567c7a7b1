"""``python -m tests.compat.version --out FILE``: what `tests.compat` checks in the environment of one Flower.

Without options: the names that we use, the tests of what runs inside Flower's processes and of its own nodes
and SuperLink together with ours, and the recipe ``demo`` in the simulation and on a link and three nodes over
gRPC. With ``--nodes PYTHON`` only the last of these, with the nodes in another environment. With ``--stock``
also the app as it is on a SuperLink and SuperNodes of Flower's own. FILE gets
the results in JSON: "ok", "FAIL" or the hash of a model, by check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from server_app.deploy.flower import names as deployed
from server_app.engines import federation as engine
from task.config.read import read_recipe
from task.flower import names as anywhere
from task.flower.names import changes
from tests.support.stock import GRPC, stock

TESTS = (
    "tests/test_flower_names.py", "tests/test_grid.py", "tests/test_interoperation.py",
    "tests/deploy/test_connection.py", "tests/deploy/test_fleet_relay.py", "tests/deploy/test_gate.py",
    "tests/deploy/test_held_calls.py", "tests/deploy/test_limits.py", "tests/deploy/test_monitor.py",
    "tests/deploy/test_objects.py", "tests/deploy/test_parts.py", "tests/deploy/test_runtime_calls.py",
    "tests/deploy/test_submit_port.py", "tests/deploy/test_superlink.py", "tests/deploy/test_uploads.py",
    "tests/system/test_mixed.py",
)  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "fedprox": {"algorithm": "fedprox", "fedprox.mu": 0.1, "stragglers": 0.5, "num-server-rounds": 3},
    "ditto": {
        "algorithm": "ditto", "num-server-rounds": 2, "fraction-evaluate": 1.0, "local-test-fraction": 0.25,
    },
}  # fmt: skip
NODES = 3
LIMIT_S = 300  # of a run on a link
MODEL = "model.safetensors"
Keys = dict[str, Any]


def check(what: str, holds: bool) -> bool:
    """Print whether something holds, and return it."""
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    return holds


def names() -> str:
    """Hold this Flower to the manifests."""
    changed = changes(*anywhere.USES, *deployed.USES)
    return word(check("\n     ".join(["the names that we use", *changed]), not changed))


def tests() -> str:
    """Run the tests of what runs inside Flower's processes."""
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return word(check("tests", subprocess.run(line).returncode == 0))


def simulation(keys: Keys, runs: Path) -> str:
    """Do the run in the simulation; return the hash of its model."""
    simulate(keys | {"runs-dir": str(runs), "run-name": "simulation"})
    return model(runs / "simulation")


def federation(keys: Keys, runs: Path, python: str) -> str:
    """Do the run on a link of this Flower and nodes of another Python's; return the hash of its model."""

    class Mixed(engine.Federation):
        def start(self, name: str, *command: str, **more: Any) -> None:
            with patch.object(sys, "executable", sys.executable if name == "link" else python):
                super().start(name, *command, **more)

    shares = {f"node-{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
    began = time.monotonic()
    with patch.object(engine, "Federation", Mixed), engine.federation(shares, runs) as fed:
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(LIMIT_S)
        fed.run(keys | {"run-name": "federation"})
        signal.alarm(0)
    print(f"     federation: {time.monotonic() - began:.0f} s", flush=True)
    return model(runs / "federation")


def too_long(*_: object) -> None:
    """End a run that takes too long."""
    raise TimeoutError(f"expected the run to end within {LIMIT_S} s")


def model(folder: Path) -> str:
    """Return the beginning of the hash of a run's model, if nobody was quarantined; else "FAIL"."""
    good = check(f"{folder.name}: nobody quarantined", not any(r["quarantined"] for r in rows(folder)))
    return sha(folder) if good else word(good)


def sha(folder: Path) -> str:
    """Return the beginning of the hash of a run's model."""
    return hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()[:16]


def word(holds: bool) -> str:
    """Return how the table calls it."""
    return "ok" if holds else "FAIL"


def simulate(keys: Keys) -> None:
    """Do a run in the simulation, in a process of its own."""
    pairs = " ".join(f"{k}={json.dumps(v)}" for k, v in keys.items())
    subprocess.run(
        [sys.executable, "-m", "server_app.cli.main", "run", "-c", pairs, "--nodes", "2"],
        check=True, stdout=subprocess.DEVNULL, env=os.environ.copy(),
    )  # fmt: skip


def rows(folder: Path, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """Return the rows of a run's table."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def stock_runs(keys: Keys, folder: Path) -> str:
    """Do two runs on Flower's own processes, an averaging one and one whose clients keep state.

    Each must end in the same model bytes as in the simulation, with every client's metrics equal.
    """
    home, runs = folder / "home", folder / "stock"
    home.mkdir()
    transport, good = "gRPC" if GRPC else "HTTP", True
    print(f"     Flower's own processes: {transport}, TLS, node keys", flush=True)
    nodes = [{"partition-id": i, "num-partitions": NODES, "run-paths": True} for i in range(NODES)]
    with stock(home, nodes) as link:
        for name, more in RUNS.items():
            ours = keys | more | {"runs-dir": str(runs)}
            simulate(ours | {"run-name": f"{name}-simulated", "state-dir": str(runs / "state-simulated")})
            link.run(ours | {"min-nodes": NODES, "run-name": name, "state-dir": str(runs / "state")})
            good &= compare(runs / f"{name}-simulated", runs / name)
        if not good:
            print(link.logs())
    return word(good)


def compare(simulated: Path, deployed: Path) -> bool:
    """Hold a deployed run to the simulated one."""
    name, both = deployed.name, (simulated, deployed)
    if not check(f"{name}: the run ends with a result", (deployed / "result.json").exists()):
        return False
    models = [(model(f), [r["model_sha256"] for r in rows(f)]) for f in both]
    clients = [
        sorted(
            (r["round"], r["name"], r["phase"], json.dumps(r["metrics"], sort_keys=True))
            for r in rows(f, "clients.jsonl")
        )
        for f in both
    ]
    return all(
        (
            check(f"{name}: the same model bytes as in the simulation", models[0] == models[1]),
            check(f"{name}: the same metrics of every client", clients[0] == clients[1]),
        )
    )


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(prog="tests.compat.version", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for the results")
    parser.add_argument("--nodes", default="", help="Python of the nodes, if it is another")
    parser.add_argument("--simulation", action="store_true", help="nothing but the simulation")
    parser.add_argument("--stock", action="store_true", help="also on Flower's own processes")
    options = parser.parse_args()
    print(f"==== flwr {version('flwr')}", flush=True)
    keys = dict(read_recipe("demo")) | {"progress": "none"}
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as folder:
        runs = Path(folder, "runs")
        checks: dict[str, Callable[[], str]] = {
            "federation": lambda: federation(keys, runs, options.nodes or sys.executable)
        }
        if options.simulation:
            checks = {"simulation": lambda: simulation(keys, runs)}
        elif not options.nodes:
            checks = {"names": names, "tests": tests, "simulation": lambda: simulation(keys, runs)} | checks
        if options.stock:
            checks["stock"] = lambda: stock_runs(keys, Path(folder))
        found = {}
        for what, one in checks.items():
            try:
                found[what] = one()
            except Exception as err:  # of any kind: the other checks go on
                found[what] = word(check(f"{what}: {err}", False))
        options.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

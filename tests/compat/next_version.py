"""``python -m tests.compat.next_version --out FILE``: what `tests.compat` checks on a *next* Flower.

The recipe ``demo`` in the simulation; on a link and three nodes, one of which is killed and started again;
and on that link as a run that ends early and is resumed. The link must say what it does without. FILE gets
the results in JSON: "ok", "FAIL" or the hash of a model, by check.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

from server_app.deploy.link.status import YELLOW, last_round, read_status
from server_app.engines import federation as engine
from task.config.read import read_recipe
from tests.compat.version import LIMIT_S, NODES, Keys, check, sha, simulation, too_long, word

KILLED = "node-1"


class Killing(engine.Federation):
    """A federation that kills a node in round 3 of its first run, and starts it again."""

    killing: threading.Thread | None = None

    def start_nodes(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Start the nodes, and wait for the death of one."""
        super().start_nodes(nodes)
        self.killing = threading.Thread(target=self._kill, args=nodes[KILLED], daemon=True)
        self.killing.start()

    def _kill(self, *options: str) -> None:
        while not (self.job and last_round(self.kit.runs / self.job.name / "rounds.jsonl") >= 2):
            time.sleep(0.1)
        node = self.node(KILLED)
        for process in (node, *node.children(recursive=True)):
            process.kill()
        self.start(KILLED, "node", str(self.kit.path.parent / KILLED), *options)


def federation(keys: Keys, runs: Path) -> dict[str, str]:
    """Do the two runs on a link; return the hashes of their models, and whether its status is yellow."""
    shares = {f"node-{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
    with patch.object(engine, "Federation", Killing), engine.federation(shares, runs) as fed:
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(3 * LIMIT_S)
        began = time.monotonic()
        fed.run(keys | {"run-name": "killed"})
        print(f"     federation: {time.monotonic() - began:.0f} s", flush=True)
        assert isinstance(fed, Killing)
        assert fed.killing is not None
        done = check(f"{KILLED} was killed during the run", not fed.killing.is_alive())
        status = read_status(fed.kit)
        print(*(f"     {line}" for line in status["flower"]), sep="\n", flush=True)
        said = [line for line in status["warnings"] if line in status["flower"][1:]]
        yellow = check(f"status: {status['state']}", status["state"] == YELLOW and bool(said))
        fed.run(keys | {"run-name": "resumed", "num-server-rounds": 3})
        fed.run(keys | {"run-name": "resumed", "resume": True})
        signal.alarm(0)
    return {
        "killed node": sha(runs / "killed") if done else word(done),
        "resumed": sha(runs / "resumed"),
        "status": word(yellow),
    }


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(prog="tests.compat.next_version", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for the results")
    options = parser.parse_args()
    print(f"==== flwr {version('flwr')}, of our making", flush=True)
    keys = dict(read_recipe("demo")) | {"progress": "none"}
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as folder:
        runs = Path(folder, "runs")
        found = {"simulation": simulation(keys, runs)} | federation(keys, runs)
        options.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

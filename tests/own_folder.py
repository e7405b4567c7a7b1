"""``python -m tests.own_folder [--only fedavg,krum]``: a user's folder under an algorithm of each family.

The folder has net.py, a convolutional model with batch normalisation and a loss, data.py, a data set and its
partition, and rules.py, a rule with a solver and a phase of its own. Each algorithm, and that rule, trains it
in the simulation, under `flwr run` through a local SuperLink, and on a link with two nodes over TLS whose
policies allow the three packages. Rounds' models and clients' numbers must be the same in all three. Prints a
table; exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server_app.engines.federation import federation
from task import trust
from task.catalogue.algorithms import ALGORITHMS
from task.references import CODE, references_in
from tests.support.brought import NET
from tests.support.flwr_run import flwr_run, local_superlink

LOSS = '''

def poly(outputs, targets):
    """Poly-1: cross-entropy plus 1 - p of the right class, of each example."""
    log_p = torch.log_softmax(outputs, 1).gather(1, targets[:, None])[:, 0]
    return 1 - log_p.exp() - log_p
'''
DATA = '''
import numpy as np
from sklearn.datasets import load_digits


def load(data_dir):
    digits = load_digits()
    x, y = digits.images[:600, None].astype(np.float32) / 16, digits.target[:600]
    return x[:480], y[:480], x[480:], y[480:]


def deal(labels, num_clients, rng):
    """Each client has more of some digits than of the others."""
    return np.array_split(np.argsort(labels + rng.normal(0, 2, len(labels))), num_clients)
'''
RULES = """
from dataclasses import replace

from client_app.solvers.sgd import proximal
from bouquet.extend import ALGORITHMS, Rule, Solver

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
KEYS: dict[str, str | int | float] = {
    "model": "net:Small", "loss": "net:poly", "dataset": "data:load", "partition": "data:deal",
    "num-clients": 6, "num-server-rounds": 3, "fraction-train": 0.7, "local-test-fraction": 0.25,
    "fraction-evaluate": 1.0, "learning-rate": 0.05, "device": "cpu", "progress": "none",
}  # fmt: skip
OWN = "rules:Pulled"
FAMILIES = {
    "fedavg": "averaging",
    "fedprox": "proximal",
    "fedadam": "adaptive server",
    "scaffold": "control variates",
    "qfedavg": "fair",
    "fsvrg": "variance-reduced, two phases",
    "fedatt": "attentive",
    "krum": "robust",
    "fedbn": "personal layers",
    "ditto": "personal model",
    "fedala": "personal mixture",
    "apple": "models by client",
    OWN: "a rule, a solver, a phase",  # the user's own
}
WAYS = ("simulation", "flwr run", "federation")
NODES, LIMIT_S = 2, 120  # of one run on the link
Found = tuple[str, ...]  # the hash of the last model, then what else must be equal


def make_folder(folder: Path) -> None:
    """Write the user's folder."""
    folder.mkdir()
    (folder / "net.py").write_text(NET + LOSS)
    (folder / "data.py").write_text(DATA)
    (folder / "rules.py").write_text(RULES)


def found(run: Path) -> Found:
    """Return what a run ended in: each round's model, the last first, and clients' numbers by round.

    Raises:
        RuntimeError: It trained nothing, or a client was quarantined.
    """
    rounds, clients = (
        [json.loads(line) for line in (run / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "clients.jsonl")
    )
    models = [row["model_sha256"] for row in reversed(rounds)]
    if bad := [line for row in rounds for line in row["quarantined"]]:
        raise RuntimeError(f"{run.name}: quarantined: {bad[0]}")
    if len(models) < 3 or models[0] == models[-1]:
        raise RuntimeError(f"{run.name}: expected rounds of training; got {len(models) - 1} rounds")
    numbers = [[row["round"], row["phase"], row["name"], row["metrics"]] for row in clients]
    numbers += [[row["round"], "", "", {k: row[k] for k in row if k.startswith("client_")}] for row in rounds]
    return (*models, *sorted(json.dumps(row, sort_keys=True) for row in numbers))


def keys_of(algorithm: str, way: str) -> dict[str, str | int | float]:
    """Return the keys that differ by run."""
    return {"algorithm": algorithm, "run-name": re.sub("[: ]", "-", f"{algorithm}-{way}")}


def text(keys: dict[str, str | int | float]) -> str:
    """Return keys as `-c` takes them."""
    return " ".join(f"{k}={json.dumps(v)}" for k, v in keys.items())


def bouquet(env: dict[str, str], folder: Path, *arguments: str) -> str:
    """Run a command of ours in the user's folder; return what it printed."""
    line = [sys.executable, "-m", "server_app.cli.main", *arguments]
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


Start = Callable[
    [str, str], str
]  # does the run of an algorithm, given with the way; returns what was printed


@contextmanager
def all_ways(folder: Path, work: Path) -> Iterator[dict[str, Start]]:
    """Give what starts a run, by way: one local SuperLink and one federation serve all algorithms."""
    nodes = {f"node-{i + 1}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
    with local_superlink(work) as env, federation(nodes, folder / "runs", ["data", "net", "rules"]) as fed:

        def simulate(algorithm: str, way: str) -> str:
            return bouquet(env, folder, "run", "-c", text(KEYS | keys_of(algorithm, way)))

        def flower(algorithm: str, way: str) -> str:
            return flwr_run(env, folder, text(keys_of(algorithm, way)))

        def deploy(algorithm: str, way: str) -> str:
            keys = KEYS | keys_of(algorithm, way)
            trust.user_named(references_in(keys))  # as the command does with what its user types
            signal.alarm(LIMIT_S)
            try:
                fed.run(keys)
            finally:
                signal.alarm(0)
            return fed.logs()

        output = bouquet(env, folder, "app", ".", "-c", text(KEYS))
        if not (folder / "pyproject.toml").exists():
            raise RuntimeError(output)
        yield dict(zip(WAYS, (simulate, flower, deploy), strict=True))


def try_one(start: Start, runs: Path, algorithm: str, way: str) -> Found:
    """Do one run; return what it ended in, empty if it failed, which is printed."""
    began, output = time.monotonic(), ""
    try:
        output = start(algorithm, way)
        ended = found(runs / str(keys_of(algorithm, way)["run-name"]))
    except Exception as err:  # of any kind: the other runs go on
        print(f"FAIL {algorithm}, {way}: {err}\n{output[-3000:]}", flush=True)
        return ()
    print(f"ok   {algorithm}, {way}: {time.monotonic() - began:.0f} s", flush=True)
    return ended


def line(algorithm: str, ended: dict[str, Found]) -> tuple[bool, str]:
    """Return whether an algorithm's runs ended in the same, and its line of the table."""
    same = all(ended.values()) and len(set(ended.values())) == 1
    hashes = {way: one[0][:16] if one else "failed" for way, one in ended.items()}
    differs = "models differ" if len(set(hashes.values())) > 1 else "numbers differ"
    verdict = "same" if same else differs if all(ended.values()) else "failed"
    cells = [f"{algorithm:14}{FAMILIES.get(algorithm, ''):30}", *(f"{h:18}" for h in hashes.values())]
    return same, "".join([*cells, verdict])


def too_long(*_: Any) -> None:
    """End a run on the link that hangs."""
    raise TimeoutError(f"expected the run to end within {LIMIT_S} s")


def main() -> int:
    """Run all of it; return 1 if something differs or failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.own_folder", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(FAMILIES), help="algorithms (default: %(default)s)")
    chosen = parser.parse_args().only.split(",")
    if unknown := [name for name in chosen if name not in {*ALGORITHMS, *FAMILIES}]:
        parser.error(f"--only: expected names of `bouquet algorithms` or {OWN}; got {unknown[0]!r}")
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as work:
        folder = Path(work, "mine")
        make_folder(folder)
        os.environ |= {CODE: str(folder), "BOUQUET_CACHE": str(Path(work, "cache"))}
        with all_ways(folder, Path(work)) as starts:
            ended = {
                name: {way: try_one(start, folder / "runs", name, way) for way, start in starts.items()}
                for name in chosen
            }
    table = [line(name, ways) for name, ways in ended.items()]
    print("".join([f"{'algorithm':14}{'family':30}", *(f"{way:18}" for way in WAYS)]).rstrip())
    print("\n".join(words for _, words in table))
    return 0 if all(same for same, _ in table) else 1


if __name__ == "__main__":
    sys.exit(main())

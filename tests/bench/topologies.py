"""Topologies on the same clients, the tables of task/recipes/README.md: ``python -m tests.bench.topologies``.

Runs the scene ``topologies`` with each seed, on as many nodes as there are clients, so that bytes are those
of clients that each have a node. An exchange is one message down and its reply; exchanges and sequential
epochs are those that follow one after the other.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from contextlib import redirect_stdout
from statistics import fmean, stdev
from typing import Any

from server_app.engines.simulate import simulate
from server_app.results.folder import RunFolder
from task.config.read import scene_runs
from task.resolve.read import read_config

SCENE = "topologies"


def sequential(keys: dict[str, Any]) -> int:
    """Return how many trainings of a round follow one after the other."""
    config = read_config(keys)
    if config.server.selection == "cycle":
        return config.data.num_clients
    hierarchical = config.algorithm == "hierfavg" and config.hierfavg.kappa2 > 1
    return config.hierfavg.kappa2 * config.hierfavg.edges if hierarchical else 1


def figures_of(keys: dict[str, Any], folder: str) -> dict[str, float]:
    """Run once; return what the table shows."""
    config = read_config(keys)
    with redirect_stdout(io.StringIO()):  # the closing table
        result = simulate({**keys, "runs-dir": folder}, nodes=config.data.num_clients)
    rows = RunFolder(result.path).rounds()
    last = rows[-1]
    found = {k: float(v) for k, v in last["metrics"].items()}
    rounds = config.server.num_server_rounds
    return found | {
        "accuracy": last["accuracy"],
        "exchanges": rounds * sequential(keys),
        "epochs": rounds * sequential(keys) * config.train.local_epochs,
        "MB": sum(row["bytes_down"] + row["bytes_up"] for row in rows) / 1e6,
    }


def main() -> None:
    """Run the scene, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.topologies", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    parser.add_argument("--partition", default="shards", help="shards or iid")
    parser.add_argument("--only", default="", help="runs whose names contain this")
    parser.add_argument("--set", default="", help="further keys of all runs, as bouquet run -c takes them")
    options = parser.parse_args()
    from task.config.options import parse_options

    more = parse_options([options.set] if options.set else [])
    heads = ("run", "accuracy", "nodes or hops, mean", "worst", "D", "exchanges", "sequential epochs", "MB")
    print("| " + " | ".join(heads) + " |")
    print("|---|---|---|---|---|---|---|---|")
    began = time.perf_counter()
    for run, keys in scene_runs(SCENE).items():
        if options.only not in run:
            continue
        given = keys | more | ({} if run == "pooled" else {"partition": options.partition})
        with tempfile.TemporaryDirectory() as folder:
            found = [
                figures_of(given | {"seed": seed, "run-name": f"{run}-{seed}"}, folder)
                for seed in range(1, options.seeds + 1)
            ]

        def cell(name: str, found: list[dict[str, float]] = found) -> str:
            values = [f[name] for f in found if name in f]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            return f"{fmean(values):.3f}{spread}" if values else ""

        plain = [f"{found[0][k]:.0f}" for k in ("exchanges", "epochs")] + [
            f"{fmean(f['MB'] for f in found):.2f}"
        ]
        shown = [cell(k) for k in ("accuracy", "accuracy-mean", "accuracy-worst", "consensus-distance")]
        print("| " + " | ".join([f"`{run}`", *shown, *plain]) + " |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

"""Families of algorithms on the same splits, seeds and budgets: ``python -m tests.bench.families``.

Runs every algorithm of a family on the same clients of MNIST, its own keys at their defaults, and with the
same learning rates, of which each takes the best. Accuracy is that of the global model on the test set, mean
of the last five rounds, or that of the clients' own models over their own test examples, mean of rounds 20,
25 and 30. The real clients, rules and messages run in this process, and what is not counted is not measured.
Bytes are those of clients that each have a node, seconds those of this process's CPU. An algorithm
that this work refuses gives no row, and a line on stderr says why.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, NamedTuple

import torch
import typer
from flwr.app import ArrayRecord, MetricRecord

from server_app.run.evaluate import central_evaluation
from task.catalogue.algorithms import ALGORITHMS
from task.datasets.skew import load_partitioned
from task.errors import BouquetError
from task.resolve.read import fuse, read_config
from task.resolve.run_model import model_of
from tests.support.federation import play

COMMON: dict[str, Any] = {
    "dataset": "mnist",
    "model": "mlp",
    "num-clients": 50,
    "max-examples": 6000,
    "local-test-fraction": 0.25,
    "fraction-train": 0.2,
    "local-epochs": 2,
    "batch-size": 10,
    "num-server-rounds": 30,
    "progress": "none",
    "keep-state": False,
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "shards": {"partition": "shards"},  # two a client, as McMahan et al.
    "dirichlet": {"partition": "dirichlet", "dirichlet-alpha": 0.1},
}


class Family(NamedTuple):
    """Who is compared, and how."""

    measure: str  # in rounds.jsonl
    last: int  # evaluations that count
    keys: dict[str, Any]
    names: tuple[str, ...]


def _of(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, entry in ALGORITHMS.items() if entry.group in groups)


FAMILIES = {
    "global": Family("accuracy", 5, {}, _of("global", "fair")),
    "own": Family(
        "client_accuracy",
        3,
        {"fraction-evaluate": 1.0, "evaluate-every": 0, "client-evaluate-every": 5},
        ("local-only", "fedavg", *_of("own")),
    ),
}
# Pictures, at a fraction of the examples and rounds that a paper has: 3,000 of the subset's
# 24,000 for training, 20 clients, 20 rounds of one epoch. FedBN is left out: LeNet has nothing to normalise.
CIFAR10: dict[str, Any] = {
    "dataset": "cifar10",
    "model": "lenet",
    "num-clients": 20,
    "max-examples": 3000,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "num-server-rounds": 20,
}
FAMILIES |= {
    f"cifar10-{name}": family._replace(
        keys=family.keys | CIFAR10, names=tuple(n for n in family.names if n != "fedbn")
    )
    for name, family in tuple(FAMILIES.items())
}
# What an algorithm needs to run at all.
NEEDS: dict[str, dict[str, Any]] = {"fedbn": {"model": "mlp-bn"}}
Found = dict[str, float]


def _rows(keys: dict[str, Any], nodes: int, last: int) -> Sequence[dict[str, Any]]:
    """Return a run's rows; the server measures the `last` models only."""
    read = fuse({"device": "cpu", **keys}, {})[0]  # those that the algorithm reads
    config = read_config(read)
    dataset = load_partitioned(config)[0]
    model = model_of(config, dataset.input_shape, dataset.num_classes)
    measure = (
        central_evaluation(model, dataset, torch.device("cpu")) if config.server.evaluate_every else None
    )
    first = config.server.num_server_rounds - last

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        return measure(server_round, arrays) if measure and server_round > first else None

    return play(read, nodes=nodes, evaluate_fn=evaluate if measure else None).rows


def figures_of(family: Family, keys: dict[str, Any], MB: float | None) -> Found:
    """Run once; return accuracy, MB up a round with a node for each client unless known, seconds of CPU."""
    began = time.process_time()
    rows = _rows(keys, 2, family.last)
    seconds = time.process_time() - began
    values = [row[family.measure] for row in rows if row[family.measure] is not None]
    if MB is None:  # the bytes of a second round, when nobody but one client is measured
        short = {"num-server-rounds": 2, "fraction-evaluate": 1 / keys["num-clients"]}
        MB = _rows(keys | short, keys["num-clients"], 1)[-1]["bytes_up"] / 1e6
    return {"accuracy": 100 * fmean(values[-family.last :]), "MB": MB, "seconds": seconds}


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


def table(found: dict[str, Found], name: str, partitions: Sequence[str]) -> str:
    """Return the family's rows as Markdown, the best on the first partition first; the best are bold."""
    # Of each algorithm and partition the rate with the best mean over its seeds.
    best: dict[str, dict[str, tuple[str, list[Found]]]] = {}
    for algorithm in FAMILIES[name].names:
        for partition in partitions:
            by_rate: dict[str, list[Found]] = {}
            for key, figures in found.items():
                if key.startswith(f"{name} {algorithm} {partition} "):
                    by_rate.setdefault(key.split()[3], []).append(figures)
            if by_rate:
                best.setdefault(algorithm, {})[partition] = max(by_rate.items(), key=lambda i: _mean(i[1]))
    most = {p: max((_mean(c[p][1]) for c in best.values() if p in c), default=0.0) for p in partitions}
    columns = [f"{p} | rate" for p in partitions]
    lines = [
        f"| algorithm | {' | '.join(columns)} | seeds | MB up a round | CPU, s |",
        "|---" * (2 * len(partitions) + 4) + "|",
    ]
    for algorithm, cells in sorted(best.items(), key=lambda item: -_mean(next(iter(item[1].values()))[1])):
        columns = []
        for p in partitions:
            rate, runs = cells.get(p, ("", []))
            text = _cell([f["accuracy"] for f in runs]) if runs else ""
            columns.append(f"{f'**{text}**' if runs and _mean(runs) == most[p] else text} | {rate}")
        runs = [f for _, group in cells.values() for f in group]
        MB, seconds = (fmean(f[k] for f in runs) for k in ("MB", "seconds"))
        seeds = min(len(group) for _, group in cells.values())
        lines.append(f"| `{algorithm}` | {' | '.join(columns)} | {seeds} | {MB:.2f} | {seconds:.1f} |")
    return "\n".join(lines)


def _mean(runs: Sequence[Found]) -> float:
    return fmean(f["accuracy"] for f in runs)


def main(
    family: Annotated[
        str, typer.Option(help="global, own, cifar10-global, cifar10-own, or some with commas")
    ] = "global,own",
    partitions: Annotated[str, typer.Option(help="shards, dirichlet, or both")] = "shards,dirichlet",
    seeds: Annotated[int, typer.Option(help="seeds 1, 2, ...")] = 1,
    rates: Annotated[str, typer.Option(help="learning rates that each algorithm tries")] = "0.05",
    only: Annotated[str, typer.Option(help="algorithms; default: all")] = "",
    out: Annotated[Path, typer.Option(help="JSON file that takes and gives what was measured")] = Path(
        "docs/results/families.json"
    ),
) -> None:
    """Do the runs that are not in `out` yet and print a table for each family."""
    torch.set_num_threads(1)
    found: dict[str, Found] = {}
    if out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))
    for name in family.split(","):
        group = FAMILIES[name]
        for partition, rate, seed, algorithm in (
            (partition, rate, seed, algorithm)
            for seed in range(1, seeds + 1)
            for rate in rates.split(",")
            for partition in partitions.split(",")
            for algorithm in group.names
        ):
            key = f"{name} {algorithm} {partition} {rate} {seed}"
            if key in found or (only and algorithm not in only.split(",")):
                continue
            keys = COMMON | group.keys | PARTITIONS[partition] | NEEDS.get(algorithm, {})
            keys |= {"algorithm": algorithm, "learning-rate": float(rate), "seed": seed}
            try:
                same = (f["MB"] for k, f in found.items() if k.startswith(f"{name} {algorithm} "))
                found[key] = figures_of(group, keys, next(same, None))
            except BouquetError as error:
                print(f"{key}: {error}", file=sys.stderr, flush=True)
                continue
            print(key, {k: round(v, 2) for k, v in found[key].items()}, file=sys.stderr, flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(table(found, name, partitions.split(",")), flush=True)


if __name__ == "__main__":
    typer.run(main)

"""Accuracy against epsilon on MNIST, the tables of task/recipes/README.md.

    python -m tests.bench.privacy --models logistic,mlp --seeds 3
    python -m tests.bench.privacy --clients 10000 --models logistic --seeds 3
    python -m tests.bench.privacy --clients 10 --seeds 3

1,000 clients of 60 examples, 100 expected in a round, or 10,000 clients of six, 300 expected: 100 rounds,
FedAvg with server momentum, adaptive clipping. Ten clients are the hospitals of recipe mnist-dp-hospitals,
with privacy for each example. Of each run: accuracy on the test set, and over the clients' own training
examples, mean and mean of the worst tenth. The last two are measured by this script, which has everybody's
data; a private run itself measures nothing on clients.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from server_app.engines.simulate import simulate
from server_app.results.folder import RunFolder
from task.config.knobs import Config
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.resolve.read import read_config
from task.resolve.run_model import model_of

COMMON: dict[str, Any] = {
    "dataset": "mnist",
    "local-test-fraction": 0.0,
    "progress": "none",
    "keep-state": False,
}


AVERAGED: dict[str, Any] = {
    "num-server-rounds": 100, "evaluate-every": 100, "algorithm": "fedavgm", "fedavgm.nesterov": False,
}  # fmt: skip


class Population(NamedTuple):
    """So many clients: z by epsilon, keys of all their runs, of private ones, and the best rates found."""

    noise: dict[int, float]
    keys: dict[str, Any]
    private: dict[str, Any]
    rate: str  # the key of the learning rate in `rates`, by model and epsilon, 0 = no noise
    rates: dict[str, dict[int, float]]


POPULATIONS = {
    10: Population(
        {8: 0.708, 4: 0.938, 2: 1.384},
        {"num-server-rounds": 20, "evaluate-every": 20, "batch-size": 100},
        {"dp.clip": 1.0, "dp.delta": 1e-5, "dp.unit": "example"},
        "learning-rate",
        {"mlp": dict.fromkeys((0, 8, 4, 2), 1.0)},  # see task/recipes/README.md
    ),
    1000: Population(
        {8: 0.936, 4: 1.39, 2: 2.25},
        AVERAGED | {"fraction-train": 0.1},
        {"dp.clip": 0.1, "dp.clip-quantile": 0.5, "dp.delta": 1e-5},
        "fedavgm.server-lr",
        {  # of 0.1, 0.3 and 1 on seed 101, as far as tried
            "logistic": {0: 1.0, 8: 1.0, 4: 0.3, 2: 0.3},
            "mlp": {0: 1.0, 8: 0.3, 4: 0.3, 2: 0.1},
            "2nn": {0: 1.0, 8: 0.3, 4: 0.1, 2: 0.1},
        },
    ),
    10_000: Population(
        {8: 0.634, 4: 0.832, 2: 1.115},
        AVERAGED | {"fraction-train": 0.03},
        {"dp.clip": 0.1, "dp.clip-quantile": 0.5, "dp.delta": 1e-6},
        "fedavgm.server-lr",
        {
            "logistic": dict.fromkeys((0, 8, 4, 2), 1.0),
            "2nn": {0: 1.0, 8: 0.3, 4: 0.3, 2: 0.3},  # of 0.1, 0.3 and 1 on seed 101 for 2
        },
    ),
}
CHUNK = 4096


def over_clients(config: Config, model_file: Path) -> tuple[float, float]:
    """Return mean accuracy of the clients on their own training examples, and that of the worst tenth."""
    dataset = load_dataset(config.data, config.synthetic, config.seeds.data)
    partition = load_partition(dataset, config.data, config.seeds.data)
    model = model_of(config, dataset.input_shape, dataset.num_classes).eval()
    model.load_state_dict(load_file(model_file))
    rows = [partition.train(i) for i in range(len(partition.names))]
    pool, right = np.concatenate(rows), []
    with torch.inference_mode():
        for i in range(0, len(pool), CHUNK):
            chunk = pool[i : i + CHUNK]
            right.append(model(dataset.inputs(chunk)).argmax(1).numpy() == np.asarray(dataset.y)[chunk])
    parts = np.split(np.concatenate(right), np.cumsum([len(r) for r in rows])[:-1])
    accuracy = np.sort([part.mean() for part in parts])
    return float(accuracy.mean()), float(accuracy[: len(accuracy) // 10].mean())


def run(
    clients: int, model: str, goal: int, seed: int, partition: str, runs: Path
) -> tuple[float, float, float]:
    """Do one run; return accuracy on the test set, mean over clients, and their worst tenth."""
    population, name = POPULATIONS[clients], f"{model}-{partition}-{clients}-{goal}-{seed}"
    keys = COMMON | population.keys | {"model": model, "seed": seed, "partition": partition}
    keys |= {"num-clients": clients, population.rate: population.rates[model][goal]}
    keys |= {"runs-dir": str(runs), "run-name": name}
    if goal:
        keys |= population.private | {"dp.noise": population.noise[goal]}
    began = time.perf_counter()
    simulate(keys)
    seconds = time.perf_counter() - began
    folder = RunFolder(runs / name)
    result = folder.result() or {}
    assert not goal or result["privacy"]["epsilon"] <= goal
    found = (result["accuracy"], *over_clients(read_config(keys), folder.path / "model.safetensors"))
    print(name, *(f"{100 * f:.2f}" for f in found), f"{seconds:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    """Do the runs; print a row for each model and epsilon, and on stderr a line for each run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.privacy", description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, choices=POPULATIONS, default=1000)
    parser.add_argument("--models", help="names with commas between them; default: all of the clients' table")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--partition", default="iid")
    options = parser.parse_args()
    models = options.models.split(",") if options.models else POPULATIONS[options.clients].rates
    print(
        "| model | epsilon | test accuracy | clients, mean | worst tenth |\n|---|---|---|---|---|", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            for goal in (0, *POPULATIONS[options.clients].noise):
                found = [
                    run(options.clients, model, goal, seed, options.partition, Path(folder))
                    for seed in range(1, options.seeds + 1)
                ]
                cells = [_cell([100 * f[i] for f in found]) for i in range(3)]
                print(f"| {model} | {goal or '∞'} | {' | '.join(cells)} |", flush=True)


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()

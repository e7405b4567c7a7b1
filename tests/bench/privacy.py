"""Accuracy against epsilon on MNIST, the table of task/recipes/README.md.

    python -m tests.bench.privacy --models logistic,mlp --seeds 3

1,000 clients of 60 examples, 100 expected in a round, 100 rounds, delta = 1e-5, FedAvg with server momentum,
adaptive clipping. Of each run: accuracy on the test set, and over the clients' own training examples, mean
and mean of the worst tenth. The last two are measured by this script, which has everybody's data; a private
run itself measures nothing on clients.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from server_app.engines.simulate import simulate
from server_app.results.folder import RunFolder
from task.config.knobs import Config
from task.config.read import read_config
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.resolve.contract import model_of

NOISE = {8: 0.936, 4: 1.39, 2: 2.25}  # z by epsilon
# The server's learning rate by model and epsilon, 0 = no noise: the best of 0.1, 0.3 and 1 on seed 101, as
# far as tried.
RATES = {
    "logistic": {0: 1.0, 8: 1.0, 4: 0.3, 2: 0.3},
    "mlp": {0: 1.0, 8: 0.3, 4: 0.3, 2: 0.1},
    "2nn": {0: 1.0, 8: 0.3, 4: 0.1, 2: 0.1},
}
COMMON: dict[str, Any] = {
    "dataset": "mnist", "num-clients": 1000, "fraction-train": 0.1, "local-test-fraction": 0.0,
    "num-server-rounds": 100, "evaluate-every": 100, "algorithm": "fedavgm", "fedavgm.nesterov": False,
    "progress": "none", "keep-state": False,
}  # fmt: skip
PRIVATE: dict[str, Any] = {"dp.clip": 0.1, "dp.clip-quantile": 0.5, "dp.delta": 1e-5}
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


def run(model: str, goal: int, seed: int, partition: str, runs: Path) -> tuple[float, float, float]:
    """Do one run; return accuracy on the test set, mean over clients, and their worst tenth."""
    keys = COMMON | {"model": model, "seed": seed, "partition": partition, "runs-dir": str(runs)}
    keys |= {"run-name": f"{model}-{partition}-{goal}-{seed}", "fedavgm.server-lr": RATES[model][goal]}
    if goal:
        keys |= PRIVATE | {"dp.noise": NOISE[goal]}
    simulate(keys)
    folder = RunFolder(runs / str(keys["run-name"]))
    result = folder.result() or {}
    assert not goal or result["privacy"]["epsilon"] <= goal
    return (result["accuracy"], *over_clients(read_config(keys), folder.path / "model.safetensors"))


def main() -> None:
    """Do the runs; print a row for each model and epsilon."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.privacy", description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(RATES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--partition", default="iid")
    options = parser.parse_args()
    print(
        "| model | epsilon | test accuracy | clients, mean | worst tenth |\n|---|---|---|---|---|", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            for goal in (0, *NOISE):
                seeds = range(1, options.seeds + 1)
                found = [run(model, goal, seed, options.partition, Path(folder)) for seed in seeds]
                cells = [_cell([100 * f[i] for f in found]) for i in range(3)]
                print(f"| {model} | {goal or '∞'} | {' | '.join(cells)} |", flush=True)


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()

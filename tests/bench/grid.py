"""``python -m tests.bench.grid``: algorithms of one global model, each tuned over a small grid, in one table.

Every run is the recipe ``mnist-2nn-noniid-servers`` with the settings of `GRID`, real clients and messages in
this process (no Ray), and stops at the target. A run is a JSON file of the output folder and is not repeated
if it is there; the table is made of all files.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from client_app.app import make_app
from server_app.run.evaluate import central_evaluation
from strategies import STRATEGIES
from strategies.engine.journal import Journal
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import as_run_config, read_recipe
from task.datasets import load_dataset
from task.models import build_model
from task.numerics.arrays import state_of, trainable_names
from task.numerics.metrics import crossing
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.grid import LocalGrid

RECIPE = "mnist-2nn-noniid-servers"
GRID: dict[str, tuple[str, tuple[float, ...]]] = {
    "fedavg": ("learning-rate", (0.0464, 0.1, 0.215, 0.464)),
    "fedavgm": ("fedavgm.server-lr", (0.1, 0.316, 1.0, 3.16)),
    "fedadagrad": ("fedopt.server-lr", (0.01, 0.0316, 0.1, 0.316)),
    "fedadam": ("fedopt.server-lr", (0.00316, 0.01, 0.0316, 0.1)),
    "fedyogi": ("fedopt.server-lr", (0.00316, 0.01, 0.0316, 0.1)),
    "scaffold": ("learning-rate", (0.0464, 0.1, 0.215, 0.464)),
    "feddyn": ("feddyn.alpha", (0.001, 0.01, 0.1, 1.0)),
}


class Curve(Journal):
    """Keeps the accuracy of every round."""

    def __init__(self) -> None:
        self.accuracy: list[float] = []

    def round_done(self, row: Any, clients: Any, snapshot: Any, clock: Any) -> None:
        """Take the central accuracy; round 0 is the initial model."""
        self.accuracy.append(row["accuracy"])


class Forgetful(LocalGrid):
    """Keeps no messages."""

    def push_messages(self, messages: Any) -> Any:
        """Send them on."""
        self.sent.clear()
        return super().push_messages(messages)


def play(keys: dict[str, Any]) -> dict[str, Any]:
    """Run to the target or to the last round; return settings, accuracies and seconds of CPU."""
    began = time.process_time()
    config = read_config(keys)
    strategy = STRATEGIES[ALGORITHMS[config.algorithm].rule](config)
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, config.seed)
    curve = Curve()
    strategy.start(
        Forgetful(
            make_app(simulation=True), [{"partition-id": 0, "num-partitions": 1}], as_run_config(config)
        ),
        wire.pack_arrays(state_of(model)),
        num_rounds=config.server.num_server_rounds,
        evaluate_fn=central_evaluation(model, dataset, torch.device("cpu")),
        journal=curve,
        trainable=trainable_names(model),
    )
    return {"keys": keys, "accuracy": curve.accuracy, "cpu_s": round(time.process_time() - began, 1)}


def table(found: list[dict[str, Any]], target: float) -> str:
    """Return the best run of each algorithm as a Markdown table, and what the other settings gave."""
    lines = [f"| algorithm | knob | best | rounds to {target:g} | others |", "|---|---|---|---|---|"]
    for name, (key, values) in GRID.items():
        runs = {
            r["keys"][key]: outcome(r["accuracy"], target) for r in found if r["keys"]["algorithm"] == name
        }
        ranked = sorted((v for v in values if v in runs), key=lambda v: runs[v][0])
        if ranked:
            others = "; ".join(f"{v:g}: {runs[v][1]}" for v in sorted(ranked[1:]))
            title = ALGORITHMS[name].title
            lines.append(f"| {title} | `{key}` | {ranked[0]:g} | {runs[ranked[0]][1]} | {others} |")
    return "\n".join(lines)


def outcome(accuracy: list[float], target: float) -> tuple[tuple[float, float], str]:
    """Return how a run ranks and what to say of it: rounds to the target, else the best accuracy."""
    rounds = crossing(list(range(len(accuracy))), accuracy, target)
    best = max(accuracy)
    if rounds is None:
        return (float("inf"), -best), f"not ({100 * best:.2f} % by round {len(accuracy) - 1})"
    return (rounds, -best), f"{rounds:.0f}"


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Algorithms of the grid; none = all.")] = None,
    rounds: Annotated[int, typer.Option(help="Most rounds of a run.")] = 700,
    target: Annotated[float, typer.Option(help="Accuracy on the test set.")] = 0.97,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/grid"),
) -> None:
    """Run what is missing and print the table."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    recipe = read_recipe(RECIPE) | {"num-server-rounds": rounds, "target-accuracy": target, "device": "cpu"}
    for name in only or [n for n in GRID if n in ALGORITHMS]:
        key, values = GRID[name]
        for value in values:
            path = out / f"{name}-{value:g}.json"
            if not path.exists():
                played = play(recipe | {"algorithm": name, key: value})
                path.with_suffix(".tmp").write_text(json.dumps(played), encoding="utf-8")
                os.replace(path.with_suffix(".tmp"), path)
                print(path.name, outcome(played["accuracy"], target)[1], f"{played['cpu_s']} s", flush=True)
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(out.glob("*.json"))]
    Console().print(table(found, target), soft_wrap=True, markup=False, highlight=False)


if __name__ == "__main__":
    typer.run(main)

"""Accuracy of every robust rule and of FedAvg under every attack: ``python -m tests.bench.robustness``.

Plays the recipe ``mnist-2nn-attacked`` for each pair of rule and attack, with the real clients, rules and
messages in one process, and writes a heat map, and the figures next to it as JSON. A cell is the accuracy of
the last model on all test examples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from client_app.training.programs import Single
from task.config.read import fuse, read_config, read_recipe
from task.datasets import load_dataset
from task.models import build_model
from task.numerics.evaluate import measure
from task.spec.algorithms import ALGORITHMS
from tests.support.federation import play

RECIPE = "mnist-2nn-attacked"
RULES = ["fedavg", *sorted(name for name, entry in ALGORITHMS.items() if entry.withstands)]
# Kind and strength. z_max for 4 of 20 is 0.16, which no rule notices and none needs to; 1.5 is beyond it.
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"attack.kind": "none"},
    "sign flip, s = 4": {"attack.kind": "sign-flip", "attack.scale": 4.0},
    "scaled, s = 10": {"attack.kind": "scale", "attack.scale": 10.0},
    "Gaussian, s = 1": {"attack.kind": "gaussian", "attack.scale": 1.0},
    "label flip": {"attack.kind": "label-flip"},
    "little is enough, z = 1.5": {"attack.kind": "little-is-enough", "attack.scale": 1.5},
}


def accuracy(keys: dict[str, Any]) -> float:
    """Run a federation and return the accuracy of its last model on all test examples."""
    config = read_config(keys)
    played = play(keys, nodes=1)
    last = len(played.rows) - 1
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, seed=0)
    Single(model).load(played.arrays(last), 1)
    rows = dataset.test_rows
    return float(measure(model, dataset.inputs(rows), dataset.targets(rows))[0]["accuracy"])


def table(keys: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return accuracies by rule and attack; prints each when it is there."""
    torch.set_num_threads(1)
    out: dict[str, dict[str, float]] = {}
    for rule in RULES:
        for attack, more in ATTACKS.items():
            own = {**more, "algorithm": rule, "device": "cpu", **keys}
            got = accuracy(fuse(read_recipe(RECIPE), own)[0])
            out.setdefault(rule, {})[attack] = got
            print(f"{rule:<18} {attack:<26} {got:.4f}", flush=True)
    return out


def draw(found: dict[str, dict[str, float]], path: Path, title: str) -> None:
    """Write the heat map."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    attacks = list(next(iter(found.values())))
    values = [[found[rule][attack] for attack in attacks] for rule in found]
    figure, axes = pyplot.subplots(figsize=(8.4, 4.6), layout="constrained")
    image = axes.imshow(values, cmap="RdYlGn", vmin=0.0, vmax=1.0, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axes.text(j, i, f"{100 * value:.1f}", ha="center", va="center")
    axes.set_xticks(range(len(attacks)), [a.replace(", ", "\n") for a in attacks])
    axes.set_yticks(range(len(found)), [ALGORITHMS[rule].title for rule in found])
    axes.set_title(title)
    figure.colorbar(image, label="test accuracy")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(
    out: Annotated[Path, typer.Option(help="The plot; the figures are written next to it.")] = Path(
        "runs/robustness.png"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds; 0 = the recipe's.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 1,
    data_dir: Annotated[str, typer.Option(help='MNIST; "" = $BOUQUET_DATA.')] = "",
) -> None:
    """Play every rule under every attack and draw the heat map."""
    keys: dict[str, Any] = {"seed": seed, "data-dir": data_dir}
    if rounds:
        keys["num-server-rounds"] = rounds
    config = read_config({**read_recipe(RECIPE), **keys})
    found = table(keys)
    K, bad = config.data.num_clients, round(config.attack.fraction * config.data.num_clients)
    rounds = config.server.num_server_rounds
    draw(found, out, f"MNIST 2NN, {bad} of {K} clients malicious: test accuracy after {rounds} rounds (%)")
    out.with_suffix(".json").write_text(
        json.dumps({"keys": keys, "accuracy": found}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    typer.run(main)

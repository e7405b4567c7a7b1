"""Accuracy of every robust rule and of FedAvg under every attack: ``python -m tests.bench.robustness``.

Plays the recipe ``mnist-2nn-attacked`` for each pair of rule and attack, with the real clients, rules and
messages in one process, and writes a heat map, and the figures next to it as JSON. A cell is the accuracy of
the last model on all test examples; with a backdoor there is the share of examples that its patch brings to
the target, too. Pairs that the JSON file has are not played again. A rule that does not withstand as many
attackers has no cells.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from client_app.training.programs import Single
from server_app.run.evaluate import attack_success
from task.config.attack_section import BACKDOORS
from task.config.options import parse_options
from task.config.read import fuse, read_config, read_recipe
from task.datasets import load_dataset
from task.errors import BouquetError
from task.models import build_model
from task.numerics.evaluate import measure
from task.spec.algorithms import ALGORITHMS
from task.tasks.kinds import CLASSIFICATION
from tests.support.federation import play

RECIPE = "mnist-2nn-attacked"
RULES = ["fedavg", *sorted(name for name, entry in ALGORITHMS.items() if entry.group == "robust")]
# Kind and strength. z_max for 4 of 20 is 0.16, which no rule notices and none needs to; 1.5 is beyond it.
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"attack.kind": "none"},
    "sign flip, s = 4": {"attack.kind": "sign-flip", "attack.scale": 4.0},
    "scaled, s = 10": {"attack.kind": "scale", "attack.scale": 10.0},
    "Gaussian, s = 1": {"attack.kind": "gaussian"},
    "label flip": {"attack.kind": "label-flip"},
    "little is enough, z = 1.5": {"attack.kind": "little-is-enough", "attack.deviations": 1.5},
    "inner product, s = 4": {"attack.kind": "inner-product", "attack.scale": 4.0},
    "min-max": {"attack.kind": "min-max"},
    "min-sum": {"attack.kind": "min-sum"},
    "mimic": {"attack.kind": "mimic"},
    "backdoor": {"attack.kind": "backdoor"},
    "backdoor in four parts": {"attack.kind": "distributed-backdoor", "attack.scale": 0.0},
    "model replacement, s = 20": {"attack.kind": "model-replacement", "attack.scale": 20.0},
}
Figures = dict[str, dict[str, float]]  # by rule and attack


def measured(keys: dict[str, Any]) -> tuple[float, float | None]:
    """Run a federation; return its last model's accuracy on all test examples, and a backdoor's success."""
    config = read_config(keys)
    played = play(keys, nodes=1)
    last = len(played.rows) - 1
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, seed=0)
    Single(model).load(played.arrays(last), 1)
    x, y = dataset.inputs(dataset.test_rows), dataset.targets(dataset.test_rows)
    accuracy = float(measure(model, x, y)[0]["accuracy"])
    if config.attack.kind not in BACKDOORS:
        return accuracy, None
    attack = config.attack
    return accuracy, attack_success(model, x, y, attack.target, CLASSIFICATION, parts=attack.parts)


def table(recipe: dict[str, Any], keys: dict[str, Any], out: Path) -> tuple[Figures, Figures]:
    """Return accuracies and backdoors' successes by rule and attack; prints and writes each as it comes."""
    torch.set_num_threads(1)
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    meant = {**keys, **({"attackers": recipe["attack.fraction"]} if recipe["attack.fraction"] != 0.2 else {})}
    if kept.get("keys", meant) != meant:
        raise typer.BadParameter(
            f"expected the figures of {meant} in {out}, which has those of {kept['keys']}"
        )
    accuracies: Figures = kept.get("accuracy", {})
    successes: Figures = kept.get("attack-success", {})
    for rule in RULES:
        for attack, more in ATTACKS.items():
            if attack in accuracies.setdefault(rule, {}):
                continue
            own = {**more, "algorithm": rule, "device": "cpu", **keys}
            try:
                got, success = measured(fuse(recipe, own)[0])
            except BouquetError as error:
                print(f"{rule:<18} {error}", flush=True)
                break
            accuracies[rule][attack] = got
            if success is not None:
                successes.setdefault(rule, {})[attack] = success
            print(f"{rule:<18} {attack:<26} {got:.4f} {'' if success is None else success}", flush=True)
            found = {"keys": meant, "accuracy": accuracies, "attack-success": successes}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    # In this order, whatever the file's is.
    rows = {r: {a: accuracies[r][a] for a in ATTACKS if a in accuracies[r]} for r in RULES}
    return {rule: row for rule, row in rows.items() if row}, successes


def as_markdown(accuracies: Figures, successes: Figures) -> str:
    """Return a table in per cent; of backdoors a second figure says how many examples reach the target."""
    attacks = list(next(iter(accuracies.values())))
    lines = ["| rule | " + " | ".join(attacks) + " |", "|---" * (len(attacks) + 1) + "|"]
    for rule, row in accuracies.items():
        also = successes.get(rule, {})
        cells = [
            f"{100 * value:.1f}" + (f" ({100 * also[attack]:.1f})" if attack in also else "")
            for attack, value in row.items()
        ]
        lines.append(f"| {ALGORITHMS[rule].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(found: Figures, path: Path, title: str) -> None:
    """Write the heat map."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    attacks = list(next(iter(found.values())))
    values = [[found[rule][attack] for attack in attacks] for rule in found]
    figure, axes = pyplot.subplots(figsize=(12.6, 5.4), layout="constrained")
    image = axes.imshow(values, cmap="RdYlGn", vmin=0.0, vmax=1.0, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axes.text(j, i, f"{100 * value:.1f}", ha="center", va="center")
    axes.set_xticks(range(len(attacks)), attacks, rotation=25, ha="right")
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
    attackers: Annotated[
        float, typer.Option(help="Share of malicious clients, which rules withstand or are left out.")
    ] = 0.2,
    data_dir: Annotated[str, typer.Option(help='MNIST; "" = $BOUQUET_DATA.')] = "",
    more: Annotated[
        str, typer.Option("--set", help="Further keys of all runs, as bouquet run -c takes them.")
    ] = "",
) -> None:
    """Play every rule under every attack, print the table and draw the heat map."""
    keys: dict[str, Any] = {"seed": seed, "data-dir": data_dir, **parse_options([more] if more else [])}
    if rounds:
        keys["num-server-rounds"] = rounds
    shares = dict.fromkeys(("attack.fraction", "robust.byzantine", "robust.trim"), attackers)
    recipe = read_recipe(RECIPE) | shares
    config = read_config(fuse(recipe, keys)[0])
    accuracies, successes = table(recipe, keys, out.with_suffix(".json"))
    K, bad = config.data.num_clients, round(config.attack.fraction * config.data.num_clients)
    what = f"MNIST {config.model}, {config.data.partition}"
    rounds = config.server.num_server_rounds
    draw(accuracies, out, f"{what}, {bad} of {K} clients malicious: test accuracy after {rounds} rounds (%)")
    print(as_markdown(accuracies, successes))


if __name__ == "__main__":
    typer.run(main)

"""Accuracy of every robust rule and of FedAvg under every attack: ``python -m tests.bench.robustness``.

Plays the recipe ``mnist-2nn-attacked`` for each pair of rule and attack, with the real clients, rules and
messages in one process, and writes a heat map, and the figures next to it as JSON. A cell is the accuracy of
the last model on all test examples; with a backdoor there is the share of examples that its patch brings to
the target, too. Pairs that the JSON file has are not played again. The row of a rule that does not withstand
as many attackers is empty but for the reason. `--summary` has the least and the mean over attacks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import torch
import typer

from client_app.training.programs import Single
from server_app.run.evaluate import attack_success
from task.catalogue.algorithms import ALGORITHMS
from task.config.attack_section import BACKDOORS
from task.config.options import parse_options
from task.config.read import read_recipe
from task.datasets import load_dataset
from task.errors import BouquetError
from task.models import build_model
from task.resolve.read import fuse, read_config
from task.tasks.evaluate import measure
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
SHARES = {0.1: "-10", 0.2: "", 0.3: "-30"}  # of malicious clients, and what their file's name ends in
KINDS = {"IID": "", "skewed": "-skewed"}
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


class Map(NamedTuple):
    """What was measured at one share of malicious clients."""

    accuracy: Figures
    success: Figures  # of backdoors
    refused: dict[str, str]  # why, by rule


def read_map(path: Path) -> Map:
    """Return a file's figures, rules and attacks in the order of this module; nothing without a file."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = kept.get("accuracy", {})
    rows = {r: {a: found[r][a] for a in ATTACKS if a in found[r]} for r in RULES if r in found}
    return Map(rows, kept.get("attack-success", {}), kept.get("refused", {}))


def measure_all(recipe: dict[str, Any], keys: dict[str, Any], out: Path) -> Map:
    """Return the figures of each rule under each attack; prints and writes each as it comes."""
    torch.set_num_threads(1)
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    meant = {**keys, **({"attackers": recipe["attack.fraction"]} if recipe["attack.fraction"] != 0.2 else {})}
    if kept.get("keys", meant) != meant:
        raise typer.BadParameter(
            f"expected the figures of {meant} in {out}, which has those of {kept['keys']}"
        )
    accuracies, successes, refused = read_map(out)
    for rule in RULES:
        for attack, more in ATTACKS.items():
            if attack in accuracies.setdefault(rule, {}) or rule in refused:
                continue
            own = {**more, "algorithm": rule, "device": "cpu", **keys}
            try:
                got, success = measured(fuse(recipe, own)[0])
            except BouquetError as error:
                print(f"{rule:<18} {error}", flush=True)
                refused[rule] = str(error)
            else:
                accuracies[rule][attack] = got
                if success is not None:
                    successes.setdefault(rule, {})[attack] = success
                print(f"{rule:<18} {attack:<26} {got:.4f} {'' if success is None else success}", flush=True)
            found = {"keys": meant, "accuracy": accuracies, "attack-success": successes, "refused": refused}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return read_map(out)


def reason(error: str) -> str:
    """Return what a refusal says of the number of clients, without the key and the way out."""
    return error.partition('": ')[2].partition(";")[0] or error


def as_markdown(found: Map) -> str:
    """Return a table in per cent; of backdoors a second figure says how many examples reach the target."""
    lines = ["| rule | " + " | ".join(ATTACKS) + " |", "|---" * (len(ATTACKS) + 1) + "|"]
    for rule, row in found.accuracy.items():
        also = found.success.get(rule, {})
        cells = [
            (f"{100 * row[attack]:.1f}" if attack in row else "")
            + (f" ({100 * also[attack]:.1f})" if attack in also else "")
            for attack in ATTACKS
        ]
        if rule in found.refused:
            cells[0] = reason(found.refused[rule])
        lines.append(f"| {ALGORITHMS[rule].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(maps: Mapping[float, Map]) -> str:
    """Return a table of each rule's least and mean accuracy over the attacks, by share of attackers.

    Behind them is the largest share of examples that a backdoor brings to its target.
    """
    heads = [f"{share:.0%}: {what}" for share in maps for what in ("least, under", "mean", "backdoor")]
    lines = [f"| rule | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for rule in RULES:
        cells = []
        for accuracy, success, refused in maps.values():
            row = {a: v for a, v in accuracy.get(rule, {}).items() if a != "none"}
            if rule in refused or not row:
                cells += ["refused" if rule in refused else "", "", ""]
                continue
            least = min(row, key=lambda attack: row[attack])
            few = f" (of {len(row)} attacks)" if len(row) < len(ATTACKS) - 1 else ""
            cells += [
                f"{100 * row[least]:.1f}, {least.partition(',')[0]}{few}",
                f"{100 * fmean(row.values()):.1f}",
                f"{100 * max(success.get(rule, {}).values(), default=0.0):.1f}",
            ]
        lines.append(f"| {ALGORITHMS[rule].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def survivors(kinds: Mapping[str, Mapping[float, Map]]) -> str:
    """Return a table of each rule's least accuracy; a dagger says that some backdoor reaches a tenth."""
    heads = [f"{kind} {share:.0%}" for kind, maps in kinds.items() for share in maps]
    lines = [f"| rule | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for rule in RULES:
        cells = []
        for accuracy, success, refused in (found for maps in kinds.values() for found in maps.values()):
            row = [v for a, v in accuracy.get(rule, {}).items() if a != "none"]
            through = max(success.get(rule, {}).values(), default=0.0) >= 0.1
            few = "refused" if rule in refused else ""
            whole = len(row) == len(ATTACKS) - 1
            cells.append(f"{100 * min(row):.1f}{' †' * through}" if whole else few)
        lines.append(f"| {ALGORITHMS[rule].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_all(out: Path) -> dict[str, dict[float, Map]]:
    """Return the maps that lie next to `out`, by how clients' data differ and share of attackers."""
    found: dict[str, dict[float, Map]] = {}
    for kind, middle in KINDS.items():
        paths = {share: out.with_name(f"{out.stem}{middle}{end}.json") for share, end in SHARES.items()}
        found[kind] = {share: read_map(path) for share, path in paths.items() if path.exists()}
    return found


def draw(found: Map, path: Path, title: str) -> None:
    """Write the heat map."""
    from matplotlib.figure import Figure

    values = [[row.get(attack, float("nan")) for attack in ATTACKS] for row in found.accuracy.values()]
    figure = Figure(figsize=(12.6, 5.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="RdYlGn", vmin=0.0, vmax=1.0, aspect="auto")
    for i, (rule, row) in enumerate(zip(found.accuracy, values, strict=True)):
        for j, value in enumerate(row):
            axes.text(j, i, "" if math.isnan(value) else f"{100 * value:.1f}", ha="center", va="center")
        if rule in found.refused:
            axes.text((len(ATTACKS) - 1) / 2, i, reason(found.refused[rule]), ha="center", va="center")
    axes.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=25, ha="right")
    axes.set_yticks(range(len(values)), [ALGORITHMS[rule].title for rule in found.accuracy])
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="test accuracy")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


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
    tell: Annotated[
        bool, typer.Option("--summary", help="Print the table of all shares of attackers; play nothing.")
    ] = False,
    more: Annotated[
        str, typer.Option("--set", help="Further keys of all runs, as bouquet run -c takes them.")
    ] = "",
) -> None:
    """Play every rule under every attack, print the table and draw the heat map."""
    if tell:
        kinds = read_all(out)
        for maps in kinds.values():
            print(summary(maps), end="\n\n")
        print(survivors(kinds))
        return
    keys: dict[str, Any] = {"seed": seed, "data-dir": data_dir, **parse_options([more] if more else [])}
    if rounds:
        keys["num-server-rounds"] = rounds
    shares = dict.fromkeys(("attack.fraction", "robust.byzantine", "robust.trim"), attackers)
    recipe = read_recipe(RECIPE) | shares
    config = read_config(fuse(recipe, keys)[0])
    found = measure_all(recipe, keys, out.with_suffix(".json"))
    K, bad = config.data.num_clients, round(config.attack.fraction * config.data.num_clients)
    what = f"MNIST {config.model}, {config.data.partition}"
    rounds = config.server.num_server_rounds
    draw(found, out, f"{what}, {bad} of {K} clients malicious: test accuracy after {rounds} rounds (%)")
    print(as_markdown(found))


if __name__ == "__main__":
    typer.run(main)

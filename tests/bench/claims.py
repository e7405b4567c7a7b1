"""Claims of papers that two cores can check: ``python -m tests.bench.claims``.

Each claim is a group of runs that differ in a few keys, with the real clients, rules and messages in one
process. Accuracy is that of the global model on the test set, mean of the last five rounds, or, where a
run's clients are measured, that of their own models over their own test examples, mean of the last three
evaluations. ``forgetting`` is mean over classes of the best accuracy that a round had less that of the last
one (Lee et al. 2022, section 2). Runs that the JSON file has are not played again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
import typer
from flwr.app import ArrayRecord, MetricRecord

from client_app.training.programs import Single
from task.config.knobs import Config
from task.datasets import load_dataset
from task.datasets.drift import client_rounds
from task.models import build_model
from task.resolve.read import fuse, read_config
from task.wire import messages as wire
from tests.bench.families import COMMON, PARTITIONS
from tests.support.federation import Played, play

SHARDS, DIRICHLET = COMMON | PARTITIONS["shards"], COMMON | PARTITIONS["dirichlet"]
OWN = {"fraction-evaluate": 1.0, "client-evaluate-every": 5}
# Ten clients, all of whom train in each round, as in MOON's paper.
SILOS = COMMON | {
    "partition": "dirichlet", "dirichlet-alpha": 0.5, "num-clients": 10, "fraction-train": 1.0,
}  # fmt: skip
# As in FedNTD's: two shards, E = 5, B = 50, momentum, and more rounds.
NTD = SHARDS | {
    "local-epochs": 5, "batch-size": 50, "learning-rate": 0.01, "momentum": 0.9, "num-server-rounds": 60,
}  # fmt: skip
# One step a round of all clients, eleven of 25 malicious, B = 32 and 0.1, as in centered clipping's code.
STEPS = {
    "dataset": "mnist", "model": "mlp", "partition": "iid", "num-clients": 25, "max-examples": 6000,
    "local-test-fraction": 0.0, "fraction-train": 1.0, "local-steps": 1, "batch-size": 32,
    "learning-rate": 0.1, "num-server-rounds": 100, "evaluate-every": 10,
    "attack.kind": "little-is-enough", "attack.deviations": 1.5, "attack.fraction": 0.44,
    "robust.byzantine": 0.44,
}  # fmt: skip
# Half of ten clients have the labels 2j and 2j + 1 in each other's place; everybody trains in each round.
SWAPPED = COMMON | OWN | {
    "partition": "iid", "num-clients": 10, "fraction-train": 1.0, "learning-rate": 0.05,
    "num-server-rounds": 45, "drift.kind": "labels-swap", "drift.round": 1, "drift.clients": 0.5,
}  # fmt: skip
# What the defaults of the two thresholds were chosen for, but for the model and the letters.
CFL_STEPS = SWAPPED | {
    "max-examples": 13333, "local-epochs": 1, "batch-size": 128, "learning-rate": 0.1, "momentum": 0.9,
}  # fmt: skip
Runs = dict[str, dict[str, Any]]


def _rates(algorithm: str, base: Mapping[str, Any], rates: tuple[float, ...], **more: Any) -> Runs:
    """Return a run for each learning rate."""
    words = "".join(f", {k} = {v:g}" if isinstance(v, float) else f", {k} = {v}" for k, v in more.items())
    return {
        f"{algorithm}, rate {rate:g}{words}": {**base, "algorithm": algorithm, "learning-rate": rate, **more}
        for rate in rates
    }


def _each(names: tuple[str, ...], base: Mapping[str, Any], **more: Any) -> Runs:
    words = "".join(f", {k} = {v}" for k, v in more.items())
    return {f"{name}{words}": {**base, "algorithm": name, **more} for name in names}


CLAIMS: dict[str, Runs] = {
    "Mime, more rates, Dirichlet": {
        **_rates("fedavg", DIRICHLET, (0.2, 0.5, 1.0)),
        **_rates("mime", DIRICHLET, (0.2, 0.5, 1.0)),
        **_rates("fsvrg", DIRICHLET, (0.2, 0.5, 1.0)),
    },
    "Mime, all clients in each round, Dirichlet": {
        **_rates("fedavg", DIRICHLET | {"fraction-train": 1.0}, (0.2,)),
        **_rates("mime", DIRICHLET | {"fraction-train": 1.0}, (0.2,)),
        **_rates("mime", DIRICHLET | {"fraction-train": 1.0}, (0.2,), **{"mime.beta": 0.0}),
    },
    "Mime, five local steps, Dirichlet": {
        **_rates("fedavg", DIRICHLET | {"local-steps": 5}, (0.2,)),
        **_rates("mime", DIRICHLET | {"local-steps": 5}, (0.2,)),
        **_rates("mimelite", DIRICHLET | {"local-steps": 5}, (0.2,)),
    },
    "MimeLite, smaller rates, Dirichlet": {
        **_rates("mimelite", DIRICHLET, (0.0125, 0.025, 0.05)),
        **_rates("mimelite", DIRICHLET, (0.2,), **{"mime.beta": 0.5}),
    },
    "FedEM, learning rate times components, shards": {
        **_rates("fedavg", SHARDS | OWN, (0.05, 0.15, 0.3)),
        **_rates("fedem", SHARDS | OWN, (0.05, 0.15, 0.3)),
    },
    "FedEM, learning rate times components, Dirichlet": {
        **_rates("fedavg", DIRICHLET | OWN, (0.05, 0.15, 0.3)),
        **_rates("fedem", DIRICHLET | OWN, (0.05, 0.15, 0.3)),
    },
    "FedNTD's setting": {
        **_each(("fedavg",), NTD),
        **_each(("fedntd",), NTD),
        **_each(("fedntd",), NTD, **{"fedntd.beta": 0.3}),
        **_each(("fedntd",), NTD, **{"fedntd.temperature": 3.0}),
    },
    "FedNTD, weight and temperature, shards": {
        **_rates("fedavg", SHARDS, (0.2,)),
        **_rates("fedntd", SHARDS, (0.2,)),
        **_rates("fedntd", SHARDS, (0.2,), **{"fedntd.beta": 0.3}),
        **_rates("fedntd", SHARDS, (0.2,), **{"fedntd.temperature": 3.0}),
    },
    "MOON, weights, shards": {
        **_rates("fedavg", SHARDS, (0.2,)),
        **_rates("moon", SHARDS, (0.2,), **{"moon.mu": 0.1}),
        **_rates("moon", SHARDS, (0.2,)),
        **_rates("moon", SHARDS, (0.2,), **{"moon.mu": 5.0}),
    },
    "MOON's clients": {
        **_rates("fedavg", SILOS, (0.05,)),
        **_rates("moon", SILOS, (0.05,), **{"moon.mu": 0.1}),
        **_rates("moon", SILOS, (0.05,)),
        **_rates("moon", SILOS, (0.05,), **{"moon.mu": 5.0}),
    },
    "FedExP, small steps, all clients, Dirichlet": {
        **_each(("fedavg", "fedexp"), DIRICHLET | {"fraction-train": 1.0, "learning-rate": 0.01}),
        **_each(("fedexp",), DIRICHLET | {"fraction-train": 1.0, "learning-rate": 0.01},
                **{"fedexp.epsilon": 0.1}),
    },
    "FedExP, small steps, ten clients, Dirichlet": _each(
        ("fedavg", "fedexp"), DIRICHLET | {"learning-rate": 0.01}
    ),
    "Centered clipping, an attack that lasts": {
        "nobody malicious, fedavg": STEPS | {"algorithm": "fedavg", "attack.kind": "none"},
        **_each(("fedavg", "krum", "median", "centered-clipping"), STEPS),
        **_each(("krum", "median", "centered-clipping"), STEPS,
                **{"robust.client-momentum": 0.9}),
        **_each(("centered-clipping",), STEPS, **{"centered-clipping.radius": 0.1}),
        **_each(("centered-clipping",), STEPS,
                **{"centered-clipping.radius": 0.1, "robust.client-momentum": 0.9}),
    },
    "CFL, two planted clusters": {
        **_each(("fedavg", "local-only", "ifca", "cfl"), SWAPPED),
        **_each(("cfl",), SWAPPED, **{"cfl.epsilon1": 0.2, "cfl.epsilon2": 0.8}),
    },
    "CFL, steps of its authors' code": {
        **_each(("fedavg", "cfl"), CFL_STEPS),
        **_each(("cfl",), CFL_STEPS, **{"cfl.warmup": 5}),
    },
}  # fmt: skip


def played(keys: dict[str, Any]) -> dict[str, Any]:
    """Run a federation; return its figures, and accuracy by round in per cent."""
    began = time.process_time()
    keys = fuse({"device": "cpu", **keys}, {})[0]
    config = read_config(keys)
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, seed=0)
    x, y = dataset.inputs(dataset.test_rows), dataset.targets(dataset.test_rows)
    classes = [y == c for c in range(dataset.num_classes)]
    by_class: list[list[float]] = []
    every, rounds = max(config.server.evaluate_every, 1), config.server.num_server_rounds

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every:
            return None
        Single(model).load(wire.read_arrays(arrays), 1)
        model.eval()
        with torch.no_grad():
            outputs = model(x)
        right = outputs.argmax(1) == y
        by_class.append([float(right[c].float().mean()) for c in classes])
        loss = torch.nn.functional.cross_entropy(outputs, y)
        return MetricRecord({"loss": float(loss), "accuracy": float(right.float().mean())})

    measured = None if config.server.fraction_evaluate else evaluate
    run = play(keys, nodes=1, evaluate_fn=measured)
    rows = run.rows
    key, last = ("accuracy", 5) if measured else ("client_accuracy", 3)
    curve = [100 * r[key] for r in rows if r[key] is not None]
    found: dict[str, Any] = {"accuracy": fmean(curve[-last:]), "curve": [round(a, 2) for a in curve]}
    if config.algorithm == "cfl":
        found["clusters"], found["cut"] = _clusters(config, run)
    if measured:
        best = [max(row[c] for row in by_class) for c in range(len(classes))]
        found["forgetting"] = 100 * fmean(b - e for b, e in zip(best, by_class[-1], strict=True))
    return found | {"rounds": rounds, "seconds": round(time.process_time() - began, 1)}


def _clusters(config: Config, run: Played) -> tuple[list[str], int | None]:
    """Return each cluster's clients with swapped labels of all, "5 of 5", and the round of the first cut."""
    swapped = client_rounds(config.drift, run.names, config.seeds.data)
    homes = {
        key.removeprefix("members/"): int(home[0])
        for key, home in run.keep.snapshots[-1].arrays.items()
        if key.startswith("members/")
    }
    clusters = []
    for number in sorted(set(homes.values())):
        own = [client for client, home in homes.items() if home == number]
        clusters.append(f"{sum(client in swapped for client in own)} of {len(own)}")
    cuts = (row["round"] for row in run.rows if "cluster-1" in (row["metrics"] or {}))
    return clusters, next(cuts, None)


def _cut(figures: Mapping[str, Any]) -> str:
    """Return the round of the first cut, and whether clients of both kinds ended in one cluster."""
    if figures["cut"] is None:
        return "never"
    counts = [text.split(" of ") for text in figures["clusters"]]
    return f"{figures['cut']}" + (", mixed" if any(n not in ("0", of) for n, of in counts) else "")


def table(name: str, found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the claim's runs as a Markdown table: mean and standard deviation over the seeds."""

    def cell(values: list[float]) -> str:
        return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")

    cuts = any("cut" in f for seeds in found.values() for f in seeds)
    what = "first cut, in round" if cuts else "forgetting"
    lines = [f"### {name}", "", f"| run | accuracy (%) | {what} | seeds |", "|---|---|---|---|"]
    for run, seeds in found.items():
        lost = [f["forgetting"] for f in seeds if "forgetting" in f]
        also = "; ".join(_cut(f) for f in seeds if "cut" in f) if cuts else cell(lost) if lost else ""
        lines.append(f"| {run} | {cell([f['accuracy'] for f in seeds])} | {also} | {len(seeds)} |")
    return "\n".join(lines) + "\n"


def tables(found: Mapping[str, dict[str, Any]], only: str = "") -> dict[str, str]:
    """Return the tables of the claims whose names have `only` in them, by name."""
    made = {}
    for name, runs in CLAIMS.items():
        done = {run: [v for k, v in found.items() if k.startswith(f"{name} | {run} | ")] for run in runs}
        if only.lower() in name.lower() and any(done.values()):
            made[name] = table(name, {run: group for run, group in done.items() if group})
    return made


def main(
    only: Annotated[str, typer.Option(help="a part of the claims' names; default: all")] = "",
    seeds: Annotated[str, typer.Option(help="seeds")] = "1,2,3",
    out: Annotated[Path, typer.Option(help="JSON file that takes and gives what was measured")] = Path(
        "docs/results/claims.json"
    ),
) -> None:
    """Do the runs that `out` has not got yet, and print a table for each claim."""
    torch.set_num_threads(1)
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    chosen = {name: runs for name, runs in CLAIMS.items() if only.lower() in name.lower()}
    for seed in seeds.split(","):
        for name, runs in chosen.items():
            for run, keys in runs.items():
                key = f"{name} | {run} | {seed}"
                if key not in found:
                    found[key] = played(keys | {"seed": int(seed)})
                    print(key, round(found[key]["accuracy"], 2), found[key]["seconds"], file=sys.stderr)
                    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for text in tables(found, only).values():
        print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)

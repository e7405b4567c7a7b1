"""Adaptive tau against every fixed tau under one budget.

``python -m tests.bench.tau docs/images/adaptive-tau.svg`` plays the recipe ``adaptive-tau-mnist`` on the
four data cases of Wang et al. (2019), with the real clients, rules and messages in one process. Costs are
the paper's means, given and not measured, so that a run is reproducible. What counts is the loss of the
returned model over all training examples, mean over the seeds; the figures go into a JSON file next to the
plot.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from client_app.training.programs import Single
from task.config.read import read_recipe
from task.datasets import load_dataset
from task.models import build_model
from task.resolve.read import read_config
from task.tasks.evaluate import measure
from tests.support.federation import play

RECIPE = "adaptive-tau-mnist"
FIXED = (1, 2, 5, 10, 20, 50, 100)
CASES: dict[str, dict[str, Any]] = {
    "case 1: IID": {"partition": "iid"},
    "case 2: by label": {"partition": "labels"},
    "case 3: everybody has all": {"partition": "bootstrap", "examples-per-client": 5000},
    "case 4: half IID, half by label": {"partition": "half-labels"},
}
Figures = dict[str, float]


def figures_of(keys: dict[str, Any]) -> Figures:
    """Run once; return loss on all training examples, test accuracy, mean tau and what was spent."""
    config = read_config(keys)
    played = play(keys, nodes=1)
    rows = played.rows[1:]
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, seed=0)
    Single(model).load(played.arrays(len(rows)), 1)

    def on(part: Any) -> dict[str, float]:
        return measure(model, dataset.inputs(part), dataset.targets(part))[0]

    taus = [row["metrics"]["tau"] for row in rows[:-1]]  # the last round is only the look at its model
    return {
        "loss": float(on(range(dataset.num_train))["loss"]),
        "accuracy": float(on(dataset.test_rows)["accuracy"]),
        "tau": fmean(taus),
        "rounds": float(len(rows)),
        "spent": float(rows[-1]["metrics"]["spent"]),
    }


def mean(figures: list[Figures]) -> Figures:
    """Return the mean of each figure over the seeds."""
    return {k: fmean(f[k] for f in figures) for k in figures[0]}


def plot(found: dict[str, dict[str, Figures]], path: Path) -> None:
    """Draw the loss over tau: a curve of the fixed ones, a point of the adaptive one at its mean tau."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.8), layout="constrained")
    for axes, (case, by_tau) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        losses = [by_tau[str(tau)]["loss"] for tau in FIXED]
        axes.semilogx(FIXED, losses, "o-", label="fixed", markersize=3)
        axes.plot(
            [by_tau["adaptive"]["tau"]], [by_tau["adaptive"]["loss"]], "r*", markersize=11, label="adaptive"
        )
        axes.set_title(case, fontsize=9)
        axes.set_xlabel("tau (adaptive: its mean)")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("training loss of the returned model")
    figure.axes[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "tau"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main(
    path: Annotated[
        Path, typer.Argument(help="plot to write: .svg or .png; the figures go next to it as .json")
    ],
    seeds: Annotated[int, typer.Option(help="seeds 1, 2, ...")] = 3,
    phi: Annotated[float, typer.Option(help="phi; 0 = the recipe's")] = 0.0,
    only_adaptive: Annotated[bool, typer.Option(help="leave the fixed ones and the plot out")] = False,
) -> None:
    """Run everything and draw the plot."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, Figures]] = {}
    taus = [0] if only_adaptive else [0, *FIXED]
    for case, more in CASES.items():
        for tau in taus:
            keys = {**read_recipe(RECIPE), **more, "device": "cpu", "adaptive-tau.fixed-tau": tau}
            if phi:
                keys["adaptive-tau.phi"] = phi
            got = mean([figures_of(keys | {"seed": seed}) for seed in range(1, seeds + 1)])
            found.setdefault(case, {})[str(tau) if tau else "adaptive"] = got
            print(
                f"{case:<32} tau {tau or 'adaptive':<9}", {k: round(v, 4) for k, v in got.items()}, flush=True
            )
        if not only_adaptive:
            best = min(found[case][str(tau)]["loss"] for tau in FIXED)
            print(
                f"{case:<32} adaptive over best fixed: {found[case]['adaptive']['loss'] / best - 1:+.2%}",
                flush=True,
            )
    if not only_adaptive:
        plot(found, path)
        path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

"""q-FFL against FedAvg's objective, accuracy over devices: ``python -m tests.bench.fairness``.

Plays the recipe ``qfedavg-synthetic-1-1`` with q = 0 and q = 1 for several seeds, with real clients, rules
and messages in one process, and prints by round the mean over the devices of their test accuracy, that of the
worst tenth, and the variance (all in percentage points, as in Li et al. 2020, table 1), averaged over seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from task.config.read import read_recipe
from tests.support.federation import Keep, play
from tests.support.grid import LocalGrid

RECIPE = "qfedavg-synthetic-1-1"
Row = tuple[float, float, float]  # mean, worst tenth, variance


class Forgetful(LocalGrid):
    """Keeps no messages."""

    def push_messages(self, messages: Any) -> Any:
        """Send them on."""
        ids = super().push_messages(messages)
        self.sent.clear()
        return ids


class Devices(Keep):
    """Keeps the accuracies of the devices only."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy: dict[int, list[float]] = {}

    def round_done(self, row: Any, clients: Any, snapshot: Any, clock: Any) -> None:
        """Take the lines of the evaluation."""
        told = [100.0 * c["metrics"]["accuracy"] for c in clients if c["phase"] == "evaluate"]
        if told:
            self.accuracy[row["round"]] = told


def spread(accuracies: list[float]) -> Row:
    """Return mean, mean of the worst tenth, and variance."""
    ranked = np.sort(accuracies)
    return float(ranked.mean()), float(ranked[: max(len(ranked) // 10, 1)].mean()), float(ranked.var())


def main(
    seeds: Annotated[str, typer.Option(help="seeds, separated by commas")] = "1,2,3,4,5",
    rounds: Annotated[int, typer.Option(help="rounds; 0 = the recipe's")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file that takes and gives what was measured")] = None,
) -> None:
    """Run everything that is not in `out` yet and print the table."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, Row]] = {}
    if out is not None and out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))
    names = [(q, int(seed)) for seed in seeds.split(",") for q in (0.0, 1.0)]
    for q, seed in names:
        name = f"q={q:g}, seed {seed}"
        if name not in found:
            keys = {**read_recipe(RECIPE), "device": "cpu", "qffl.q": q, "seed": seed}
            keys |= {"num-server-rounds": rounds} if rounds else {}
            played = play(keys, nodes=1, journal=(kept := Devices()), grid_type=Forgetful)
            assert played.keep is kept
            found[name] = {str(t): spread(told) for t, told in kept.accuracy.items()}
            if out is not None:
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        last = list(found[name].values())[-1]
        print(f"{name}: mean {last[0]:.1f}, worst tenth {last[1]:.1f}, variance {last[2]:.0f}", flush=True)
    for q in (0.0, 1.0):
        runs = [found[f"q={q:g}, seed {seed}"] for p, seed in names if p == q]
        for t in runs[0]:
            mean, worst, variance = np.mean([run[t] for run in runs], axis=0)
            print(f"q={q:g}, round {t}: mean {mean:.1f}, worst tenth {worst:.1f}, variance {variance:.0f}")


if __name__ == "__main__":
    typer.run(main)

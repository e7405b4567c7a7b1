"""Measures what noise for each row costs boosted trees: ``python -m tests.bench.noised_trees FOLDER``.

``heart.csv`` of `tests.bench.sites` is in the folder: four hospitals, a quarter of each is the test. Sums are
those of a run with ``secagg=true``, three of whose four nodes must answer and one may reveal its noise: each
site adds noise of half the variance. Prints the accuracy on all tests, mean and deviation over five splits.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from strategies.engine.rule import Phase
from task.privacy.accounting import gaussian_epsilon
from task.privacy.noise import draw_secret
from task.privacy.row_noise import RowNoise
from task.resolve.read import read_config
from task.trees.noised import ENDS, GRID, sensitivity
from task.trees.orders import read_order
from tests.classical.support import ROWS
from tests.classical.trees import PlayedTrees

COLUMNS = "age(20..90), sex(Female|Male), trestbps(0..220), thalch(50..210), exang(no|yes)"
LEVELS = {"sex": ("Female", "Male"), "exang": ("no", "yes"), "ill": ("no", "yes")}
DELTA, SHARES, SPLITS = 1e-4, 2, 5
SIZES = ((5, 1), (5, 2), (15, 2))  # trees, depth


class NoisedTrees(PlayedTrees):
    """Trees from sums with noise, over sites in memory."""

    def _sums(self, name: str, phase: Phase) -> list[Any]:
        order = read_order(self.boosting, lambda record: phase.records[record][ROWS])
        size, _ = phase.rows[name]
        squared, found = sensitivity(self.boosting.objective, len(order.columns)), []
        for site in self.sites:
            noise = RowNoise(self.config.dp.noise, SHARES, lambda client, totals: draw_secret())
            totals = site.noised(order, size - 1 - ENDS)
            assert totals is not None
            found.append(np.array([0, *noise.added("", totals, squared, GRID)])[:, None])
        return found


def noise_for(goal: float, questions: int) -> float:
    """Return the noise multiplier with which so many questions cost epsilon = `goal`."""
    low, high = 0.01, 1e4
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        spent = gaussian_epsilon(math.sqrt(questions) / middle, DELTA)
        low, high = (middle, high) if spent > goal else (low, middle)
    return high


def accuracy(frame: pd.DataFrame, seed: int, trees: int, depth: int, goal: float) -> float:
    """Return the accuracy on the tests; `goal` is epsilon, 0 = without noise."""
    keys = {"algorithm": "gbdt", "dataset": "csv", "num-server-rounds": trees, "gbdt.columns": COLUMNS}
    keys |= {"gbdt.target": "ill(no|yes)", "gbdt.max-depth": depth, "gbdt.max-bins": 8, "gbdt.cuts": "ranges"}
    if goal:
        z = noise_for(goal, trees * (depth + 1))
        keys |= {"dp.noise": z, "dp.unit": "example", "dp.delta": DELTA}
    test = np.random.default_rng(seed).permutation(len(frame)) < len(frame) // 4
    sites = [part.drop(columns="client") for _, part in frame[~test].groupby("client")]
    played = (NoisedTrees if goal else PlayedTrees)(read_config(keys), sites)
    rows = frame[test]
    x = rows[[v.name for v in played.boosting.variables]].to_numpy(np.float32)
    return float(((played.trees.margins(x)[:, 0] > 0) == (rows.ill == 1)).mean())


def main(folder: Path) -> None:
    """Print a line for each epsilon."""
    frame = pd.read_csv(folder / "heart.csv").drop(columns="split")
    frame.columns = pd.Index([name.partition(":")[0] for name in frame.columns])
    for name, levels in LEVELS.items():
        frame[name] = frame[name].map({level: place for place, level in enumerate(levels)})
    print("epsilon", *(f"{trees} trees of depth {depth}" for trees, depth in SIZES), sep=" | ")
    for goal in (1.0, 3.0, 8.0, 0.0):
        cells = []
        for trees, depth in SIZES:
            of = [100 * accuracy(frame, seed, trees, depth, goal) for seed in range(SPLITS)]
            cells.append(f"{np.mean(of):.1f} ± {np.std(of):.1f}")
        print(f"{goal:g}" if goal else "no noise", *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))

"""``w1-round``, ``w2-round`` and ``population``: what a steady round costs."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.bench.plain import PlainLoop
from tests.bench.processes import Outcome, bouquet, environment, run
from tests.bench.readings import Reading, median, ratio

WARM = 3  # first rounds that do not count
W1: dict[str, Any] = {
    "dataset": "mnist",
    "model": "2nn",
    "partition": "iid",
    "num-clients": 100,
    "local-test-fraction": 0.0,
    "fraction-train": 0.1,
    "local-epochs": 1,
    "batch-size": 10,
    "learning-rate": 0.1,
    "progress": "none",
}


@dataclass
class Bench:
    """What every benchmark is given.

    Attributes:
        work: Folder for data, caches and result folders.
        data: Data folder with MNIST/raw.
        rounds: Rounds that count; 0 = the benchmark's own number.
        repeat: Repetitions of a whole command.
        quick: Little work: does everything run?
    """

    work: Path
    data: Path
    rounds: int = 0
    repeat: int = 5
    quick: bool = False

    def folder(self, name: str) -> Path:
        """Return a folder that is not there yet."""
        taken = {p.name for p in (self.work / "runs").glob(f"{name}-*")}
        return self.work / "runs" / next(f"{name}-{i}" for i in range(10**6) if f"{name}-{i}" not in taken)

    def simulate(self, name: str, keys: dict[str, Any], *, memory: bool = False) -> Outcome:
        """Run ``bouquet run`` with these keys."""
        folder = self.folder(name)
        return run(bouquet(folder, keys), folder, environment(self.work, self.data), memory=memory)


def w1_round(bench: Bench) -> list[Reading]:
    """Compare a round of W1 with the plainest loop."""
    rounds = bench.rounds or (5 if bench.quick else 40)
    return _against_plain(bench, "w1-round", W1, rounds, block=6, target=1.25)


def w2_round(bench: Bench) -> list[Reading]:
    """Compare a round of the CNN with the plainest loop; both sides have a part of MNIST only."""
    rounds = bench.rounds or (5 if bench.quick else 8)
    keys = W1 | {"model": "cnn", "max-examples": 2_000 if bench.quick else 20_000}
    note = f"max-examples = {keys['max-examples']} on both sides"
    return _against_plain(bench, "w2-round", keys, rounds, block=3, target=1.10, note=note)


def _against_plain(
    bench: Bench,
    name: str,
    keys: dict[str, Any],
    rounds: int,
    *,
    block: int,
    target: float,
    note: str = "",
) -> list[Reading]:
    """Run blocks of Bouquet's and of the plain loop's rounds in turns, so that noise hits both.

    The first block and the first round of each other block do not count, on either side.
    """
    total = block * (1 + math.ceil(rounds / (block - 1)))
    keys = keys | {"num-server-rounds": total}
    env = environment(bench.work, bench.data)
    theirs: list[float] = []
    with patch.dict(os.environ, env), PlainLoop(keys) as loop:
        folder = bench.folder(name)
        command = [sys.executable, "-m", "tests.bench.gated", str(block), *bouquet(folder, keys)[1:]]
        outcome = run(command, folder, env, between=lambda: theirs.extend(loop.run(block)))
    ours = outcome.seconds(0)
    sides = [[s for i, s in enumerate(side[:total]) if i >= block and i % block] for side in (ours, theirs)]
    journal = median(outcome.gated[2:]) / block
    words = [f"Bouquet with all of the journal {journal:.3g} s"]
    words += [f"accuracy {outcome.rows[-1]['accuracy']:.4f} and {loop.accuracies[total - 1]:.4f}"]
    detail = "; ".join([*words, note] if note else words)
    return [ratio(name, "a round : plain loop, 2 x 1 thread", *sides, target, detail=detail)]


def population(bench: Bench) -> list[Reading]:
    """Compare rounds of ten clients drawn from ever more, with 100 before and after."""
    rounds = bench.rounds or (5 if bench.quick else 20)
    sizes = (100, 1_000) if bench.quick else (100, 1_000, 10_000, 100_000)
    keys = W1 | {"partition": "bootstrap", "examples-per-client": 600, "num-server-rounds": WARM + rounds}
    seconds: dict[int, list[float]] = {}
    for size in (*sizes, sizes[0]):
        more = {"num-clients": size, "fraction-train": 10 / size}
        outcome = bench.simulate(f"population-{size}", keys | more)
        assert outcome.rows[-1]["asked"] == 10
        seconds.setdefault(size, []).extend(outcome.seconds(WARM))
    first = seconds[sizes[0]]
    return [
        ratio("population", f"a round of 10 of {size:,} : 10 of 100", seconds[size], first, 1.2)
        for size in sizes[1:]
    ]

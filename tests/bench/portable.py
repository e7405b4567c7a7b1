"""What portable bits cost: a step of plain torch with this processor's kernels and with portable ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from task import portable
from task.models import build_model
from tests.bench.readings import Row, paired
from tests.bench.rounds import Bench

# Shape and classes of an example, steps that are timed at once
MODELS = {"2nn": ((1, 28, 28), 10, 200), "cnn": ((1, 28, 28), 10, 10), "char-lstm": ((80,), 256, 3)}
ROWS = tuple(f"portable-{name}" for name in MODELS)
BATCH = 10


def steps(share: float) -> dict[str, float]:
    """Return by model the CPU milliseconds of a step of SGD, the least of three series."""
    torch.set_num_threads(1)
    found = {}
    for name, (shape, classes, whole) in MODELS.items():
        model, count = build_model(name, shape, classes, 1), max(int(share * whole), 1)
        x = torch.zeros(BATCH, *shape, dtype=torch.int64) if len(shape) == 1 else torch.rand(BATCH, *shape)
        y = torch.arange(BATCH) if len(shape) > 1 else torch.zeros(BATCH, *shape, dtype=torch.int64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        series = []
        for _ in range(3):
            began = time.process_time()
            for _ in range(count):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            series.append(1000 * (time.process_time() - began) / count)
        found[name] = min(series)
    return found


def cost(bench: Bench) -> Iterator[Row]:
    """Compare steps in processes of either kind, in turns."""
    portable.check_machine()
    sides: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(1 if bench.quick else bench.repeat):
        for fixed in sides:
            env = {k: v for k, v in os.environ.items() if k not in portable.SETTINGS}
            env |= portable.SETTINGS if fixed else {}
            command = [sys.executable, "-m", "tests.bench.portable", "0.05" if bench.quick else "1"]
            done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
            sides[fixed].append(json.loads(done.stdout))
    for name, row in zip(MODELS, ROWS, strict=True):
        with_it, without = ([side[name] for side in sides[fixed]] for fixed in (True, False))
        yield paired(row, f"{name} step, B = {BATCH}: portable : not", with_it, without, None, "ms")


if __name__ == "__main__":
    print(json.dumps(steps(float(sys.argv[1]))))

"""Seconds of a round on a GPU: cohorts of `2nn`, the CNN and the character LSTM.

Run ``python -m tests.gpu.rounds``; with a folder as argument, the lines go to ``rounds.md`` there, too.
Names of models after the folder leave out the others. A line ends with the hash of the last model.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MNIST = {"dataset": "mnist", "num-clients": 100, "batch-size": 10, "local-epochs": 5, "fraction-train": 1.0}
ROLES = {"dataset": "shakespeare", "model": "char-lstm", "partition": "natural", "num-clients": 0}
ROLES |= {"fraction-train": 0.1, "batch-size": 10, "local-epochs": 5, "learning-rate": 1.47}
RUNS: Mapping[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    "2nn": (MNIST | {"model": "2nn", "local-epochs": 1}, (1, 2, 4), 8),
    "cnn": (MNIST | {"model": "cnn", "local-epochs": 1}, (1, 2), 4),
    "char-lstm": (ROLES | {"evaluate-every": 5}, (1, 2, 4), 6),
}


def rows_of(
    keys: Mapping[str, Any], nodes: int, rounds: int, folder: Path, *more: str
) -> list[dict[str, Any]]:
    """Return the lines of ``rounds.jsonl`` of a run on the GPU; `more` are options of the command."""
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
    command = [sys.executable, "-m", "server_app.cli.main", "run", "-c", config]
    command += ["-c", f'num-server-rounds={rounds} device="{DEVICE}"', "--nodes", str(nodes)]
    command += ["--runs-dir", str(folder.parent), "--run-name", folder.name, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def lines(names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each model and number of nodes."""
    for name in names:
        keys, counts, rounds = RUNS[name]
        for nodes in counts:
            with tempfile.TemporaryDirectory() as folder:
                rows = rows_of(keys, nodes, rounds, Path(folder) / "run")[2:]
            times = [row["seconds"] for row in rows]
            parts = {part: median(row.get(part, 0.0) for row in times) for part in times[-1]}
            words = ", ".join(f"{part} {value:.3f}" for part, value in parts.items())
            yield f"| {name} | {nodes} | {words} | {rows[-1]['model_sha256'][:12]} |"


if __name__ == "__main__":
    found = []
    for line in lines(sys.argv[2:] or tuple(RUNS)):
        print(line, flush=True)
        found.append(line)
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / "rounds.md").write_text("\n".join(found) + "\n")

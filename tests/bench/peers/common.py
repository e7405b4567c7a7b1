"""What all peers share: McMahan's 2NN on MNIST, 100 clients x 600 examples, 10 a round, E=1, B=10, lr 0.1."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, COHORT, EPOCHS, BATCH, LR = 100, 10, 1, 10, 0.1
LAYERS = (784, 200, 200, 10)
EVAL_BATCH = 256  # as in task.tasks.evaluate
SEED = 1


class Task:
    """The data and the place for the results, from the command line.

    Attributes:
        rounds: Rounds to run.
        train: Images [60000, 784] float32 in 0..1 and labels int64.
        test: The same of the test set.
        rows: Per client, the numbers of its examples.
        rng: For whatever is drawn.
    """

    def __init__(self) -> None:
        root, folder, rounds = sys.argv[1:]
        raw = Path(root) / "MNIST" / "raw"
        self.rounds = int(rounds)
        self.train = _images(raw / "train-images-idx3-ubyte"), _labels(raw / "train-labels-idx1-ubyte")
        self.test = _images(raw / "t10k-images-idx3-ubyte"), _labels(raw / "t10k-labels-idx1-ubyte")
        self.rng = np.random.default_rng(SEED)
        self.rows = self.rng.permutation(len(self.train[1])).reshape(CLIENTS, -1)
        self._file = Path(folder) / "rounds.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._last = time.perf_counter()
        self.round = 0

    def client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples of a client."""
        return self.train[0][self.rows[k]], self.train[1][self.rows[k]]

    def draw(self) -> list[int]:
        """Return the clients of a round."""
        return sorted(self.rng.choice(CLIENTS, COHORT, replace=False).tolist())

    def write(self, accuracy: float) -> None:
        """Append the line of a round; the first is round 0, the untrained model."""
        now = time.perf_counter()
        row = {"round": self.round, "accuracy": accuracy, "seconds": {"total": now - self._last}}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._last = now
        self.round += 1


def _images(path: Path) -> np.ndarray:
    return np.fromfile(path, np.uint8, offset=16).reshape(-1, 784).astype(np.float32) / 255


def _labels(path: Path) -> np.ndarray:
    return np.fromfile(path, np.uint8, offset=8).astype(np.int64)


def torch_model(**more: Callable[..., Any]) -> Any:
    """Return the 2NN for the peers that train with torch.

    Args:
        more: Methods to add to the module.
    """
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # for the training; a step is too small for two
    a, b, c, d = LAYERS
    net: Any = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))
    net.__class__ = type("TwoNN", (nn.Sequential,), dict(more))
    return net


def torch_accuracy(task: Task) -> Callable[[Any], float]:
    """Return the evaluation that all of them share: all test images, batches of 256, all cores."""
    import torch

    x, y = (torch.from_numpy(a) for a in task.test)

    def accuracy(model: Any) -> float:
        was_training = model.training
        model.eval()
        torch.set_num_threads(os.cpu_count() or 1)
        with torch.inference_mode():
            batches = zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True)
            right = sum(int((model(xb).argmax(1) == yb).sum()) for xb, yb in batches)
        torch.set_num_threads(1)
        model.train(was_training)
        return right / len(y)

    return accuracy

"""Loss and accuracy of a model over a whole set: one implementation for server and clients."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch

from task.numerics.arrays import Arrays
from task.tasks.base import Task, counted
from task.tasks.kinds import CLASSIFICATION
from task.tasks.metrics import added

# On two cores 10,000 images cost the CNN 1.5 s at batches of 128 or 250 and 2.3 s at 500 (caches); the
# small models gain little from more.
BATCH = 250
MOST = 1 << 24
Test = Callable[[torch.Tensor, torch.Tensor, Task], tuple[dict[str, float], Arrays]]
"""Inputs and targets of some examples, and a task with its metrics -> what `measure` returns of a model."""


def measure(
    model: torch.nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    batch: int = BATCH,
    threads: int = 1,
    task: Task = CLASSIFICATION,
) -> tuple[dict[str, float], Arrays]:
    """Return loss and accuracy over x and y, [N, ...], and the sums of the task's further metrics.

    The first are ``loss``, ``num-examples`` and, if the task has one, ``accuracy``; that of survival
    counts the pairs within batches. Inputs, targets and
    outputs are as in `task.tasks`. Targets of -100 (padding in text) do not count. For text each byte is an
    example. `threads` share the batches. With one torch thread each, they have no barrier to wait at when
    others want the cores too; the result does not depend on their number. Of outputs with a class at each of
    many places a batch has fewer examples, so that no more than `MOST` logits are in memory.
    """
    batch = max(1, min(batch, MOST // max(math.prod(y.shape[1:]) * task.measures.classes, 1)))

    def one(i: int) -> tuple[float, tuple[int, int], int, Arrays]:
        with torch.inference_mode():
            yb = y[i : i + batch]
            outputs = model(x[i : i + batch])
            loss, count = float(task.total(outputs, yb)), int(counted(yb).sum())
            seen = task.main(outputs)
            return loss, task.judged(seen, yb), count, task.measures.sums(seen, yb, count)

    was_training = model.training
    model.eval()
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        parts = list((pool.map if pool else map)(one, range(0, len(x), batch)))
    model.train(was_training)
    count = sum(part[2] for part in parts)
    n = max(count, 1)
    right, of = (sum(part[1][i] for part in parts) for i in (0, 1))
    accuracy = {"accuracy": right / of if of else task.undecided} if task.spec.accuracy else {}
    found = {"loss": math.fsum(part[0] for part in parts) / n, **accuracy, "num-examples": count}
    return found, added([part[3] for part in parts])

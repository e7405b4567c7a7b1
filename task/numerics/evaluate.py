"""Loss and accuracy of a model over a whole set: one implementation for server and clients."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch.nn.functional import cross_entropy

# On two cores 10,000 images cost the CNN 1.5 s at batches of 128 or 250 and 2.3 s at 500 (caches); the
# small models gain little from more.
BATCH = 250


def evaluate(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int = BATCH, threads: int = 1
) -> dict[str, float]:
    """Return ``loss``, ``accuracy`` and ``num-examples`` over x [N, ...] and y [N] or [N, T], int64.

    The model gives logits [B, C] or [B, C, T]. Targets of -100 (padding in text) do not count. For text each
    byte is an example. `threads` share the batches. With one torch thread each, they have no barrier to wait
    at when others want the cores too; the result does not depend on their number.
    """

    def one(i: int) -> tuple[float, int, int]:
        with torch.inference_mode():
            yb = y[i : i + batch]
            logits = model(x[i : i + batch])
            loss = cross_entropy(logits, yb, reduction="sum")
            return float(loss), int((logits.argmax(1) == yb).sum()), int((yb >= 0).sum())

    was_training = model.training
    model.eval()
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        parts = list((pool.map if pool else map)(one, range(0, len(x), batch)))
    model.train(was_training)
    count = sum(n for _, _, n in parts)
    n = max(count, 1)
    loss, correct = math.fsum(part[0] for part in parts), sum(part[1] for part in parts)
    return {"loss": loss / n, "accuracy": correct / n, "num-examples": count}

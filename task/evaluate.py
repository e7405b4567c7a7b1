"""Loss and accuracy of a model over a whole set: one implementation for server and clients."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

# On two cores 10,000 images at batches of 1,000 cost nearly twice as much as at 128 (caches); a longer
# batch only pays for the small models.
BATCH = 256


def evaluate(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int = BATCH
) -> dict[str, float]:
    """Return ``loss``, ``accuracy`` and ``num-examples`` over all of `x`.

    Targets of -100 (padding in text) do not count. For text each byte is an example.

    Args:
        model: Gives logits [B, C] or [B, C, T].
        x: Inputs [N, ...].
        y: Targets [N] or [N, T], int64.
        batch: Examples worked on at once.
    """
    loss = torch.zeros((), dtype=torch.float64)
    correct = torch.zeros((), dtype=torch.int64)
    count = 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for xb, yb in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            logits = model(xb)
            loss += cross_entropy(logits, yb, reduction="sum").to("cpu", torch.float64)
            correct += (logits.argmax(1) == yb).sum().cpu()
            count += int((yb >= 0).sum())
    model.train(was_training)
    n = max(count, 1)
    return {"loss": float(loss) / n, "accuracy": int(correct) / n, "num-examples": count}

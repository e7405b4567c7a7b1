"""Early stopping: has the metric plateaued?"""

from collections.abc import Mapping, Sequence
from typing import Any

# Keys of a round's row that count, the first that any round has: each with whether more is better.
MEASURES = {"accuracy": True, "loss": False, "client_accuracy": True, "client_loss": False}


def plateau(rows: Sequence[Mapping[str, Any]], patience: int, delta: float) -> bool:
    """Return whether the last round was measured, `patience` rounds or more after the last better one.

    A round is better if its accuracy exceeds the best one so far by more than `delta`; where there is no
    accuracy, if its loss is below the least one by more than that. The server's numbers come first, then the
    clients'. It follows from the rows alone, so a run that is resumed stops where one in one go does.

    >>> rows = [{"round": t, "accuracy": a} for t, a in enumerate([0.1, 0.5, 0.52, 0.53])]
    >>> plateau(rows, 2, 0.05), plateau(rows, 2, 0.0), plateau(rows, 3, 0.05)
    (True, False, False)
    """
    if not patience:
        return False
    key = next((k for k in MEASURES if any(row.get(k) is not None for row in rows)), None)
    if key is None or rows[-1].get(key) is None:
        return False
    sign = 1.0 if MEASURES[key] else -1.0
    best, since = -float("inf"), rows[0]["round"]
    for row in rows:
        if row.get(key) is not None and sign * row[key] > best + delta:
            best, since = sign * row[key], row["round"]
    return bool(rows[-1]["round"] - since >= patience)

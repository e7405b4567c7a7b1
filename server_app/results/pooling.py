"""What it would take to pool the data of a run: the bytes of all training examples in one place."""

import math
from collections.abc import Mapping
from typing import Any

_PIXEL, _NUMBER = 1, 4  # bytes


def pooled_bytes(card: Mapping[str, Any]) -> int | None:
    """Return the bytes of all clients' training examples, uncompressed, sent once.

    A pixel is a byte, any other number four, as is the target. None if the data have no one form, as the
    columns of vertical parties.

    Args:
        card: What ``config.json`` has under "data".

    >>> pooled_bytes({"train_examples": 10, "input_shape": [1, 8, 8], "kind": "image"})
    680
    """
    shape, examples = card.get("input_shape"), card.get("train_examples")
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape) or not examples:
        return None
    width = _PIXEL if card.get("kind") == "image" else _NUMBER
    return int(examples) * (math.prod(shape) * width + _NUMBER)

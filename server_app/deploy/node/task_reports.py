"""What the process of a task tells its parent: a few numbers in a record of fixed size, see `RECORD`.

The process may have run an app that the SuperLink sent, and could write anything into the pipe. The parent
reads nothing from it that could be run, or that could grow.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

RECORD = struct.Struct("!B?Qd")  # kind; whether it trains; run id; time to live, s
BEGUN, PUSHING, DONE = 1, 2, 3  # in this order, each once
KINDS = (BEGUN, PUSHING, DONE)


@dataclass(frozen=True)
class Told:
    """One record.

    Attributes:
        kind: `BEGUN` when the process has its message, `PUSHING` before it gives its answer, `DONE` after.
        trains: Whether the message asks for training; of `BEGUN`, as are the others.
        run: The message's run.
        ttl: The message's time to live, in seconds.
    """

    kind: int
    trains: bool = False
    run: int = 0
    ttl: float = 0.0


Tell = Callable[[Told], None]


def teller(pipe: int) -> Tell:
    """Return what tells the parent through a pipe."""

    def tell(told: Told) -> None:
        os.write(pipe, RECORD.pack(told.kind, told.trains, told.run, told.ttl))

    return tell


def read(record: bytes) -> Told:
    """Return what a record says.

    Raises:
        ValueError: Nobody who uses `teller` wrote it.
    """
    told = Told(*RECORD.unpack(record))
    if told.kind not in KINDS or not (math.isfinite(told.ttl) and told.ttl >= 0):
        raise ValueError(f"expected a record of kind {KINDS} and a time to live; got {record.hex()}")
    return told

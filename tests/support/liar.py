"""A client that lies: tamper functions that change what one node of a `LocalGrid` sends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from task.numerics.arrays import Arrays
from task.wire import messages as wire

Tamper = Callable[[int, Message], Message | None]


def liar(
    *,
    scalars: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
    arrays: Callable[[Arrays], Arrays] | None = None,
    kind: str = "train",
    rounds: Collection[int] = (),
    nodes: Collection[int] = (0,),
) -> Tamper:
    """Return a tamper function.

    Args:
        scalars: What some metrics become; of a merged reply, of each of its clients.
        drop: Metrics that are left out.
        arrays: What becomes of each array record.
        kind: Kind of the messages that are answered so.
        rounds: Rounds in which it lies; none = all.
        nodes: Indices of the nodes that lie.
    """

    def tamper(node: int, reply: Message) -> Message | None:
        right = reply.metadata.message_type == kind and node in nodes
        if not right or (rounds and int(reply.metadata.group_id) not in rounds):
            return reply
        content = reply.content
        held = dict(content["metrics"])  # type: ignore[arg-type]
        many = wire.ANSWERED in content
        held |= {k: [v] * len(held["num-examples"]) if many else v for k, v in (scalars or {}).items()}  # type: ignore[arg-type]
        content["metrics"] = MetricRecord({k: v for k, v in held.items() if k not in drop})
        for name, record in content.array_records.items() if arrays else ():
            content[name] = wire.pack_arrays(arrays(wire.read_arrays(record)))  # type: ignore[misc]
        return reply

    return tamper


def times(factor: float) -> Callable[[Arrays], Arrays]:
    """Return what multiplies floating arrays by a factor."""

    def scaled(arrays: Arrays) -> Arrays:
        return {n: (a * np.asarray(factor, a.dtype)) if a.dtype.kind == "f" else a for n, a in arrays.items()}

    return scaled

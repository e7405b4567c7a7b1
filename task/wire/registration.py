"""The roll call on the wire: a node says which clients it can train, of how many examples.

The server's query has no content; the answer is the record ``roll_call`` and, in ``metrics``, the clients'
``num-examples``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from task.errors import ConfigError, WireError
from task.population import ClientNames
from task.wire.checks import check_name, short
from task.wire.messages import LONGEST_LINE, METRICS, NUM_EXAMPLES, one_line, records_of

REGISTER = "roll_call"  # action of the query message that asks a node for its clients
MOST_CLIENTS = 10**7  # that a node may say it can train


@dataclass(frozen=True)
class Registration:
    """What a node says of itself.

    Attributes:
        clients: Names of the clients that it can train; `ClientNames` travel as their number.
        num_examples: Their training examples, integers ``[len(clients)]``.
        pool: Nodes with the same pool share data and client state and can stand in for each other.
        share: (partition-id, num-partitions): if other pools claim a client too, the node whose share
            it is trains it.
        version: Version of the app on the node.
        shape: Shape of one example as the model sees it; empty if unknown.
        classes: Number of classes; 0 if unknown.
        foreign: Whether the node's app is not Bouquet's and has no roll call.
        whole: Whether its share of the clients counts as one client.
    """

    clients: Sequence[str]
    num_examples: np.ndarray
    pool: str
    share: tuple[int, int] = (0, 1)
    version: str = ""
    shape: tuple[int, ...] = ()
    classes: int = 0
    foreign: bool = False
    whole: bool = False


def registration_content(answer: Registration) -> RecordDict:
    """Return the content of a node's answer to the roll call; one count stands for as many equal ones."""
    names = answer.clients
    config = ConfigRecord(
        {
            "clients": len(names) if isinstance(names, ClientNames) else list(names),
            "pool": answer.pool,
            "share": list(answer.share),
            "version": answer.version,
            "shape": list(answer.shape),
            "classes": answer.classes,
        }
    )
    counts = np.asarray(answer.num_examples)
    told = counts[:1] if (counts == counts[:1]).all() else counts
    return RecordDict({REGISTER: config, METRICS: MetricRecord({NUM_EXAMPLES: told.tolist()})})


def refusal_content(reason: str) -> RecordDict:
    """Return the answer of a node that cannot take part: its configuration or its data are wrong."""
    return RecordDict({REGISTER: ConfigRecord({"refused": reason}), METRICS: MetricRecord()})


def read_registration(content: RecordDict) -> Registration:
    """Read a node's answer to the roll call.

    Raises:
        ConfigError: The node refuses, and says why.
        WireError: A part is missing or the lists do not match.
    """
    if REGISTER not in records_of(content, ConfigRecord) or METRICS not in records_of(content, MetricRecord):
        raise WireError("roll call: expected the records 'roll_call' and 'metrics'", REGISTER)
    config = records_of(content, ConfigRecord)[REGISTER]
    if "refused" in config:
        raise ConfigError(one_line(str(config["refused"]), "no reason given"))
    told = config.get("clients")
    if isinstance(told, int) and not isinstance(told, bool):
        if not 1 <= told <= MOST_CLIENTS:
            raise WireError(f"roll call: expected 1 to {MOST_CLIENTS} clients; got {told}", "clients")
        clients: Sequence[str] = ClientNames(told)
    else:
        clients = tuple(check_name(c) for c in told) if isinstance(told, list) else ()
        if not isinstance(told, list) or len(set(clients)) < len(clients):
            raise WireError(f"roll call: expected names, each once; got {short(told)}", "clients")
    listed = _whole(records_of(content, MetricRecord)[METRICS].get(NUM_EXAMPLES), NUM_EXAMPLES, 0, 2**53)
    counts = np.array(listed, np.int64)
    if counts.shape not in ((1,), (len(clients),)):
        raise WireError(
            f"roll call: expected {len(clients)} example counts, or one; got {counts.size}", NUM_EXAMPLES
        )
    counts = np.broadcast_to(counts, len(clients))
    share, shape = (
        _whole(config.get("share"), "share", 0, 2**31),
        _whole(config.get("shape"), "shape", 0, 2**31),
    )
    if len(share) != 2 or share[0] >= share[1] or len(shape) > 8:
        raise WireError(f"roll call: expected a share below its number; got {share}, {shape}", "share")
    (classes,) = _whole([config.get("classes")], "classes", 0, 2**31)
    pool, version = (one_line(str(config.get(k, ""))[:LONGEST_LINE], "") for k in ("pool", "version"))
    return Registration(clients, counts, pool, (share[0], share[1]), version, tuple(shape), classes)


def _whole(values: object, what: str, low: int, high: int) -> list[int]:
    """Return a list of integers of a range, or refuse it."""
    if not isinstance(values, list):
        raise WireError(f"roll call: expected {what!r} as a list; got {short(values)}", what)
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or not low <= v <= high:
            raise WireError(f"roll call: expected integers from {low} to {high}; got {short(v)}", what)
    return values

"""Share the bytes of a message among the clients of one node."""

from collections.abc import Mapping, Sequence
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from task.catalogue.entry import Algorithm
from task.wire.in_place import record_bytes
from task.wire.messages import CONFIG, payload_bytes, records_of

# By name of an array record, the clients that it is for or from; a record that is not in it is for all
# clients.
Owners = Mapping[str, Sequence[str]]


def shares(content: RecordDict, clients: Sequence[str], owners: Owners) -> dict[str, float]:
    """Return the bytes of a message by client; they add up to those of the message.

    A record counts in equal parts for its owners, everything else in equal parts for all clients.
    """
    found, rest = dict.fromkeys(clients, 0.0), payload_bytes(content)
    for name, record in records_of(content, ArrayRecord).items() if owners else ():
        if whose := owners.get(name):
            size = record_bytes(record)
            rest -= size
            for client in whose:
                found[client] += size / len(whose)
    return {client: size + rest / len(clients) for client, size in found.items()}


def recipients(order: RecordDict) -> Owners:
    """Return whose the downward records are that differ by client, see `task.wire.messages.train_content`."""
    found: dict[str, list[str]] = {}
    for key, value in records_of(order, ConfigRecord).get(CONFIG, ConfigRecord()).items():
        field, _, client = key.partition(":")
        if client and isinstance(value, list):
            for name in cast("list[str]", value):
                found.setdefault(f"{field}.{name}", []).append(client)
    return found


def senders(contract: Algorithm, clients: Sequence[str]) -> Owners:
    """Return whose the upward records are that a node forwards one by one."""
    return {f"{r.name}.{c}": (c,) for r in contract.up if r.carry == "each" for c in clients}

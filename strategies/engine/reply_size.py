"""Check the size limit of replies against the model before anything is sent.

A link refuses a reply that is larger than its ``max-reply``, node by node and only once most of it has come.
"""

from collections.abc import Mapping

from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.encryption import ckks
from task.errors import ConfigError
from task.numerics.arrays import NamedArrays
from task.wire.coding import Coder

SUM_BYTES = 12  # of a number in the sum over a node's clients
OTHERS, OF_CLIENT = 1 << 20, 1 << 14  # bytes of scalars, names and heads; those of each client
MIB = 1 << 20


def reply_bytes(
    entry: Algorithm, like: Mapping[str, NamedArrays], clients: int, coder: Coder | None = None
) -> dict[str, int]:
    """Return, by record, the largest size of its arrays in a valid reply for this number of clients."""
    up = coder.forwarding(clients).up if coder else entry.up
    return {record.name: _bytes(record, like[record.name], clients, coder) for record in up}


def _bytes(record: Record, arrays: NamedArrays, clients: int, coder: Coder | None) -> int:
    if record.encrypted:
        return ckks.most_bytes(arrays)
    each, size = record.carry == "each" or clients == 1, sum(a.nbytes for a in arrays.values())
    if coder and record.coded and each:
        bare = sum(a.nbytes for name, a in arrays.items() if name not in coder.bases[record.name])
        return clients * (coder.most_bytes(record) + bare)
    return clients * size if each else sum(max(a.nbytes, SUM_BYTES * a.size) for a in arrays.values())


def check_size(sizes: Mapping[str, int], clients: int, limit: int, where: str) -> None:
    """Refuse a run whose replies exceed a link's `limit` in bytes, 0 = none.

    `sizes` are by record, as of `reply_bytes`; `where` is the file of the link's key.

    Raises:
        ConfigError: With the figures, and the key to set.
    """
    most = sum(sizes.values()) + OTHERS + clients * OF_CLIENT
    if not limit or most <= limit:
        return
    needed = f"{-(-most // MIB)}M"
    parts = ", ".join(f"{name} {size / MIB:.1f} MB" for name, size in sizes.items())
    of = "one client" if clients == 1 else f"{clients} clients"
    raise ConfigError(
        f'{where}: key "max-reply": expected at least {needed} for this run: the reply of a node with {of} '
        f'has up to {most / MIB:.1f} MB ({parts}); got {limit / MIB:g}M. Set max-reply = "{needed}" and '
        "start the link again, or send less (codec.up, a smaller model, fewer clients a node)"
    )

"""Check the size limit of replies against the model before anything is sent.

A link refuses a reply that is larger than its ``max-reply``, node by node and only once most of it has come.
"""

from collections.abc import Mapping, Sequence

from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.errors import ConfigError
from task.numerics.arrays import NamedArrays
from task.units import MIB, size_option
from task.wire.encoding import PLAIN, Encoding
from task.wire.messages import NodeReply

OTHERS, OF_CLIENT = 1 << 20, 1 << 14  # bytes of scalars, names and heads; those of each client
RECORD, ARRAY = 2048, 512  # bytes of the head of a record, and of an array's besides its name
LARGEST = (1 << 31) - 1  # bytes of a reply to any link


def own_bytes(
    up: Sequence[Record], like: Mapping[str, NamedArrays], answer: NodeReply, encoding: Encoding
) -> dict[str, int]:
    """Return by client the bytes of its own upward arrays and codes; of what its node has merged, at most."""
    merged, found = 0, dict.fromkeys(answer.clients, 0)
    for r in up:
        if answer.upload is None and r.carry == "partial":
            merged += own_most([r], like, encoding)
            continue
        for client in found:
            sent = answer.upload.arrays[r.name] if answer.upload else answer.partials[r.name][client]
            found[client] += sum(a.nbytes for name, a in sent.items() if name)
    return {client: size + merged for client, size in found.items()}


def own_most(up: Sequence[Record], like: Mapping[str, NamedArrays], encoding: Encoding) -> int:
    """Return the most bytes that a client's own records can have: arrays have what `like` has."""
    return sum(encoding.most_bytes(r, like[r.name]) for r in up)


def reply_bytes(
    entry: Algorithm, like: Mapping[str, NamedArrays], clients: int, encoding: Encoding = PLAIN
) -> dict[str, int]:
    """Return by record the largest size of its arrays in a valid reply for this number of clients.

    `like` has, by upward record, arrays of the expected names, shapes and dtypes.
    """
    found = {}
    for r in encoding.forwarding(entry, clients).up:
        form = like[r.name]
        alone = clients == 1 or r.carry == "each"
        found[r.name] = clients * encoding.most_bytes(r, form) if alone else encoding.most_sum_bytes(r, form)
    return found


def most_bytes(
    entry: Algorithm, like: Mapping[str, NamedArrays], clients: int, encoding: Encoding = PLAIN
) -> int:
    """Return the bytes that a whole reply may have at most: those of `reply_bytes` and around them."""
    most = OTHERS + clients * OF_CLIENT + sum(reply_bytes(entry, like, clients, encoding).values())
    for r in encoding.forwarding(entry, clients).up:
        copies = clients if r.carry == "each" else 2  # the parts of a sum
        most += copies * (RECORD + sum(ARRAY + 2 * len(name) for name in like[r.name]))
    return most


def check_size(sizes: Mapping[str, int], clients: int, limit: int, where: str) -> None:
    """Refuse a run whose replies exceed a link's `limit` in bytes, 0 = none.

    `sizes` are by record, as of `reply_bytes`; `where` is the file of the link's key.

    Raises:
        ConfigError: With the figures, and the key to set.
    """
    most = sum(sizes.values()) + OTHERS + clients * OF_CLIENT
    if not limit or most <= limit:
        return
    needed = size_option(most)
    parts = ", ".join(f"{name} {size / MIB:.1f}M" for name, size in sizes.items())
    of = "one client" if clients == 1 else f"{clients} clients"
    needs = f'Set max-reply = "{needed}" and start the link again, or send less'
    if most > LARGEST:
        needs = f"No link takes replies of more than {LARGEST // MIB}M: send less"
    raise ConfigError(
        f'{where}: key "max-reply": expected at least {needed} for this run: the reply of a node with {of} '
        f"has up to {most / MIB:.1f}M ({parts}); got {limit / MIB:g}M. {needs} "
        "(codec.up, a smaller model, fewer clients a node)"
    )

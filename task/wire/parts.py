"""Several small objects of a message in one call between a node and a link of ours.

A node that asks for an object with `PARTS_HEADER` gets all that fit of the message, where a stock SuperLink
answers with that one object: so the node learns whether it may send the parts of its reply likewise.
"""

import struct
from collections.abc import Iterable, Iterator

PARTS_HEADER = "bouquet-parts"
MAGIC = b"\0parts\0\1"  # with which no object begins
HEAD = struct.Struct("!64sI")  # id of an object, bytes of its content
MOST = 4 * 1024**2  # bytes of a call


def pack(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return objects, by id, as the content of one call."""
    return MAGIC + b"".join(HEAD.pack(name.encode("ascii"), len(data)) + data for name, data in parts)


def unpack(content: bytes) -> dict[str, bytes] | None:
    """Return the objects that `pack` packed; None if it is the content of one object.

    Raises:
        ValueError: It ends in the midst of one.
    """
    if not content.startswith(MAGIC):
        return None
    found, at = {}, len(MAGIC)
    while at < len(content):
        if at + HEAD.size > len(content):
            raise ValueError("expected the id and length of an object; got less")
        name, size = HEAD.unpack_from(content, at)
        at += HEAD.size + size
        if at > len(content):
            raise ValueError(f"expected {size} bytes of an object; got {len(content) - at + size}")
        found[name.decode("ascii")] = content[at - size : at]
    return found


def batches(parts: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield objects in lists that fit into one call; one that alone does not fit is alone in its list."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for name, data in parts:
        if batch and size + len(data) > MOST:
            yield batch
            batch, size = [], 0
        batch.append((name, data))
        size += len(data)
    if batch:
        yield batch

"""Records of many arrays as one array, for the way between machines.

Flower carries each array as two objects. Each object costs a call, several transactions in the SuperLink's
database and a call on the other side. So for a small model most of a deployed round is spent on handling
parts. Here a record becomes one array of bytes: a length, an index (JSON: name, dtype, shape, form and number
of bytes of each array) and the arrays' own bytes, untouched, one after the other. What comes out is what went
in; it is checked where it would have been checked anyway.

The format is not safetensors: that forgets the order and the form of the arrays, so this index would be in
its metadata; it silently accepts a name twice; and packing is slower.

The ServerApp packs what goes to a node that registered, and the node packs its answer to that.
"""

import json
from collections.abc import Iterator

from flwr.app import Array, ArrayRecord, RecordDict

from task.errors import FieldError
from task.wire.in_place import InPlace, record_bytes, record_of, size_of

FORM = "bouquet.packed"
HEAD_BYTES = 8
MOST_INDEX = 1 << 20  # bytes of the index; some ten thousand arrays
MOST_BYTES = 1 << 26  # a larger record is sent array by array, as packing copies it
_WANTED = "a packed record"


def pack(record: ArrayRecord) -> ArrayRecord:
    """Return a record of one array that holds all of them, or one of the same arrays where that is no gain.

    Flower keeps the bytes of an array that it has sent with the array: they go when what is returned goes.
    """
    if record_bytes(record) > MOST_BYTES:
        return record_of({name: a.again() if isinstance(a, InPlace) else a for name, a in record.items()})
    if len(record) < 2:
        return record
    index = json.dumps(
        [[name, a.dtype, list(a.shape), a.stype, size_of(a)] for name, a in record.items()]
    ).encode()
    if len(index) > MOST_INDEX:
        return record
    data = b"".join([len(index).to_bytes(HEAD_BYTES, "little"), index, *(a.data for a in record.values())])
    return ArrayRecord({"": Array("uint8", (len(data),), FORM, data)})


def unpack(name: str, record: ArrayRecord) -> ArrayRecord:
    """Return the record that was packed; any other as it is.

    Raises:
        FieldError: It says that it is packed and is not, or not whole.
    """
    packed = next(iter(record.values()), None)
    if packed is None or packed.stype != FORM:
        return record
    data = memoryview(packed.data)
    length = int.from_bytes(data[:HEAD_BYTES], "little")
    if len(record) > 1 or length > min(MOST_INDEX, len(data) - HEAD_BYTES):
        raise FieldError(name, _WANTED, f"{len(record)} arrays, {len(data)} bytes, an index of {length}")
    arrays: dict[str, Array] = {}
    at = HEAD_BYTES + length
    for key, dtype, shape, form, size in _index(name, bytes(data[HEAD_BYTES:at])):
        if key in arrays or size > len(data) - at:
            raise FieldError(name, _WANTED, f"{key[:40]!r} twice, or without its {size} bytes")
        arrays[key] = Array(dtype, tuple(shape), form, bytes(data[at : at + size]))
        at += size
    if at != len(data):
        raise FieldError(name, _WANTED, f"{len(data) - at} bytes that belong to no array")
    return ArrayRecord(arrays)


def _index(name: str, text: bytes) -> Iterator[tuple[str, str, list[int], str, int]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise FieldError(name, _WANTED, f"an index that cannot be read: {str(err)[:80]}") from None
    for row in rows if isinstance(rows, list) else [rows]:
        match row:
            case [str(key), str(dtype), [*shape], str(form), int(size)] if size >= 0 and all(
                type(n) is int for n in shape
            ):
                yield key, dtype, shape, form, size
            case _:
                raise FieldError(name, _WANTED, f"the entry {str(row)[:80]} in its index")


def packed(content: RecordDict, done: dict[int, ArrayRecord] | None = None) -> RecordDict:
    """Return a content with its array records packed.

    `done` has, by id of a record, what became of it: a record that goes to many is packed once.
    """
    done = {} if done is None else done
    for record in content.values():
        if isinstance(record, ArrayRecord) and id(record) not in done:
            done[id(record)] = pack(record)
    return RecordDict({n: done[id(r)] if isinstance(r, ArrayRecord) else r for n, r in content.items()})


def unpacked(content: RecordDict) -> RecordDict:
    """Return a content with its array records as they were; raises what `unpack` does."""
    return RecordDict({n: unpack(n, r) if isinstance(r, ArrayRecord) else r for n, r in content.items()})


def is_packed(content: RecordDict) -> bool:
    """Return whether an array record of a content is packed."""
    return any(
        a.stype == FORM for r in content.values() if isinstance(r, ArrayRecord) for a in list(r.values())[:1]
    )

"""Mutations: each takes a generator and a content, changes it in place and says what it did."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.random import Generator

from task.wire import messages as wire
from task.wire import registration
from task.wire.packing import FORM, is_packed, packed, unpacked
from tests.fuzz.draws import NAN, TEXTS, Mutation, flip, names, pick
from tests.fuzz.records import ARRAYS, SCALARS, records, scalar_form, scalar_value

INDICES = [
    "", "[", "[" * 5000, "{}", "null", "NaN", "[[]]", "[1e400]", "[null]", '{"a": 1}', '"text"', "\x00",
    '[["1.weight", "float32", [4], "numpy.ndarray", -1]]',
    '[["1.weight", "float32", [4], "numpy.ndarray", true]]',
    '[["a", "float32", [0], "numpy.ndarray", 0], ["a", "float32", [0], "numpy.ndarray", 0]]',
    f'[["a", "float32", [{10**30}], "numpy.ndarray", 0]]', f'[["", "uint8", [1], "{FORM}", 0]]',
]  # fmt: skip


# ---------------------------------------------------------------------------------------- merged


def answered(rng: Generator, content: RecordDict) -> str:
    """Change who is said to have answered."""
    record = content.get(wire.ANSWERED)
    if not isinstance(record, ConfigRecord):
        if rng.random() < 0.7:
            return ""
        content[wire.ANSWERED] = ConfigRecord({"clients": [pick(rng, TEXTS)]})
        return "a plain reply says who answered"
    told = [str(c) for c in record.get("clients", [])] if isinstance(record.get("clients"), list) else []  # type: ignore[union-attr]
    stranger = pick(rng, [*TEXTS, "anna", "emil"])
    new: Any = pick(
        rng,
        [told[:-1], [*told, *told[:1]], told[:1] * len(told), told[::-1], [*told[:-1], stranger], [], "anna",
         [1, 2], [b"anna"], [*told, stranger], ["x"] * 20_000],
    )  # fmt: skip
    content[wire.ANSWERED] = ConfigRecord({"clients": new} if rng.random() < 0.95 else {})
    return f"answered: {str(new)[:80]}"


def failed(rng: Generator, content: RecordDict) -> str:
    """Add clients that failed, or damage the lines on them."""
    record = content.get(wire.ANSWERED)
    told = list(record.get("clients", [])) if isinstance(record, ConfigRecord) else []  # type: ignore[arg-type]
    if not told or not all(isinstance(c, str) for c in told):
        return ""
    who = [pick(rng, [*told, *TEXTS, "anna"])]
    columns: dict[str, Any] = {"client": who, **{k: [pick(rng, TEXTS)] for k in ("field", "expected", "got")}}
    if rng.random() < 0.3:
        columns[pick(rng, list(columns))] = pick(rng, [[], [1], [b"x"], "x", ["a"] * 3000])
    if rng.random() < 0.5 and len(told) > 1:  # in earnest: one answer less, one failure more
        leaver = int(rng.integers(len(told)))
        columns["client"] = [told[leaver]]
        content[wire.ANSWERED] = ConfigRecord({"clients": [c for i, c in enumerate(told) if i != leaver]})  # type: ignore[dict-item]
        for name in names(content, MetricRecord):
            kept = {
                k: [x for i, x in enumerate(v) if i != leaver] if isinstance(v, list) else v
                for k, v in content[name].items()
            }
            content[name] = MetricRecord(kept)  # type: ignore[arg-type]
        for name in names(content, ArrayRecord):
            if name.partition(".")[2] == told[leaver]:
                del content[name]
    content[wire.FAILED] = ConfigRecord(columns)
    return f"failed: {str(columns)[:200]}"


# ---------------------------------------------------------------------------------------- packed


def packed_bytes(rng: Generator, content: RecordDict) -> str:
    """Damage the bytes of a packed record, its length or its index."""
    found = [n for n in names(content, ArrayRecord) if any(a.stype == FORM for a in content[n].values())]  # type: ignore[union-attr]
    if not found:
        return ""
    record = pick(rng, found)
    (name, array), *_ = content[record].items()
    data = bytearray(array.data)  # type: ignore[union-attr]
    length = int.from_bytes(data[:8], "little")
    way = pick(rng, ["flip", "flip the index", "cut", "longer", "length", "index", "row", "twice", "empty"])
    if way == "flip":
        flip(rng, data, int(rng.integers(1, 20)))
    elif way == "flip the index":
        head = data[8 : 8 + length]
        flip(rng, head, int(rng.integers(1, 5)))
        data[8 : 8 + length] = head
    elif way == "cut":
        data = data[: int(rng.integers(len(data) + 1))]
    elif way == "longer":
        data += rng.bytes(int(rng.integers(1, 50)))
    elif way == "length":
        data[:8] = pick(rng, [0, 1, length - 1, length + 1, 1 << 20, 2**63, 2**64 - 1]).to_bytes(8, "little")
    elif way == "index":
        data = _with_index(data, length, pick(rng, INDICES).encode())
    elif way == "row":
        rows = json.loads(bytes(data[8 : 8 + length]))
        row = pick(rng, rows)
        values: list[Any] = [
            *TEXTS,
            -1,
            0,
            2**31,
            2**62,
            True,
            None,
            [],
            [-1],
            [10**9, 10**9],
            {},
            1.5,
            "float64",
            "object",
        ]
        row[int(rng.integers(len(row)))] = pick(rng, values)
        data = _with_index(data, length, json.dumps(rows).encode())
    elif way == "empty":
        data = bytearray()
    changed = {name: Array("uint8", (len(data),), FORM, bytes(data))}
    content[record] = ArrayRecord(changed | ({"again": changed[name]} if way == "twice" else {}))
    return f"packed {record!r}: {way}"


def _with_index(data: bytearray, length: int, index: bytes) -> bytearray:
    return bytearray(len(index).to_bytes(8, "little") + index) + data[8 + length :]


# ------------------------------------------------------------------------------------- registration


def registered(rng: Generator, content: RecordDict) -> str:
    """Change what a node says of itself."""
    if not isinstance(content.get(registration.REGISTER), ConfigRecord) or wire.METRICS not in content:
        return ""  # another mutation has taken it
    config, counts = dict(content[registration.REGISTER]), dict(content[wire.METRICS])
    clients = config.get("clients")
    stranger = pick(rng, TEXTS)
    new: dict[str, list[Any]] = {
        "clients": [0, -1, 1, 2, 2**31, 10**7 + 1, True, "anna", [], [stranger], ["anna", "anna"], ["anna"],
                    [1], [*clients, stranger] if isinstance(clients, list) else stranger],
        "pool": ["", "other", stranger, f"x/{stranger}", "x/anna", 1, ["x"]],
        "share": [[], [0], [1, 1], [5, 2], [-1, 2], [0, 0], [0, 2**40], "x", [0.0, 1.0]],
        "version": [stranger, 7, "0.0.0"],
        "shape": [[], [-1], [4, 4], [2**31], [1] * 9, "x", [2**30] * 8],
        "classes": [-1, 0, 2, 2**31, 2**40, "x", 1.5],
    }  # fmt: skip
    way = pick(rng, [*new, "refused", "counts", "missing"])
    if way == "refused":
        config = {"refused": stranger}
    elif way == "missing":
        config.pop(pick(rng, list(config)))
    elif way == "counts":
        told = counts.get(wire.NUM_EXAMPLES)
        options = [[], [0], [-1], [2**53], [2**53 + 1], [1.5], [NAN], 3, [0] * 7, [1] * 6]
        counts = {wire.NUM_EXAMPLES: pick(rng, [*options, told * 2 if isinstance(told, list) else [2]])}
    else:
        config[way] = pick(rng, new[way])
    content[registration.REGISTER], content[wire.METRICS] = ConfigRecord(config), MetricRecord(counts)  # type: ignore[arg-type]
    return f"registration, {way}: {str(config)[:200]} {str(counts)[:80]}"


REPLY: tuple[Mutation, ...] = (*SCALARS, *ARRAYS, records, answered, failed)
REGISTRATION: tuple[Mutation, ...] = (*[registered] * 6, scalar_form, scalar_value, records)


def mutate(rng: Generator, content: RecordDict, kind: str) -> tuple[RecordDict, str]:
    """Return a content with one or two mutations, and what they are; the content itself may be changed.

    Args:
        rng: Draws them.
        content: Of a reply. A packed one is mutated in its bytes, or inside and packed again.
        kind: Type of the message that it answers.
    """
    was_packed = is_packed(content)
    if was_packed and rng.random() < 0.4:
        return content, packed_bytes(rng, content)
    if was_packed:
        content = unpacked(content)
    choices = REGISTRATION if kind.startswith("query") else REPLY
    wanted, said = 1 + int(rng.random() < 0.25), [""]
    for _ in range(50):
        if len(said) > wanted:
            break
        if done := pick(rng, choices)(rng, content):
            said.append(done)
    return packed(content) if was_packed else content, "; ".join(said[1:])

"""Mutations of what a reply consists of: its scalars, its arrays and its records."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.random import Generator

from task.wire import messages as wire
from task.wire.packing import FORM
from tests.fuzz.draws import ELEMENTS, FACTORS, NUMBERS, TEXTS, Mutation, flip, names, pick

# --------------------------------------------------------------------------------------- scalars


def _metrics(rng: Generator, content: RecordDict) -> tuple[str, dict[str, Any], str] | None:
    """Return a metric record's name, its values and one of their names."""
    found = names(content, MetricRecord)
    if not found:
        return None
    name = pick(rng, found)
    values = dict(content[name])
    return (name, values, pick(rng, list(values))) if values else None


def scalar_value(rng: Generator, content: RecordDict) -> str:
    """Give a scalar, or one client's of a list, another value."""
    if (found := _metrics(rng, content)) is None:
        return ""
    record, values, key = found
    old = values[key]
    at = int(rng.integers(len(old))) if isinstance(old, list) and old else None
    was = float(old if at is None and not isinstance(old, list) else old[at] if at is not None else 0)
    new = pick(rng, NUMBERS) if rng.random() < 0.7 else was * pick(rng, FACTORS)
    if rng.random() < 0.2:
        new = was + 1
    if isinstance(old, list):
        changed = [float(v) for v in old] if isinstance(new, float) else list(old)
        if at is not None:
            changed[at] = float(new) if any(isinstance(v, float) for v in changed) else new
        values[key] = changed
    else:
        values[key] = (
            int(new) if isinstance(old, int) and float(new).is_integer() and abs(new) < 2**63 else new
        )
    content[record] = MetricRecord(values)
    return f"{record}[{key!r}] = {values[key]!r}"


def scalar_form(rng: Generator, content: RecordDict) -> str:
    """Make a list of a scalar, or a scalar or another number of values of a list."""
    if (found := _metrics(rng, content)) is None:
        return ""
    record, values, key = found
    old = values[key]
    if isinstance(old, list):
        new = pick(rng, [[], old[:-1], [*old, *old[:1]], old * 50, old[::-1], old[0] if old else 1.0])
    else:
        new = pick(rng, [[], [old], [old] * 2, [old] * 5000])
    values[key] = new
    content[record] = MetricRecord(values)
    return f"{record}[{key!r}] has another form: {str(new)[:60]}"


def scalar_missing(rng: Generator, content: RecordDict) -> str:
    """Leave a scalar out."""
    if (found := _metrics(rng, content)) is None:
        return ""
    record, values, key = found
    del values[key]
    content[record] = MetricRecord(values)
    return f"{record} without {key!r}"


def scalar_extra(rng: Generator, content: RecordDict) -> str:
    """Add scalars that nobody asked for, under any name."""
    if (found := _metrics(rng, content)) is None:
        return ""
    record, values, key = found
    form = values[key]
    value = float(pick(rng, NUMBERS))
    given = [value] * len(form) if isinstance(form, list) else value
    name = pick(rng, TEXTS)
    many = {f"m{i}": given for i in range(pick(rng, [900, 1001]))} if rng.random() < 0.1 else {}
    content[record] = MetricRecord({**values, **many, name: given})
    return f"{record}[{name[:60]!r}] = {given!r}, and {len(many)} more"


def scalar_renamed(rng: Generator, content: RecordDict) -> str:
    """Give a scalar another name, or swap two values."""
    if (found := _metrics(rng, content)) is None:
        return ""
    record, values, key = found
    other = pick(rng, [*TEXTS, *values])
    values[key], values[other] = values.get(other, values[key]), values[key]
    if rng.random() < 0.5:
        del values[key]
    content[record] = MetricRecord(values)
    return f"{record}[{key!r}] goes by {other[:60]!r}"


# ---------------------------------------------------------------------------------------- arrays


def _one(rng: Generator, content: RecordDict) -> tuple[str, dict[str, Array], str] | None:
    """Return an array record's name, its arrays and one of their names."""
    found = [name for name in names(content, ArrayRecord) if len(content[name])]
    if not found:
        return None
    name = pick(rng, found)
    arrays = dict(content[name])
    return name, cast(dict[str, Array], arrays), pick(rng, list(arrays))


def _read(array: Array) -> np.ndarray | None:
    """Return an array's numbers; None if another mutation has made it unreadable."""
    try:
        return np.array(array.numpy())
    except Exception:
        return None


def array_numbers(rng: Generator, content: RecordDict) -> str:
    """Change numbers of one array, or of all arrays of a record."""
    if (found := _one(rng, content)) is None:
        return ""
    record, arrays, key = found
    chosen = list(arrays) if rng.random() < 0.3 else [key]
    element, factor, way = pick(rng, ELEMENTS), pick(rng, [1e37, -1e37, 1e6, 1e3, -1.0, 2.0]), rng.integers(3)
    for name in chosen:
        a = _read(arrays[name])
        if a is None or not a.size or a.dtype.kind not in "iuf":
            continue
        if a.dtype.kind != "f":
            ends = np.iinfo(a.dtype)
            element = pick(rng, [ends.min, ends.max, 0, 1, -1, int(a.reshape(-1)[0]) + 1])
            element, factor = max(min(element, ends.max), ends.min), 3
        with np.errstate(all="ignore"):
            if way == 0:
                a[...] = element
            elif way == 1:
                a.reshape(-1)[int(rng.integers(a.size))] = element
            else:
                a = np.asarray(a * a.dtype.type(factor), a.dtype)
        arrays[name] = Array(np.asarray(a, order="C"))
    content[record] = ArrayRecord(arrays)
    done = [f"all {element!r}", f"one element {element!r}", f"times {factor!r}"][way]
    return f"{record}/{chosen}: {done}"


def array_form(rng: Generator, content: RecordDict) -> str:
    """Give an array another dtype, shape or order."""
    if (found := _one(rng, content)) is None:
        return ""
    record, arrays, key = found
    a = _read(arrays[key])
    if a is None:
        return ""
    kinds = ["float64", "float16", "int32", "int64", "bool", "complex64", ">f4", "S3", "U3", "longdouble"]
    ways: list[Callable[[], np.ndarray]] = [
        lambda: a.T, lambda: a[None], lambda: a.reshape(-1), lambda: a.reshape(-1)[:-1],
        lambda: a.reshape(-1)[:0], lambda: np.zeros((), a.dtype), lambda: np.zeros((0, *a.shape), a.dtype),
        lambda: np.concatenate([a.reshape(-1)] * 2),
        *(lambda k=k: a.astype(k) for k in kinds),
    ]  # fmt: skip
    if rng.random() < 0.15:
        held = io.BytesIO()
        fortran = rng.random() < 0.5
        np.save(held, np.asfortranarray(a) if fortran else a.astype(object), allow_pickle=True)
        arrays[key] = Array(str(a.dtype), a.shape, "numpy.ndarray", held.getvalue())
        said = "in Fortran order" if fortran else "as pickled objects"
    else:
        with np.errstate(all="ignore"):
            new = np.asarray(pick(rng, ways)(), order="C")
        arrays[key], said = Array(new), f"as {new.dtype}{list(new.shape)}"
    content[record] = ArrayRecord(arrays)
    return f"{record}/{key} {said}"


def array_bytes(rng: Generator, content: RecordDict) -> str:
    """Damage an array's bytes, or what is said of them."""
    if (found := _one(rng, content)) is None:
        return ""
    record, arrays, key = found
    old = arrays[key]
    dtype, shape, form, data = old.dtype, tuple(old.shape), old.stype, bytearray(old.data)
    way = pick(rng, ["cut", "longer", "flip", "empty", "header", "length", "dtype", "shape", "form"])
    if way == "cut":
        data = data[: int(rng.integers(len(data) + 1))]
    elif way == "longer":
        data += rng.bytes(int(rng.integers(1, 100)))
    elif way == "flip":
        flip(rng, data, int(rng.integers(1, 9)))
    elif way == "empty":
        data = bytearray()
    elif way == "header":
        data[: min(len(data), 128)] = rng.bytes(min(len(data), 128))
    elif way == "length":
        data[8:10] = rng.bytes(2)
    elif way == "dtype":
        dtype = pick(rng, ["float64", "object", "float32\x00", "<f4", "V8", "", "x" * 500])
    elif way == "shape":
        shape = pick(rng, [(-1,), (2**31 - 1,) * 3, (), shape[::-1], (0,), (1,) * 40])
    else:
        form = pick(rng, ["pickle", "", FORM, "x" * 500])
    arrays[key] = Array(dtype, shape, form, bytes(data))
    content[record] = ArrayRecord(arrays)
    return f"{record}/{key}: {way} damaged"


def array_names(rng: Generator, content: RecordDict) -> str:
    """Rename, double, swap, drop or reorder the arrays of a record."""
    if (found := _one(rng, content)) is None:
        return ""
    record, arrays, key = found
    other = pick(rng, list(arrays))
    way = pick(rng, ["rename", "double", "swap", "drop", "reorder", "thousands"])
    if way == "rename":
        arrays = {(pick(rng, TEXTS) if n == key else n): a for n, a in arrays.items()}
    elif way == "double":
        arrays[pick(rng, TEXTS)] = arrays[key]
    elif way == "swap":
        arrays[key], arrays[other] = arrays[other], arrays[key]
    elif way == "drop":
        del arrays[key]
    elif way == "reorder":
        arrays = dict(reversed(arrays.items()))
    else:
        arrays |= {f"n{i}": arrays[key] for i in range(2000)}
    content[record] = ArrayRecord(arrays)
    return f"{record}: {way} {key!r}"


# --------------------------------------------------------------------------------------- records


def records(rng: Generator, content: RecordDict) -> str:
    """Drop, rename, double, swap, empty or add a record, or make it another kind of record."""
    found = list(content)
    if not found:
        return ""
    key, other = pick(rng, found), pick(rng, found)
    record = content[key]
    way = pick(rng, ["drop", "rename", "double", "swap", "empty", "add", "kind", "all"])
    if way == "drop":
        del content[key]
    elif way == "rename":
        del content[key]
        content[pick(rng, [*TEXTS, "arrays.mid", "control", "metrics", wire.ANSWERED])] = record
    elif way == "double":
        content[pick(rng, [*TEXTS, "arrays.mid", "arrays.low", "gradient"])] = record
    elif way == "swap":
        content[key], content[other] = content[other], content[key]
    elif way == "empty":
        content[key] = type(record)()
    elif way == "add":
        new = pick(rng, [ArrayRecord(), MetricRecord({"x": 1.0}), ConfigRecord({"x": "<b>"})])
        content[pick(rng, [*TEXTS, wire.ANSWERED, wire.FAILED])] = new
    elif way == "kind":
        content[key] = ConfigRecord({"num-examples": True, "train-loss": "0.5", "clients": "anna"})
    else:
        content.clear()
    return f"record {key!r}: {way}"


SCALARS: tuple[Mutation, ...] = (
    *[scalar_value] * 4,
    scalar_form,
    scalar_missing,
    scalar_extra,
    scalar_renamed,
)
ARRAYS: tuple[Mutation, ...] = (*[array_numbers] * 3, array_form, array_bytes, array_names)

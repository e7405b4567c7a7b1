"""The gate that every upload passes: on the node before it is folded, on the server when it arrives."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from task.catalogue.entry import COMMON, NUM_EXAMPLES, Algorithm
from task.catalogue.record import Record, Scalar
from task.errors import FieldError
from task.numerics.arrays import NamedArrays
from task.numerics.held import Foldable, dense, peak
from task.numerics.terms import FINITE
from task.population import LONGEST_NAME, is_name

MOST_SCALARS = 1000  # of one client
NO_TESTS = "test data"  # field of a client that has no examples of its own to measure on
LARGEST = float(np.finfo(np.float32).max)  # of a scalar: sums and means of many stay finite


def check_records(entry: Algorithm, got: Mapping[str, object]) -> None:
    """Refuse an answer that lacks an upward record of its contract, or has another one.

    Raises:
        FieldError: Naming the record.
    """
    want = {f.name for f in entry.up}
    if got.keys() != want:
        raise FieldError(
            min(want ^ got.keys())[:LONGEST_NAME], f"the records {sorted(want)}", f"{sorted(got)[:20]}"
        )


def check_arrays(what: str, arrays: Foldable, like: NamedArrays) -> dict[str, float]:
    """Refuse arrays that differ from `like` in names, shapes or dtypes, or are not finite.

    Returns:
        By name, the largest absolute value of the arrays that float.

    Raises:
        FieldError: Naming ``what/array``, what was expected and what was got.
    """
    if arrays.keys() != like.keys():
        missing, extra = sorted(like.keys() - arrays.keys()), sorted(arrays.keys() - like.keys())
        got = f"{len(arrays)} with missing {missing[:9]} and extra {[name[:80] for name in extra[:9]]}"
        raise FieldError(what, f"{len(like)} arrays as sent", got)
    peaks: dict[str, float] = {}
    for name, a in arrays.items():
        want = like[name]
        if a.shape != want.shape or a.dtype != want.dtype:
            expected = f"{want.dtype}{list(want.shape)}"
            raise FieldError(f"{what}/{name}", expected, f"{a.dtype}{list(a.shape)}")
        if a.dtype.kind == "f":
            peaks[name] = peak(a)
            if not math.isfinite(peaks[name]):
                bad = int(a.size - np.count_nonzero(np.isfinite(dense(a))))
                raise FieldError(f"{what}/{name}", f"{FINITE}s", f"NaN or infinity in {bad} of {a.size}")
    return peaks


def check_scalars(
    entry: Algorithm, scalars: Mapping[str, object], most: Mapping[str, float] | None = None
) -> None:
    """Refuse a missing scalar, one that is not finite, and one outside its range in the catalogue.

    A scalar that the catalogue does not know, such as a metric of another app, has to be finite.

    `most` has upper limits of some scalars that hold for this client, below those of the catalogue.

    Raises:
        FieldError: Naming the scalar.
    """
    fields = {f.name: f for f in (*COMMON, *entry.up_scalars)}
    for f in (NUM_EXAMPLES, *entry.up_scalars):
        if f.required and f.name not in scalars:
            raise FieldError(f.name, f"{f.meaning}, {_range(f, f.high)}", "nothing")
    for name, value in scalars.items():
        field = fields.get(name, Scalar(name, ""))
        high = min(field.high, (most or {}).get(name, LARGEST), LARGEST)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number and (not field.whole or isinstance(value, int) or cast(float, value).is_integer())
        if not fits or not max(field.low, -LARGEST) <= cast(float, value) <= high:
            raise FieldError(name, _range(field, high), short(value))


def _range(field: Scalar, high: float) -> str:
    """Return the values of a field in words."""
    low, high = max(field.low, -LARGEST), min(high, LARGEST)
    if field.whole:
        return f"an integer from {low:.0f} to {high:.0f}"
    return f"a {FINITE} from {low:.3g} to {high:.6g}"


def check_weights(record: Record, arrays: NamedArrays, rows: Sequence[Mapping[str, float]]) -> None:
    """Refuse weights that one client's record, or the sum of several, cannot have; `rows` are the scalars.

    Raises:
        FieldError: Naming the array.
    """
    weights = arrays[record.weights]
    most = sum(int(row[NUM_EXAMPLES.name]) for row in rows) if record.weights == "counts" else len(rows)
    low, total = int(weights.min(initial=0)), int(weights.sum())
    if low < 0 or total > most:
        expected = f"integers from 0 that add up to {most} at most, of {len(rows)} clients"
        raise FieldError(f"{record.name}/{record.weights}", expected, f"{low if low < 0 else total}")


def diverged(expected: str) -> bool:
    """Return whether a reply was refused for the size of its numbers, given what was expected of it."""
    return FINITE in expected


def check_columns(columns: Mapping[str, object]) -> None:
    """Refuse too many scalars, or unreadable names.

    Raises:
        FieldError: Naming the scalar.
    """
    if len(columns) > MOST_SCALARS:
        raise FieldError("metrics", f"at most {MOST_SCALARS} scalars", f"{len(columns)}")
    for name in columns:
        check_name(name)


def check_name(name: object) -> str:
    """Return a name from outside if it can stand in a log.

    Raises:
        FieldError: It is empty, long, or has letters that do not print.
    """
    if not is_name(name):
        raise FieldError(short(name), f"a name of 1 to {LONGEST_NAME} letters that print", short(name))
    return str(name)


def short(value: object) -> str:
    """Return a few words on a value of any size."""
    if isinstance(value, list | tuple | dict) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | bytes):
        value = value[:80]
    return repr(value)[:80]

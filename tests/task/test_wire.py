"""Arrays on the wire, and the one gate: what does not fit is refused by name."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import Scalar
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.wire import checks
from task.wire import messages as wire
from tests.support.records import MODEL, through

AVG = ALGORITHMS["fedavg"]


# ---------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "array",
    [
        np.array(3, np.int64),
        np.array(0.1, np.float16),
        np.zeros((0, 3), np.float32),
        np.arange(12, dtype=np.float64).reshape(3, 4).T,
        np.arange(9, dtype=np.float32)[::2],
        np.array([np.nan, -np.inf, -0.0]),
        np.array([True, False]),
        np.array([255, 0], np.uint8),
    ],
    ids=str,
)
def test_arrays_keep_shape_dtype_and_bits(array: np.ndarray) -> None:
    content = through(RecordDict({"arrays": wire.pack_arrays({"a": array})}))
    got = wire.read_arrays(content.array_records["arrays"])["a"]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == np.ascontiguousarray(array).tobytes()


def test_names_keep_their_order() -> None:
    names = ["z", "a", "m/x", ""]
    content = through(RecordDict({"arrays": wire.pack_arrays({n: np.zeros(1) for n in names})}))
    assert list(wire.read_arrays(content.array_records["arrays"])) == names


LIES = {
    "garbage": Array("float32", (2,), "numpy.ndarray", b"not an array"),
    "more than there is": Array("float32", (2_000_000_000,), "numpy.ndarray", b"\x93NUMPY" + b"x" * 99),
    "another form": Array("float32", (2,), "torch.save", b"x" * 64),
    "no dtype": Array("float33", (2,), "numpy.ndarray", b"x" * 64),
    "pickled objects": Array("object", (1,), "numpy.ndarray", b"x" * 64),
}


@pytest.mark.parametrize("kind", sorted(LIES))
def test_an_array_that_cannot_be_read_is_named(kind: str) -> None:
    with pytest.raises(FieldError) as error:
        wire.read_arrays(ArrayRecord({"layer": LIES[kind]}))
    assert error.value.field == "layer"


def test_a_header_that_claims_more_than_there_is_is_refused_before_anything_is_decoded() -> None:
    lie = Array("float32", (2_000_000_000,), "numpy.ndarray", b"")
    with pytest.raises(FieldError, match=r"8000000000 bytes for shape \(2000000000,\); got 0 bytes"):
        wire.read_arrays(ArrayRecord({"layer": lie}))


def test_a_pickle_is_not_executed() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FieldError):
        wire.read_arrays(ArrayRecord({"layer": Array("object", (1,), "numpy.ndarray", buffer.getvalue())}))


# ----------------------------------------------------------------------------------------- checks


def changed(**arrays: Any) -> Arrays:
    return {k: a for k, a in (MODEL | arrays).items() if a is not None}


@pytest.mark.parametrize(
    ("arrays", "field", "expected", "got"),
    [
        (changed(seen=None), "up", "3 arrays as sent", r"2 with missing \['seen'\] and extra \[\]"),
        (changed(more=np.zeros(1)), "up", "3 arrays as sent", r"missing \[\] and extra \['more'\]"),
        (changed(**{"1.bias": np.zeros(2, np.float32)}), "up/1.bias", r"float32\[1\]", r"float32\[2\]"),
        (changed(**{"1.bias": np.zeros((), np.float32)}), "up/1.bias", r"float32\[1\]", r"float32\[\]"),
        (changed(**{"1.bias": np.zeros((1, 1), "f4")}), "up/1.bias", r"float32\[1\]", r"float32\[1, 1\]"),
        (changed(**{"1.bias": np.zeros(1)}), "up/1.bias", r"float32\[1\]", r"float64\[1\]"),
        (changed(seen=np.array(1.0)), "up/seen", r"int64\[\]", r"float64\[\]"),
        (changed(**{"1.bias": np.array([np.nan], np.float32)}), "up/1.bias", "finite", "in 1 of 1"),
        (changed(**{"1.weight": np.array([[0, np.inf, -np.inf]], "f4")}), "up/1.weight", "finite", "2 of 3"),
    ],
)  # fmt: skip
def test_arrays_that_differ_are_refused_by_name(arrays: Arrays, field: str, expected: str, got: str) -> None:
    with pytest.raises(FieldError, match=f"expected .*{expected}.*; got .*{got}") as error:
        checks.check_arrays("up", arrays, MODEL)
    assert error.value.field == field


def test_arrays_that_fit_pass() -> None:
    checks.check_arrays("up", {k: MODEL[k] for k in reversed(MODEL)}, MODEL)
    empty = {"e": np.zeros((0, 2), np.float32)}
    checks.check_arrays("up", empty, empty)


@pytest.mark.parametrize("n", [1, 600, 2**29 - 1, 3.0])
def test_counts_that_are_positive_integers_pass(n: float) -> None:
    checks.check_scalars(AVG, {"num-examples": n, "anything": 0.5})


@pytest.mark.parametrize(
    "n", [0, -1, 2**29, 1.5, float("nan"), float("inf"), True, "10", [10], None, np.float32(0.5)], ids=repr
)
def test_other_counts_are_refused(n: object) -> None:
    with pytest.raises(FieldError) as error:
        checks.check_scalars(AVG, {"num-examples": n})
    assert error.value.field == "num-examples"


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), True, "x", [0.5], None], ids=repr)
def test_a_scalar_that_is_no_finite_number_is_named(value: object) -> None:
    with pytest.raises(FieldError, match="a finite number") as error:
        checks.check_scalars(AVG, {"num-examples": 1, "train-loss": value})
    assert error.value.field == "train-loss"


def test_a_required_scalar_must_be_there_and_another_may_be_missing() -> None:
    entry = replace(AVG, up_scalars=(Scalar("h", "h_k of q-FedAvg"), Scalar("gamma", "", False)))
    checks.check_scalars(entry, {"num-examples": 1, "h": 0.5})
    with pytest.raises(FieldError, match="h_k of q-FedAvg") as error:
        checks.check_scalars(entry, {"num-examples": 1, "gamma": 0.5})
    assert error.value.field == "h"

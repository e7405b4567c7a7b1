"""A data set's description, and what of it others may know."""

from dataclasses import replace

import numpy as np
import pytest

from task.datasets.base import Decoded
from task.datasets.description import Description, Meaning, described
from task.datasets.header import TypedColumn

AGE, BMI, JOB = TypedColumn("age"), TypedColumn("bmi"), TypedColumn("job", "category", ("clerk", "nurse"))
TABLE = Description("features", (AGE, BMI, JOB), ("outcome",), ("ill", "well"))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("kind", replace(TABLE, kind="image")),
        ("columns", replace(TABLE, columns=(AGE, TypedColumn("weight_kg"), JOB))),
        ("columns", replace(TABLE, columns=(AGE, BMI))),
        ("columns", replace(TABLE, columns=(AGE, BMI, TypedColumn("job")))),
        ("columns", replace(TABLE, columns=())),
        ("categories", replace(TABLE, columns=(AGE, BMI, replace(JOB, values=("clerk", "cook"))))),
        ("target", replace(TABLE, targets=("died",))),
        ("classes", replace(TABLE, classes=("ill", "healthy"))),
        ("classes", replace(TABLE, classes=("0", "1"))),
    ],
)
def test_a_digest_differs_in_the_part_that_differs(part: str, other: Description) -> None:
    assert TABLE.meaning.differing(other.meaning) == [part] == other.meaning.differing(TABLE.meaning)


def test_the_same_names_in_another_order_have_one_digest_and_other_places() -> None:
    turned = Description(
        "features", (replace(JOB, values=("nurse", "clerk")), BMI, AGE), ("outcome",), ("well", "ill")
    )
    assert TABLE.meaning.differing(turned.meaning) == []
    assert dict(zip(TABLE.inputs, TABLE.meaning.inputs, strict=True)) == dict(
        zip(turned.inputs, turned.meaning.inputs, strict=True)
    )
    assert TABLE.meaning.outputs == turned.meaning.outputs[::-1]
    assert sorted(TABLE.meaning.inputs) == [0, 1, 2, 3]
    several = replace(TABLE, classes=(), targets=("a", "b", "c"))
    other = replace(several, targets=("c", "a", "b"))
    assert several.meaning.parts == other.meaning.parts
    assert several.meaning.outputs == (*other.meaning.outputs[1:], other.meaning.outputs[0])


def test_one_name_is_the_same_in_both_forms_of_unicode() -> None:
    composed, parts = (replace(TABLE, columns=(TypedColumn(n),)) for n in ("taill\u00e9", "taille\u0301"))
    assert composed.meaning == parts.meaning


def test_no_digest_can_be_guessed_one_name_at_a_time() -> None:
    """All parts depend on all columns: the digest of a target's name is another one in another table."""
    other = replace(TABLE, columns=(AGE, BMI))
    both = TABLE.digests(), other.digests()
    assert not {*both[0].values()} - {"features"} & {*both[1].values()}
    text = repr(TABLE.meaning)
    assert not any(word in text for word in ("age", "bmi", "job", "clerk", "ill", "outcome"))


def test_a_digest_survives_json() -> None:
    assert Meaning.from_dict(TABLE.meaning.as_dict()) == TABLE.meaning


def test_a_data_set_is_described_as_it_was_read() -> None:
    table = Decoded(
        x=np.zeros((2, 3), np.float32), y=np.zeros(2, np.int64), num_train=2, num_classes=2,
        input_shape=(3,), kind="features", columns=("age", "job:category(clerk|nurse)", "ill"),
    )  # fmt: skip
    assert described(table) == Description("features", (AGE, JOB), ("ill",), ("0", "1"))
    numbers = replace(table, y=np.zeros((2, 2), np.float32), columns=("age", "x", "z", "a, b"))
    assert described(numbers).targets == described(numbers).outputs == ("a", "b")
    assert described(replace(numbers, y=np.zeros(2, np.float32), columns=("age", "a, b"))).outputs == ()
    pictures = replace(table, kind="image", columns=(), classes=("cat", "dog"))
    assert described(pictures) == Description("image", (), (), ("cat", "dog"))
    text = replace(table, kind="text", columns=(), x=np.zeros((2, 3), np.uint8), y=np.zeros((2, 3), np.int16))
    assert described(text) == Description("text of bytes")

"""A user's own arrays: their parts by name, and class numbers for the integers that stand for classes."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Request
from task.datasets.parts import TEST, TRAIN, VALIDATION, part_of, test_part
from task.datasets.targets import MOST_CLASSES, Ints
from task.errors import DataError, local

Arrays = Mapping[str, npt.NDArray[Any]]
KNOWN = ("x", "y", "x_test", "y_test", "client", "columns", "classes")
_PARTED = re.compile(r"([xy])_(\w+)")


def parted(arrays: Arrays) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Return the arrays that are read, and notes on the others; x_val and y_val are a validation part."""
    known = {name: array for name, array in arrays.items() if name in KNOWN}
    found = {name: _PARTED.fullmatch(name) for name in arrays if name not in KNOWN}
    held = {name: m[1] for name, m in found.items() if m and part_of(m[2]) == VALIDATION}
    rest = [name for name in found if name not in held]
    notes = [f"{len(rest)} arrays are not read: {', '.join(sorted(rest))}"] if rest else []
    if sorted(held.values()) == ["x", "y"]:
        sizes = {TRAIN: len(arrays["x"]), VALIDATION: max(len(arrays[name]) for name in held)}
        sizes |= {TEST: len(arrays["x_test"])} if "x_test" in arrays else {}
        tests, note = test_part(sizes, " and ".join(sorted(held)))
        notes.append(note)
        if tests == VALIDATION:
            known |= {f"{side}_test": arrays[name] for name, side in held.items()}
    elif held:
        notes.append(
            f"{', '.join(sorted(held))} is not read: a validation part is two arrays, x_val and y_val"
        )
    return known, notes


def numbered(
    request: Request, where: str, y: npt.NDArray[Any], named: tuple[str, ...] = ()
) -> tuple[Ints, tuple[str, ...], str]:
    """Return class numbers, checked, the names of the classes, and a note if labels are not numbers 0, 1, ...

    Where the run says how many classes there are, the file has their names, or nodes have to number them
    alike, labels are their numbers; else the different labels are numbered in their order, as in a csv file.

    Raises:
        DataError: A label is negative, or too large for the number of classes, or the names are not as many.
    """
    if named and request.num_classes not in (0, len(named)):
        raise DataError(
            f'{local(where)}: run-config key "num-classes": expected {len(named)}, the names in "classes", '
            f"or 0; got {request.num_classes}"
        )
    known = request.num_classes or len(named)
    most = known or (MOST_CLASSES if request.owner else 0)
    wrong = np.flatnonzero((y < 0) | ((y >= most) if most else False))
    if len(wrong):
        expected = f"0..{known - 1} ({known} classes)" if known else "from 0 on"
        raise DataError(
            f"{local(where)}: expected labels {expected}; got "
            f"{local(int(y[wrong[0]]))} in example {int(wrong[0])}, and {len(wrong) - 1} more. Renumber the "
            'labels or raise the run-config key "num-classes".'
        )
    if most:
        return y.astype(np.int64), named, ""
    labels, numbers = np.unique(y, return_inverse=True)
    highest, note = int(labels[-1]), ""
    if highest >= len(labels):
        note = (
            f"y has {len(labels)} different labels, the largest {highest}: they are numbered 0 to "
            f"{len(labels) - 1} in their order. If there are more classes, set num-classes"
        )
    return numbers.astype(np.int64), tuple(str(int(label)) for label in labels), note

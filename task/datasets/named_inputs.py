"""Arrays of token ids and of several inputs: what users call them, and what they become.

=======================================  =================================================================
arrays                                   read as
=======================================  =================================================================
``input_ids``, ``attention_mask``, ...   what a tokenizer gives; each but the targets is an input by name
``x.NAME`` (test: ``x_test.NAME``)       inputs by name
``x`` of integers                        ids, with ``inputs = "ids"`` or a task of sequences; else numbers
=======================================  =================================================================

A class at each token, ``labels [N, T]``, is one of two things. If the labels that count are the ids
themselves, as Hugging Face's models take them, or the ids of the next place, the task is ``language``: each
token predicts the next one, and labels are shifted here, once. Without labels the ids give them. Any other
labels need ``task = "tagging"``. -100 does not count, nor does what predicts a token that ``attention_mask``
leaves out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import PADDING, Request
from task.errors import DataError, local
from task.inputs import AUTO, IDS, NUMBERS, SEQUENCES, packed

IDS_NAME, MASK_NAME = "input_ids", "attention_mask"
LABELS = ("labels", "label", "targets", "target", "y")
_OTHERS = ("client", "columns", "classes")
_BY_NAME = "x."
BOXES = (
    "targets of a number that differs between examples, such as the boxes of objects, are those of no task "
    "here. Choose what has one form for all: a class (classification), or one of each pixel (segmentation)"
)

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Formed:
    """A user's arrays as x and y."""

    arrays: Arrays  # x, y and, where there are any, x_test, y_test, client, columns and classes
    form: str = ""  # of the inputs, see `task.inputs`
    sequence: bool = False  # whether y [N, T] has a class at each token
    vocabulary: int = 0  # one more than the largest id, where ids are what is predicted
    notes: tuple[str, ...] = ()


def formed(request: Request, where: str, arrays: Mapping[str, Array]) -> Formed:
    """Return a user's arrays with ids and inputs by name packed, see the table above; all others as they are.

    Raises:
        DataError: It is not clear which array is what, ids are no integers, or labels fit no task.
    """
    names = _inputs(request, arrays)
    if not names:
        return Formed(dict(arrays))
    labels = [name for name in LABELS if name in arrays and name not in names.values()]
    if len(labels) > 1:
        raise DataError(f"{local(where)}: expected one array of labels; got {local(', '.join(labels))}")
    found = {name: arrays[name] for name in _OTHERS if name in arrays}
    forms, sequences, vocabulary = [], [], 0
    tests = [n for n in arrays if n.endswith("_test") or n.startswith("x_test.")]
    used = {*found, *labels, *names.values()}
    for end in ("", "_test") if tests else ("",):
        of = {name: _at(given, end) for name, given in names.items()}
        label = _at(labels[0], end) if labels else ""
        if missing := [n for n in (*of.values(), *filter(None, [label])) if n not in arrays]:
            raise DataError(f"{local(where)}: expected an array {local(missing[0])} ; got none")
        used |= {*of.values(), label}
        parts = {name: _checked(where, given, arrays[given]) for name, given in of.items()}
        x, form = packed(where, parts)
        ids = parts.get(IDS_NAME, parts.get("", x))
        y, sequence = _targets(request, where, ids, parts.get(MASK_NAME), arrays[label] if label else None)
        found |= {f"x{end}": x, f"y{end}": y}
        forms.append(form)
        sequences.append(sequence)
        vocabulary = max(vocabulary, int(ids.max()) + 1 if sequence and request.task != "tagging" else 0)
    if len({*forms}) > 1:
        raise DataError(f"{local(where)}: expected the same inputs to test; got {' and '.join(forms)}")
    if request.inputs not in (AUTO, IDS, forms[0]):
        raise DataError(
            f'{local(where)}: run-config key "inputs": expected "{forms[0]}", as is here, or "auto"; '
            f'got "{local(request.inputs)}"'
        )
    rest = sorted(name for name in arrays if name not in used)
    notes = (f"{len(rest)} arrays are not read: {', '.join(rest)}",) if rest else ()
    return Formed(found, forms[0], sequences[0], vocabulary, notes)


def _inputs(request: Request, arrays: Mapping[str, Array]) -> dict[str, str]:
    """Return by name the arrays that are inputs; {} if x is numbers or pictures, as it mostly is."""
    train = sorted(name for name in arrays if not name.endswith("_test") and not name.startswith("x_test."))
    if IDS_NAME in arrays and "x" not in arrays:
        return {name: name for name in train if name not in (*LABELS, *_OTHERS)}
    if "x" not in arrays and (named := [name for name in train if name.startswith(_BY_NAME)]):
        return {name.removeprefix(_BY_NAME): name for name in named}
    ids = request.inputs == IDS or request.inputs.startswith("int64[") or request.task in SEQUENCES
    return {"": "x"} if ids and "x" in arrays else {}


def _at(name: str, end: str) -> str:
    """Return what the test part of an array is called."""
    return f"x{end}.{name.removeprefix(_BY_NAME)}" if name.startswith(_BY_NAME) else f"{name}{end}"


def _checked(where: str, name: str, array: Array) -> Array:
    """Return an input; ids and masks must be integers, and a mask 0 and 1."""
    if name in ("x", IDS_NAME) and array.dtype.kind not in "iu":
        raise DataError(
            f"{local(where)}: expected {name} as ids, integers [N, T] of one length; got {array.dtype} "
            f"{list(array.shape)}. Tokenize with padding to one length, and save integers"
        )
    if name == MASK_NAME and not np.isin(array, (0, 1)).all():
        raise DataError(f"{local(where)}: expected {name} of 0 and 1; got others")
    return array


def _targets(
    request: Request, where: str, ids: Array, mask: Array | None, labels: Array | None
) -> tuple[Array, bool]:
    """Return the targets, and whether they are a class at each token."""
    if labels is None:
        if request.task not in (AUTO, "language") or ids.ndim != 2:
            raise DataError(f"{local(where)}: expected labels, an array called labels; got none")
        return _next(ids, ids, mask), True
    alike = labels.shape == ids.shape and ids.ndim == 2 and labels.dtype.kind in "iu"
    if not alike or request.task in NUMBERS:
        if request.task in SEQUENCES:
            raise DataError(
                f'{local(where)}: task = "{request.task}" expects integers {list(ids.shape)} as targets, one '
                f"for each token; got {labels.dtype} {list(labels.shape)}"
            )
        return labels, False
    labels = labels.astype(np.int32)
    if request.task == "tagging":
        return labels, True
    counts = labels != PADDING
    if (labels == ids)[counts].all():
        return _next(labels, ids, mask), True
    if (labels[:, :-1] == ids[:, 1:])[counts[:, :-1]].all():
        return labels, True
    raise DataError(
        f"{local(where)}: labels {list(labels.shape)} are neither the ids nor those of the next place, so "
        'they are no next tokens. Set the run-config key task = "tagging" if they are a class of each token'
    )


def _next(labels: Array, ids: Array, mask: Array | None) -> Array:
    """Return for each place what the next one has; -100 at the end, and where the next one is padding."""
    y = np.full(ids.shape, PADDING, np.int32)
    y[:, :-1] = labels[:, 1:]
    if mask is not None:
        y[:, :-1][mask[:, 1:] == 0] = PADDING
    return y


def dense(
    request: Request, where: str, y: Array, names: tuple[str, ...] = (), vocabulary: int = 0
) -> tuple[Array, int]:
    """Return a class at each place, int16 or int32, and the number of classes.

    -100 does not count, nor does 255 in uint8.

    Raises:
        DataError: A target is no class of the run, or none counts.
    """
    made = y.astype(np.int32)
    if y.dtype == np.uint8 and y.ndim > 2:
        made[y == VOID] = PADDING
    known = request.num_classes or len(names)
    if known and vocabulary > known:
        raise DataError(
            f'{local(where)}: run-config key "num-classes": expected at least {vocabulary}, as ids are what '
            f"is predicted and the largest is {vocabulary - 1}; got {known}"
        )
    most = known or np.iinfo(np.int32).max
    wrong = ((made < 0) & (made != PADDING)) | (made >= most)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        expected = f"0..{known - 1} ({known} classes)" if known else "0, 1, ..."
        raise DataError(
            f"{local(where)}: expected classes {expected}, or {PADDING} where nothing counts; got "
            f"{local(y[tuple(at)])} at {at[1:].tolist()} of example {int(at[0])}. Renumber them, or raise "
            'the run-config key "num-classes"'
        )
    if not (made >= 0).any():
        raise DataError(f"{local(where)}: expected targets that count; all are {PADDING}")
    classes = known or max(int(made.max()) + 1, vocabulary)
    return made.astype(np.int16 if classes <= np.iinfo(np.int16).max else np.int32), classes


VOID = 255  # in masks of 8 bits: a place that does not count, as in Pascal VOC

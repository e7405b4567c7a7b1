"""npz: arrays in a file of the user's own, pooled or of one node.

The arrays are ``x``, ``y``, and optionally ``x_test``, ``y_test``, ``client`` (one owner name per training
example), ``columns`` and ``classes`` (names, see `task.datasets.npz_names`), and ``group.NAME`` (a text or
number per example, the training ones first, which no model reads). Integers y are classes; y may also be
numbers [N] or [N, d], labels 0 and 1 [N, C], or the class of each pixel, integers [N, H, W]. Ids of tokens
and inputs by name: `task.datasets.named_inputs`.

NaN is refused, or kept where the run says how missing values are filled (`task.datasets.columns`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.datasets.class_numbers import numbered, parted
from task.datasets.encode import LARGEST
from task.datasets.layout import channels_first, channels_last_note
from task.datasets.named_inputs import IDS_NAME, Formed, dense, formed
from task.datasets.npz_names import class_names, column_names
from task.datasets.own import Mask, assemble, data_path, keys_of
from task.datasets.targets import check_lifetimes
from task.errors import DataError, local
from task.inputs import NUMBERS
from task.storage.memory import available
from task.units import human_bytes

ASIDE = "group."  # how npz files name arrays by which a run may compare groups of people
Array = npt.NDArray[Any]


def locate_npz(request: Request) -> Source:
    """Find the file."""
    path = data_path(request)
    if path.is_dir():
        raise DataError(f"{local(path)}: expected an npz file; got a folder")
    return Source((path,), keys_of(request) | {"named": True})


def decode_npz(request: Request, source: Source) -> Decoded:
    """Read the arrays; nothing in the file is executed."""
    path = source.files[0]
    arrays = read_arrays(path)
    if IDS_NAME not in arrays and not any(name.startswith("x.") for name in arrays):
        check_names(path, arrays, "x", "y")
    return from_arrays(request, str(path), arrays)


def from_arrays(request: Request, where: str, arrays: Mapping[str, Array]) -> Decoded:
    """Check arrays x, y and, where given, x_test, y_test and client, the owners of the training rows.

    `where` is where they are from, for errors.

    Raises:
        DataError: Their shapes, dtypes or values cannot be used.
    """
    aside = {name.removeprefix(ASIDE): a for name, a in arrays.items() if name.startswith(ASIDE)}
    made = formed(request, where, {name: a for name, a in arrays.items() if not name.startswith(ASIDE)})
    arrays, notes = parted(made.arrays)
    x, y, test = _with_test(where, arrays)
    _check_aside(where, aside, len(x))
    x = _inputs(request, where, x, y, made.form)
    owners = [str(name) for name in arrays.get("client", [])]
    if owners and len(owners) != len(arrays["x"]):
        raise DataError(
            f"{local(where)}: expected {len(arrays['x'])} names in client, one per row; got {len(owners)}"
        )
    targets, classes, outputs, note = _targets(request, where, {**arrays, "y": y}, made)
    return assemble(
        request,
        x=x if made.form or (x.dtype == np.uint8 and x.ndim > 2) else x.astype(np.float32),
        y=targets,
        test=test,
        owners=owners,
        classes=classes,
        where=where,
        columns=() if made.form else column_names(where, arrays, x),
        aside={name: texts.astype(np.str_).tolist() for name, texts in aside.items()},
        notes=(*notes, *filter(None, [note]), *made.notes, *filter(None, [channels_last_note(x)])),
        form=made.form,
        outputs=outputs,
    )


def _with_test(where: str, arrays: Mapping[str, Array]) -> tuple[Array, Array, Mask | None]:
    """Return x and y with the test examples last, and which these are; None = the arrays have none."""
    x, y = arrays["x"], arrays["y"]
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        both = {"x_test", "y_test"} <= arrays.keys()
        if not both or arrays["x_test"].shape[1:] != x.shape[1:]:
            raise DataError(
                f"{local(where)}: expected x_test and y_test of examples of shape {x.shape[1:]}; got "
                f"{ {k: v.shape for k, v in arrays.items() if k.endswith('_test')} }"
            )
        if (arrays["x_test"].dtype == np.uint8) is not (x.dtype == np.uint8):
            raise DataError(
                f"{local(where)}: expected x_test of the type of x, {x.dtype}; got {arrays['x_test'].dtype}"
            )
        x, y = np.concatenate([x, arrays["x_test"]]), np.concatenate([y, arrays["y_test"]])
        test = np.arange(len(x)) >= len(arrays["x"])
    if y.ndim > 3 and y.shape[1] == 1:
        y = y[:, 0]  # masks with an axis of channels
    return x, y, test


def _check_aside(where: str, aside: Mapping[str, Array], examples: int) -> None:
    for name, texts in aside.items():
        if texts.shape != (examples,) or texts.dtype.kind not in "fiubU":
            raise DataError(
                f"{local(where)}: expected {local(ASIDE + name)} of {examples} texts or numbers, one for "
                f"each example, training first; got {texts.dtype} {list(texts.shape)}"
            )


def _is_map(y: Array) -> bool:
    """Return whether an example's target is a class of each pixel."""
    return y.ndim > 2 and y.dtype.kind in "iub"


def _inputs(request: Request, where: str, x: Array, y: Array, form: str) -> Array:
    """Return x, checked against y, with the channels first where y has a class of each pixel."""
    maps = _is_map(y)
    if (
        x.ndim < 2
        or len(x) != len(y)
        or not len(y)
        or not (y.ndim in (1, 2) or maps)
        or y.dtype.kind not in "fiub"
    ):
        raise DataError(
            f"{local(where)}: expected x [N, ...] and y: integers [N], numbers [N] or [N, d], labels "
            "0 and 1 [N, C], or the class of each pixel, integers [N, H, W]; got "
            f"x {x.dtype} {x.shape}, y {y.dtype} {y.shape}"
        )
    if maps and x.dtype == np.uint8 and x.ndim > 3:
        x = channels_first(x, where)
    if maps and x.dtype == np.uint8 and x.shape[-2:] != y.shape[-2:]:
        raise DataError(
            f"{local(where)}: expected a class of each pixel, y [N, H, W] of the height and width of the "
            f"pictures; got x {list(x.shape)} and y {list(y.shape)}"
        )
    if not form and not fits(x, request.keep_missing):
        raise DataError(
            f"{local(where)}: expected x to be finite numbers that fit float32; got {x.dtype} with NaN, Inf, "
            "larger numbers or objects. "
            "Correct them; where NaN stands for a missing value, set the run-config key "
            'missing="mean" (or "zero")'
        )
    return x


def _targets(
    request: Request, where: str, arrays: Mapping[str, Array], made: Formed
) -> tuple[Array, tuple[str, ...], int, str]:
    """Return the targets, the names of the classes, the number of outputs (0 = as they say) and a note."""
    y = arrays["y"]
    if _is_map(y) or made.sequence:
        classes = class_names(where, {**arrays, "y": y[:0].ravel()})
        targets, outputs = dense(request, where, y, classes, made.vocabulary)
        return targets, classes, outputs, ""
    if y.ndim == 2 or y.dtype.kind == "f" or request.task in NUMBERS:
        return _numbers(request, where, y), class_names(where, arrays), 0, ""
    targets, classes, note = numbered(request, where, y, class_names(where, arrays))
    return targets, classes, 0, note


def _numbers(request: Request, where: str, y: Array) -> npt.NDArray[np.float32]:
    """Return numbers or labels as float32, checked."""
    if request.task == "classification":
        raise DataError(
            f'{local(where)}: task = "classification" expects integers y [N]; got {y.dtype} {list(y.shape)}. '
            'Save class numbers, or choose "regression" or "multi-label".'
        )
    with np.errstate(over="ignore"):
        numbers = y.astype(np.float32)
    width = y.shape[1] if y.ndim == 2 else 1
    zeros_and_ones = bool(np.isin(numbers, (0, 1)).all())
    if request.task == "auto" and zeros_and_ones and width > 1 and (numbers.sum(1) == 1).all():
        raise DataError(
            f"{local(where)}: y has one 1 in each row, which may be classes or labels. Save classes as "
            'integers [N], y.argmax(1), or set the run-config key task = "multi-label".'
        )
    one = y.ndim == 1 or (width == 1 and not zeros_and_ones)
    if request.task == "auto" and one and (numbers >= 0).all() and (numbers % 1 == 0).all():
        raise DataError(
            f"{local(where)}: y has whole numbers as {y.dtype} {list(y.shape)}, which may be classes or "
            'numbers to predict. Save classes as integers [N], or set the run-config key task = "regression".'
        )
    labels = request.task == "multi-label"
    good = np.isfinite(numbers) & (np.isin(numbers, (0, 1)) if labels else True)
    if labels and y.ndim == 1:
        raise DataError(f'{local(where)}: task = "multi-label" expects y [N, C]; got {list(y.shape)}')
    if not good.all():
        wrong = np.flatnonzero(~good.reshape(len(y), -1).all(1))
        what = "labels 0 and 1" if labels else "finite numbers that fit float32"
        raise DataError(
            f"{local(where)}: expected {what} in y; got {local(y[wrong[0]])} in example {int(wrong[0])}, and "
            f"{len(wrong) - 1} more examples like it"
        )
    if request.num_classes not in (0, width):
        raise DataError(
            f'{local(where)}: run-config key "num-classes": expected {width}, the numbers of an '
            f"example in y, or 0; got {request.num_classes}"
        )
    if request.task == "survival":
        check_lifetimes(numbers, lambda i: f"{local(where)}, example {i}")
    return numbers


def fits(x: Array, keep_missing: bool) -> bool:
    """Return whether all values are numbers that float32 has, or NaN where missing ones are kept."""
    if x.dtype.kind != "f":
        return x.dtype.kind in "iub"
    return bool(((np.abs(x) <= LARGEST) | (np.isnan(x) & keep_missing)).all())


def read_arrays(path: Path, *needed: str) -> dict[str, Array]:
    """Return the arrays of an npz file; nothing in the file is executed.

    Raises:
        DataError: It is not one, or has none of a name that is needed.
    """
    try:
        # Opened here, because NumPy leaves an invalid file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            needs, free = sum(member.file_size for member in archive.zip.infolist()), available()
            if needs > free:
                raise DataError(
                    f"{local(path)}: expected arrays of at most {human_bytes(free)}, the memory that is left "
                    f"on this machine; got {human_bytes(needs)}. Make x smaller: float32, or fewer rows"
                )
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except Exception as err:  # zipfile, zlib and NumPy raise half a dozen kinds
        raise DataError(
            f"{local(path)}: expected an npz file of plain arrays; got {local(repr(err))}. Save it again."
        ) from err
    check_names(path, arrays, *needed)
    return arrays


def check_names(path: Path, arrays: Mapping[str, Array], *needed: str) -> None:
    """Refuse arrays without one of a name that is needed; raises DataError."""
    if not arrays.keys() >= set(needed):
        words = " and ".join(f'"{name}"' for name in needed)
        raise DataError(f"{local(path)}: expected arrays {words}; got {local(sorted(arrays))}")

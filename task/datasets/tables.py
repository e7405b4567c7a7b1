"""csv and npz: data in the user's own files, pooled or of one node.

csv: a header; the column ``label`` (else the last one) is the class, all others are numbers. Two further
columns are optional: ``client`` (natural owner) and ``split`` ("train" or "test"). A folder of csv files has
one owner per file. npz: arrays ``x``, ``y``, and optionally ``x_test``, ``y_test`` and ``client`` (one owner
name per training example). Integers y are classes; y may also be numbers [N] or [N, d], or labels 0 and 1
[N, C].

The labels of a node's own file must be whole numbers 0 .. num-classes - 1: nodes have no other way to agree
on the classes.
"""

import csv
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.datasets.own import assemble, data_path, keys_of
from task.errors import DataError, local, reason

Ints = npt.NDArray[np.int64]
MOST_CLASSES = 2**31  # while no run has said how many there are


def locate_csv(request: Request) -> Source:
    """Find the file, or the csv files of the folder."""
    path = data_path(request)
    files = tuple(sorted(path.glob("*.csv"))) if path.is_dir() else (path,)
    if not files:
        raise DataError(f"{local(path)}: expected csv files in this folder; got none")
    return Source(files, keys_of(request) | {"folder": path.is_dir(), "names of columns": True})


def locate_npz(request: Request) -> Source:
    """Find the file."""
    path = data_path(request)
    if path.is_dir():
        raise DataError(f"{local(path)}: expected an npz file; got a folder")
    return Source((path,), keys_of(request))


class _Row(NamedTuple):
    """A row of a csv file."""

    path: Path
    line: int
    x: list[float]
    label: str
    owner: str | None  # None: the file does not say
    test: bool | None


def decode_csv(request: Request, source: Source) -> Decoded:
    """Read all files; they must have the same header."""
    rows: list[_Row] = []
    header: list[str] = []
    for path in source.files:
        header = _read_csv(path, header, rows, path.stem if source.keys["folder"] else None)
    if not rows:
        raise DataError(f"{local(source.files[0])}: expected at least one row below the header; got none")
    y, classes = _numbers(rows, _label_column(header), request)
    tests = [row.test for row in rows if row.test is not None]
    label = _label_column(header)
    features = [name for name in header if name not in (label, "client", "split")]
    return assemble(
        request,
        x=np.array([row.x for row in rows], dtype=np.float32),
        y=y,
        test=np.array(tests) if tests else None,
        owners=[row.owner for row in rows if row.owner is not None],
        classes=classes,
        where=str(source.files[0] if len(source.files) == 1 else source.files[0].parent),
        columns=(*features, label),
    )


def _read_csv(path: Path, header: list[str], rows: list[_Row], owner: str | None) -> list[str]:
    """Append the rows of one file and return its header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            own = [name.strip() for name in next(reader, [])]
            _check_header(path, own, header)
            rows += [_row(path, reader.line_num, own, cells, owner) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise DataError(
            f"{local(path)}: expected a csv file in UTF-8; got {reason(err)}. Save it again."
        ) from err
    return own


def _check_header(path: Path, own: list[str], expected: list[str]) -> None:
    if expected and own != expected:
        raise DataError(
            f"{local(path)}, line 1: expected the header of the files before it, {local(expected)}; got "
            f"{local(own)}. Give all files the same columns."
        )
    if len(own) < 2 or len(set(own)) != len(own):
        raise DataError(
            f"{local(path)}, line 1: expected a header with at least one feature and a label, each name "
            f"once; got {local(own)}. Put the column names into the first line."
        )
    special = {_label_column(own), "client", "split"}
    if not [name for name in own if name not in special]:
        raise DataError(
            f"{local(path)}, line 1: expected at least one feature column besides {local(own)}; got none"
        )


def _label_column(header: list[str]) -> str:
    return (
        "label" if "label" in header else ([n for n in header if n not in ("client", "split")] or header)[-1]
    )


def _row(path: Path, line: int, header: list[str], cells: list[str], owner: str | None) -> _Row:
    if len(cells) != len(header):
        raise DataError(
            f"{local(path)}, line {line}: expected {len(header)} cells as in the header; got {len(cells)}. "
            "Repair or remove the line."
        )

    def refused(column: str, words: str) -> DataError:
        name = local(f' "{column}"')
        place = f"{local(path)}, line {line}, column {header.index(column) + 1}{name}"
        return DataError(f"{place}: expected {words}")

    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    label, split = _label_column(header), row.get("split")
    if not row[label]:
        raise refused(label, "a label; the cell is empty. Fill it in or remove the line.")
    if owner is None and row.get("client") == "":
        raise refused("client", "a name; the cell is empty. Fill it in or remove the line.")
    if split not in ("train", "test", None):
        raise refused("split", f'train or test; got "{local(split)}"')
    x = []
    for name, cell in row.items():
        if name not in (label, "client", "split"):
            x.append(_number(cell))
            if not math.isfinite(x[-1]):
                words = (
                    f'a number; got "{local(cell)}". Fill it in, code it as a number, or remove the line or'
                )
                raise refused(name, f"{words} column.")
    test = None if split is None else split == "test"
    return _Row(path, line, x, row[label], row.get("client") if owner is None else owner, test)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _numbers(rows: list[_Row], column: str, request: Request) -> tuple[Ints, tuple[str, ...]]:
    """Return class numbers and class names; pooled labels are numbered in sorted order."""
    values: list[int] = []
    with suppress(ValueError):
        for row in rows:
            values.append(int(row.label))
    whole = len(values) == len(rows)
    if request.owner and not whole:
        row = rows[len(values)]
        raise DataError(
            f'{local(row.path)}, line {row.line}, column "{local(column)}": labels of a node\'s own data '
            f"must be integers {_range(request)}, so that all nodes number the classes alike; got "
            f'"{local(row.label)}". Replace the names by the numbers that all nodes agreed on.'
        )
    if whole and (request.owner or request.num_classes):
        most = request.num_classes or MOST_CLASSES
        for value, row in zip(values, rows, strict=True):
            if not 0 <= value < most:
                raise DataError(
                    f'{local(row.path)}, line {row.line}, column "{local(column)}": expected a label '
                    f'{_range(request)}; got {local(value)}. Renumber the labels or raise "num-classes".'
                )
        return np.array(values, dtype=np.int64), ()
    labels = np.array(values if whole else [row.label for row in rows], dtype=object)
    classes, y = np.unique(labels, return_inverse=True)
    if 0 < request.num_classes < len(classes):
        raise DataError(
            f"{local(rows[0].path)}: expected at most num-classes = {request.num_classes} "
            f'different labels; got {len(classes)}. Raise the run-config key "num-classes" or set it to 0.'
        )
    return y.astype(np.int64), tuple(map(str, classes))


def _range(request: Request) -> str:
    """Say which class numbers are good; a node reads its own data before a run says how many there are."""
    if not request.num_classes:
        return "from 0 to the run's num-classes - 1"
    return f"0..{request.num_classes - 1} (num-classes = {request.num_classes})"


def decode_npz(request: Request, source: Source) -> Decoded:
    """Read the arrays; nothing in the file is executed."""
    path = source.files[0]
    arrays = read_arrays(path, "x", "y")
    x, y = arrays["x"], arrays["y"]
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        if not {"x_test", "y_test"} <= arrays.keys() or arrays["x_test"].shape[1:] != x.shape[1:]:
            raise DataError(
                f"{local(path)}: expected x_test and y_test of examples of shape {x.shape[1:]}; got "
                f"{ {k: v.shape for k, v in arrays.items() if k.endswith('_test')} }"
            )
        x, y = np.concatenate([x, arrays["x_test"]]), np.concatenate([y, arrays["y_test"]])
        test = np.arange(len(x)) >= len(arrays["x"])
    if x.ndim < 2 or len(x) != len(y) or not len(y) or y.ndim not in (1, 2) or y.dtype.kind not in "fiub":
        raise DataError(
            f"{local(path)}: expected x [N, ...] and y: integers [N], numbers [N] or [N, d], or labels "
            f"0 and 1 [N, C]; got x {x.dtype} {x.shape}, y {y.dtype} {y.shape}"
        )
    if x.dtype.kind not in "fiub" or (x.dtype.kind == "f" and not np.isfinite(x).all()):
        raise DataError(
            f"{local(path)}: expected x to be finite numbers; got {x.dtype} with NaN, Inf or objects"
        )
    owners = [str(name) for name in arrays.get("client", [])]
    if owners and len(owners) != len(arrays["x"]):
        raise DataError(
            f"{local(path)}: expected {len(arrays['x'])} names in client, one per row; got {len(owners)}"
        )
    targets: npt.NDArray[Any]
    classes: tuple[str, ...]
    if y.ndim == 2 or y.dtype.kind == "f" or request.task in ("regression", "multi-label"):
        targets, classes = _npz_numbers(request, path, y), ()
    else:
        targets, classes = _npz_classes(request, path, y)
    return assemble(
        request,
        x=x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32),
        y=targets,
        test=test,
        owners=owners,
        classes=classes,
        where=str(path),
    )


def _npz_numbers(request: Request, path: Path, y: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers or labels as float32, checked."""
    if request.task == "classification":
        raise DataError(
            f'{local(path)}: task = "classification" expects integers y [N]; got {y.dtype} {list(y.shape)}. '
            'Save class numbers, or choose "regression" or "multi-label".'
        )
    with np.errstate(over="ignore"):
        numbers = y.astype(np.float32)
    labels = request.task == "multi-label"
    good = np.isfinite(numbers) & (np.isin(numbers, (0, 1)) if labels else True)
    if labels and y.ndim == 1:
        raise DataError(f'{local(path)}: task = "multi-label" expects y [N, C]; got {list(y.shape)}')
    if not good.all():
        wrong = np.flatnonzero(~good.reshape(len(y), -1).all(1))
        what = "labels 0 and 1" if labels else "finite numbers that fit float32"
        raise DataError(
            f"{local(path)}: expected {what} in y; got {local(y[wrong[0]])} in example {int(wrong[0])}, and "
            f"{len(wrong) - 1} more examples like it"
        )
    outputs = numbers.shape[1] if numbers.ndim > 1 else 1
    if request.num_classes not in (0, outputs):
        raise DataError(
            f'{local(path)}: run-config key "num-classes": expected {outputs}, the numbers of an '
            f"example in y, or 0; got {request.num_classes}"
        )
    return numbers


def _npz_classes(request: Request, path: Path, y: npt.NDArray[Any]) -> tuple[Ints, tuple[str, ...]]:
    """Return class numbers, checked, and the names of the classes."""
    num_classes = request.num_classes or max(int(y.max()) + 1, 1)
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(wrong):
        raise DataError(
            f"{local(path)}: expected labels 0..{num_classes - 1} ({num_classes} classes); got "
            f"{local(int(y[wrong[0]]))} in example {int(wrong[0])}, and {len(wrong) - 1} more. Renumber the "
            'labels or raise the run-config key "num-classes".'
        )
    known = request.num_classes or request.owner
    return y.astype(np.int64), () if known else tuple(str(i) for i in range(num_classes))


def read_arrays(path: Path, *needed: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an npz file; nothing in the file is executed.

    Raises:
        DataError: It is not one, or has none of a name that is needed.
    """
    try:
        # Opened here, because NumPy leaves the file open when it is not what it should be.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as err:  # zipfile, zlib and NumPy raise half a dozen kinds
        raise DataError(
            f"{local(path)}: expected an npz file of plain arrays; got {local(repr(err))}. Save it again."
        ) from err
    if not arrays.keys() >= set(needed):
        words = " and ".join(f'"{name}"' for name in needed)
        raise DataError(f"{local(path)}: expected arrays {words}; got {local(sorted(arrays))}")
    return arrays

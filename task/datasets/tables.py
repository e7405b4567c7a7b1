"""csv and npz: data in the user's own files, pooled or of one node.

csv: a header; the column ``label`` (else the last one) is the class, all others are numbers. Two further
columns are optional: ``client`` (natural owner) and ``split`` ("train" or "test"). A folder of csv files has
one owner per file. npz: arrays ``x``, ``y``, and optionally ``x_test``, ``y_test`` and ``client`` (one owner
name per training example).

The labels of a node's own file must be whole numbers 0 .. num-classes - 1: nodes have no other way to agree
on the classes.
"""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.datasets.own import assemble, check_labels, data_path, keys_of
from task.errors import DataError, local, reason

Ints = npt.NDArray[np.int64]
MOST_CLASSES = 2**31  # while no run has said how many there are


def locate_csv(request: Request) -> Source:
    """Find the file, or the csv files of the folder."""
    path = data_path(request)
    files = tuple(sorted(path.glob("*.csv"))) if path.is_dir() else (path,)
    if not files:
        raise DataError(f"{local(path)}: expected csv files in this folder; got none")
    return Source(files, keys_of(request) | {"folder": path.is_dir()})


def locate_npz(request: Request) -> Source:
    """Find the file."""
    path = data_path(request)
    if path.is_dir():
        raise DataError(f"{local(path)}: expected an npz file; got a folder")
    return Source((path,), keys_of(request))


@dataclass
class _Table:
    """Rows of the csv files, as they are read."""

    x: list[list[float]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)  # empty = no owners
    tests: list[bool] = field(default_factory=list)  # empty = no split column
    places: list[tuple[Path, int]] = field(default_factory=list)  # file and line of each row
    label: str = ""  # name of the column of the labels


def decode_csv(request: Request, source: Source) -> Decoded:
    """Read all files; they must have the same header."""
    table = _Table()
    header: list[str] = []
    for path in source.files:
        header = _read_csv(path, header, table, owner=path.stem if source.keys["folder"] else "")
    if not table.x:
        raise DataError(f"{local(source.files[0])}: expected at least one row below the header; got none")
    table.label = _label_column(header)
    y, classes = _numbers(table, request)
    return assemble(
        request,
        x=np.array(table.x, dtype=np.float32),
        y=y,
        test=np.array(table.tests, dtype=bool) if table.tests else None,
        owners=table.owners,
        classes=classes,
        where=str(source.files[0] if len(source.files) == 1 else source.files[0].parent),
    )


def _read_csv(path: Path, header: list[str], table: _Table, owner: str) -> list[str]:
    """Append one file to the table and return its header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            own = [name.strip() for name in next(reader, [])]
            _check_header(path, own, header)
            for cells in reader:
                if cells:
                    _read_row(path, reader.line_num, own, cells, table, owner)
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
    return "label" if "label" in header else [n for n in header if n not in ("client", "split")][-1]


def _read_row(path: Path, line: int, header: list[str], cells: list[str], table: _Table, owner: str) -> None:
    if len(cells) != len(header):
        raise DataError(
            f"{local(path)}, line {line}: expected {len(header)} cells as in the header; got {len(cells)}. "
            "Repair or remove the line."
        )
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    label = _label_column(header)
    if not row[label]:
        raise DataError(
            f"{_cell(path, line, header, label)}: expected a label; the cell is empty. "
            "Fill it in or remove the line."
        )
    table.labels.append(row.pop(label))
    client = row.pop("client", None)
    if owner or client is not None:
        if not (owner or client):
            raise DataError(
                f"{_cell(path, line, header, 'client')}: expected a name; the cell is empty. Fill it in or "
                "remove the line."
            )
        table.owners.append(owner or client or "")
    split = row.pop("split", None)
    if split is not None:
        if split not in ("train", "test"):
            place = _cell(path, line, header, "split")
            raise DataError(f'{place}: expected train or test; got "{local(split)}"')
        table.tests.append(split == "test")
    table.x.append([_number(path, line, header, name, cell) for name, cell in row.items()])
    table.places.append((path, line))


def _cell(path: Path, line: int, header: list[str], column: str) -> str:
    """Return where a cell is, for a message."""
    name = local(f' "{column}"')
    return f"{local(path)}, line {line}, column {header.index(column) + 1}{name}"


def _number(path: Path, line: int, header: list[str], column: str, cell: str) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(cell)):
            return value
    raise DataError(
        f'{_cell(path, line, header, column)}: expected a number; got "{local(cell)}". Fill it in, code it '
        "as a number, or remove the line or column."
    )


def _numbers(table: _Table, request: Request) -> tuple[Ints, tuple[str, ...]]:
    """Return class numbers and class names; pooled labels are numbered in sorted order."""
    fixed = request.num_classes > 0
    values: list[int] = []
    try:
        for label in table.labels:
            values.append(int(label))
    except ValueError:
        if request.owner:
            path, line = table.places[len(values)]
            raise DataError(
                f'{local(path)}, line {line}, column "{local(table.label)}": labels of a node\'s own data '
                f"must be integers {_range(request)}, so that all nodes number the classes alike; got "
                f'"{local(label)}". Replace the names by the numbers that all nodes agreed on.'
            ) from None
        names = sorted(set(table.labels))
        if fixed and len(names) > request.num_classes:
            raise DataError(
                f"{local(table.places[0][0])}: expected at most num-classes = {request.num_classes} "
                f'different labels; got {len(names)}. Raise the run-config key "num-classes" or set it to 0.'
            ) from None
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[label] for label in table.labels], dtype=np.int64), tuple(names)
    if not fixed and not request.owner:
        found = sorted(set(values))
        position = {value: i for i, value in enumerate(found)}
        return np.array([position[v] for v in values], dtype=np.int64), tuple(str(v) for v in found)
    most = request.num_classes or MOST_CLASSES
    for value, (path, line) in zip(values, table.places, strict=True):
        if not 0 <= value < most:
            raise DataError(
                f'{local(path)}, line {line}, column "{local(table.label)}": expected a label '
                f'{_range(request)}; got {local(value)}. Renumber the labels or raise "num-classes".'
            )
    return np.array(values, dtype=np.int64), ()


def _range(request: Request) -> str:
    """Say which class numbers are good; a node reads its own data before a run says how many there are."""
    if not request.num_classes:
        return "from 0 to the run's num-classes - 1"
    return f"0..{request.num_classes - 1} (num-classes = {request.num_classes})"


def decode_npz(request: Request, source: Source) -> Decoded:
    """Read the arrays; nothing in the file is executed."""
    path = source.files[0]
    arrays = _read_npz(path)
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
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or not len(y) or y.dtype.kind not in "iu":
        raise DataError(
            f"{local(path)}: expected x [N, ...] and integers y [N]; got x {x.dtype} {x.shape}, "
            f"y {y.dtype} {y.shape}"
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
    num_classes = request.num_classes or max(int(y.max()) + 1, 1)
    check_labels(y.astype(np.int64), num_classes, str(path))
    return assemble(
        request,
        x=x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32),
        y=y.astype(np.int64),
        test=test,
        owners=owners,
        classes=() if request.num_classes or request.owner else tuple(str(i) for i in range(num_classes)),
        where=str(path),
    )


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Opened here, because NumPy leaves the file open when it is not what it should be.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as err:  # zipfile, zlib and NumPy raise half a dozen kinds
        raise DataError(
            f"{local(path)}: expected an npz file of plain arrays; got {local(repr(err))}. Save it again."
        ) from err
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f'{local(path)}: expected arrays "x" and "y"; got {local(sorted(arrays))}')
    return arrays

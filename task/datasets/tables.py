"""csv: tables in the user's own files, pooled or of one node.

The header says what each column is, see `task.datasets.header`. A folder of csv files has one owner per
file; its files have the same columns, in any order.

A missing value (an empty cell, NA or NaN) is refused, or kept as NaN where the run says how it is filled
(`task.datasets.columns`). A missing category is NaN in each of its columns.

The labels of a node's own file must be whole numbers 0 .. num-classes - 1, unless the header lists the
classes: nodes have no other way to agree on them.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.datasets.column_types import UntypedError, declared_in, nearest, spelled_twice, texts_in, untyped
from task.datasets.csv_rows import rows_of
from task.datasets.encode import TYPELESS, CellError, Encoder, WrongCells, alike
from task.datasets.folders import listed, visible
from task.datasets.header import (
    CLIENT,
    MISSING,
    OF_PARTS,
    SPLIT,
    TypedColumn,
    check_alike,
    parse_header,
    targets_of,
)
from task.datasets.own import Mask, assemble, data_path, files_of, keys_of
from task.datasets.parts import TRAIN, part_of, test_part
from task.datasets.targets import Row, label_of, targets
from task.errors import DataError, local
from task.inputs import SEQUENCES, packed

FILL = "Fill it in or remove the line"


def locate_csv(request: Request) -> Source:
    """Find the file, or the csv files of the folder."""
    path = data_path(request)
    files = files_of(path, ".csv") if path.is_dir() else (path,)
    if not files:
        raise DataError(f"{local(path)}: expected csv files in this folder; got none")
    others = visible(p.name for p in sorted(path.iterdir()) if p not in files) if path.is_dir() else []
    return Source(files, keys_of(request) | {"folder": path.is_dir(), "typed": True, "others": others})


class _Table:
    """The rows of one or several csv files with one header."""

    def __init__(self, request: Request, files: Sequence[Path]) -> None:
        self.request, self.files = request, files
        self.declared = declared_in(request)
        self.lacks = {c.name for one in self.declared for c in one.columns}  # none of the files read so far
        self.header: list[str] = []
        self.columns: tuple[TypedColumn, ...] = ()  # of the first file
        self.here: tuple[TypedColumn, ...] = ()  # of the file that is read
        self.roles: dict[str, TypedColumn] = {}  # columns by role
        self.rows: list[Row] = []
        self.aside: tuple[str, ...] = ()  # names of columns that no model reads, for groups of people
        self.empty: list[str] = []  # names of files without a row below the header
        self._wrong = WrongCells()

    def read(self, path: Path, owner: str | None) -> None:
        """Append the rows of one file."""
        rows = rows_of(path)
        self._take_header(path, next(rows, (1, []))[1])
        before = len(self.rows)
        self.rows += [self._row(path, line, cells, owner) for line, cells in rows]
        if len(self.rows) == before:
            self.empty.append(path.name)

    def _take_header(self, path: Path, header: list[str]) -> None:
        self.here = parse_header(path, header, self.declared)
        self.lacks -= {column.name for column in self.here}
        if self.header:
            check_alike(path, self.columns, self.here)
            return
        self.header, self.columns = header, self.here
        self.targets = targets_of(path, self.columns)
        self.roles = {column.role: column for column in self.columns}
        self.aside = tuple(column.name for column in self.columns if column.type == "group")
        features = [c for c in self.columns if c.feature and c not in self.targets]
        missing, doubles = self.request.keep_missing, self.request.doubles
        self.encoder = Encoder(features, keep_missing=missing, doubles=doubles)
        for i, column in enumerate(self.columns, 1):
            if column.type == "category" and self.request.owner and not column.values:
                said = (
                    f"{local(path)}, line 1, column {i}: expected the list of values, as in "
                    "job:category(clerk|nurse), so that all nodes encode the column alike; got none"
                )
                found = self.texts()
                listed = column.name in (c.name for c in found)
                raise self._untyped(said, found) if listed else DataError(said)

    def texts(self) -> tuple[TypedColumn, ...]:
        """Return the columns of text that lack a type, each with one that it could have."""
        kinds, typed = {c.name: "category" for c in self.encoder.features if not c.type}, set[str]()
        if self.request.owner:  # nodes have no other way to agree on values and classes
            typed = {c.name for c in self.encoder.features if c.type == "category" and not c.values}
            kinds |= dict.fromkeys(typed, "category") | {
                c.name: "target" for c in self.targets if not c.values
            }
        return texts_in(self.files, self.declared, kinds, typed)

    def others(self) -> dict[str, str]:
        """Return by name what columns are for that a model neither reads nor predicts."""
        of = {CLIENT: "owner", SPLIT: OF_PARTS, "ignore": "left out", "id": "ids"}
        of["group"] = "groups of people"
        rest = (c for c in self.columns if c not in self.targets and c not in self.encoder.features)
        return {c.name: of.get(c.role, "left out") for c in rest}

    def ids(self, rows: Sequence[Row]) -> npt.NDArray[np.str_] | None:
        """Return the id of each of these rows; None if the header has no column of them.

        Raises:
            DataError: An id is there twice.
        """
        if "id" not in self.roles:
            return None
        lines: dict[str, tuple[Path, int]] = {}
        for row in rows:
            if row.id in lines:
                path, line = lines[row.id]
                raise DataError(
                    f"{local(row.path)}, line {row.line}: expected an id that no other row has; got "
                    f"{local(repr(row.id))} again, which is in {local(path)}, line {line}, too. Keep one row "
                    "for each."
                )
            lines[row.id] = row.path, row.line
        return np.array([row.id for row in rows], dtype=np.str_)

    def _row(self, path: Path, line: int, cells: list[str], owner: str | None) -> Row:
        row = {c.name: cell for c, cell in zip(self.here, cells, strict=True)}
        labels = tuple(label_of(row[c.name]) for c in self.targets)
        of_owner, of_part = self.roles.get(CLIENT), self.roles.get(SPLIT)
        of_id = self.roles.get("id")
        who = unicodedata.normalize("NFC", row[of_id.name]) if of_id else ""
        if of_id and who.lower() in MISSING:
            self._refuse(path, line, of_id, "an id; the cell is empty", FILL)
        # In a table of statistics the target is a column like others.
        required = not (self.request.doubles and self.request.keep_missing)
        for column, label in zip(self.targets, labels, strict=True):
            if required and label.lower() in MISSING and label not in column.values:
                got = f'got "{local(label)}"' if label else "the cell is empty"
                todo = FILL
                if label:
                    todo += ". If that is the name of a class, list the classes, as in name:target(a|b)"
                self._refuse(path, line, column, f"a label; {got}", todo)
        if owner is None and of_owner:
            owner = row[of_owner.name]
            if not owner:
                self._refuse(path, line, of_owner, "a name; the cell is empty", FILL)
        part = ""
        if of_part and not (part := part_of(row[of_part.name])):
            words = f'train, test or validation; got "{local(row[of_part.name])}"'
            self._refuse(path, line, of_part, words, "Correct the cell")
        x = [self._value(path, line, column, row[column.name]) for column in self.encoder.features]
        return Row(path, line, x, labels, owner, part, who, tuple(row[name] for name in self.aside))

    def _value(self, path: Path, line: int, column: TypedColumn, cell: str) -> float:
        try:
            return self.encoder.code(column, cell)
        except CellError as err:
            self._refuse(path, line, column, str(err), err.todo)
            return math.nan

    def _refuse(self, path: Path, line: int, column: TypedColumn, words: str, todo: str) -> None:
        self._wrong.add(column.name, f"{self._place(path, line, column)}: expected {words}", todo)

    def check_cells(self) -> None:
        """Refuse the table if cells do not fit their columns.

        Raises:
            UntypedError: Columns of text have no type; it also says what else is wrong.
            DataError: Naming the first wrong cell of each column.
        """
        found = self.texts() if self._wrong.has(TYPELESS) else ()
        said = self._wrong.pop(TYPELESS, [column.name for column in found])
        if said:
            there = [c.name for c in self.columns]
            also = "".join(f" {name!r} is no column.{nearest(name, there)}" for name in sorted(self.lacks))
            raise self._untyped(said, found, also, str(self._wrong))
        if self._wrong:
            raise DataError(str(self._wrong))

    def _untyped(
        self, said: str, found: tuple[TypedColumn, ...], also: str = "", more: str = ""
    ) -> UntypedError:
        twice = spelled_twice(self.files, self.declared, found)
        return untyped(said, found, self.request, also + (f" But {twice}." if twice else ""), more)

    def _place(self, path: Path, line: int, column: TypedColumn) -> str:
        number = [c.name for c in self.here].index(column.name) + 1
        name = local(f' "{column.name}"', "")
        return f"{local(path)}, line {line}, column {number}{name}"


def decode_csv(request: Request, source: Source) -> Decoded:
    """Read all files; they must have the same columns, in any order."""
    table, where = _Table(request, source.files), str(source.files[0])
    for path in source.files:
        table.read(path, path.stem if source.keys["folder"] else None)
    table.check_cells()
    if not table.rows:
        raise DataError(f"{local(source.files[0])}: expected at least one row below the header; got none")
    rows, tests, notes = _used(table.rows)
    if table.empty:
        has, are = ("file has", "is") if len(table.empty) == 1 else ("files have", "are")
        what = f"{has} a header and no row, and {are} left out"
        notes.append(f"{len(table.empty)} {what}: {listed(table.empty)}")
    if others := source.keys["others"]:
        notes.append(f"{len(others)} files or folders are no csv, and are left out: {listed(others)}")
    y: npt.NDArray[Any] = np.zeros(len(rows), np.int64)
    classes: tuple[str, ...] = ()
    if table.targets:
        y, classes = targets(rows, table.targets, request)
    if request.task in SEQUENCES:
        raise DataError(
            f'{local(where)}: task = "{request.task}" has a target at each token, which rows of a csv file '
            "have not; got csv. Save input_ids and labels [N, T] in an npz file, or use save_to_disk (arrow)"
        )
    codes, columns = [row.x for row in rows], table.encoder.known()
    tokens = table.encoder.tokens(where, codes)
    x, form = (table.encoder.encoded(codes), "") if tokens is None else packed(where, {"": tokens})
    return assemble(
        request,
        x=x,
        y=y,
        test=tests,
        owners=[row.owner for row in rows if row.owner is not None],
        classes=classes,
        where=str(source.files[0] if len(source.files) == 1 else source.files[0].parent),
        # Tokens are a sequence, which nodes must not bring into an order by names.
        columns=() if form else (*map(str, columns), ", ".join(c.name for c in table.targets)),
        ids=table.ids(rows),
        aside={name: [row.aside[i] for row in rows] for i, name in enumerate(table.aside)},
        labelled=bool(table.targets),
        read={"other": table.others()} | ({"lacks": sorted(table.lacks)} if table.lacks else {}),
        notes=(*notes, *_counting(table), *_alike(table)),
        form=form,
    )


def _used(rows: list[Row]) -> tuple[list[Row], Mask | None, list[str]]:
    """Return the rows that are used, which are for the test, None if the file does not say, and notes."""
    parts = Counter(row.part for row in rows)
    if "" in parts:
        return rows, None, []
    tests, note = test_part(parts, "split = validation")
    used = [row for row in rows if row.part in (TRAIN, tests)]
    return used, np.array([row.part != TRAIN for row in used]), [note] if note else []


def _counting(table: _Table) -> list[str]:
    """Return notes on columns without a type that are numbers of rows by their names."""
    names = [
        c.name for c in table.encoder.features if not c.type and c.name.lower() in ("id", "idx", "index")
    ]
    return [
        f'column "{name}" is read as a number like any other. If it numbers the rows, type it {name}:ignore'
        for name in names
    ]


def _alike(table: _Table) -> list[str]:
    """Return notes on values of a category, or classes that are listed, which differ in spelling only."""
    return [
        f'column "{column.name}": the values "{one}" and "{other}" differ in spelling only, and are two '
        f"{'classes' if column in table.targets else 'inputs'} of a model. Write them alike"
        for column in (*table.encoder.known(), *table.targets)
        for one, other in alike(column.values)
    ]

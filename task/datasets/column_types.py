"""Types of a csv file's columns that a run, or the owner of a node, declares in place of its header.

They are written as the header of a csv file is (`task.datasets.header`), with the columns that get a type:
``sex:category(f|m), visit:ignore``. A declaration that has a comma is in quotation marks, as in csv.

Each column has one type: header, owner and run may leave it open, but not contradict each other. So no run
makes an input of a column that the header or the owner ignores.
"""

import csv
import difflib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from task.datasets.base import Dataset, Request
from task.datasets.csv_rows import Cells, rows_of
from task.datasets.encode import alike, is_text
from task.datasets.header import (
    CLIENT,
    MISSING,
    SPLIT,
    TYPES,
    DeclaredTypes,
    TypedColumn,
    column_in,
    read_column,
    typed_columns,
)
from task.datasets.parts import part_of
from task.errors import ConfigError, DataError, local

KEY = "column-types"  # of a run config and of a node config
RUN, OWNER = f'run-config key "{KEY}"', f'node config: key "{KEY}"'
MOST_VALUES = {"category": 20, "target": 100}  # of a column of text that is taken for one
OPTIONAL = ("ignore", CLIENT, SPLIT)  # types of columns that a node's file may lack
_JOINED = re.compile(rf":\s*({'|'.join(TYPES)})\b")  # within a name: the comma before it is not there
_OTHER = re.compile(r":\s*([A-Za-z]+)$")  # what may be meant for a type


class UntypedError(DataError):
    """Columns of text have no type; `columns` has them, each with a type that it could have."""

    def __init__(self, message: str, columns: tuple[TypedColumn, ...]) -> None:
        super().__init__(message)
        self.columns = columns


@lru_cache(maxsize=64)
def read_types(where: str, text: str) -> tuple[TypedColumn, ...]:
    """Return the columns that a text declares; `where` names its key.

    Raises:
        ConfigError: A declaration is malformed, naming its place, or a column is there twice.
    """
    try:
        cells = [c for row in csv.reader(io.StringIO(text), strict=True, skipinitialspace=True) for c in row]
    except csv.Error as err:
        raise ConfigError(
            f"{where}: expected declarations between commas, each quotation mark closed; got "
            f"{local(repr(text))} ({err})"
        ) from None
    columns: dict[str, TypedColumn] = {}
    for place, cell in enumerate(filter(None, map(str.strip, cells)), 1):
        at = f"{where}, declaration {place}"
        column = column_in(at, cell, ConfigError)
        if not column.type or _JOINED.search(column.name) or (not column.name and column.type != "ignore"):
            raise ConfigError(
                f"{at}: expected NAME:TYPE, a type among {', '.join(TYPES)}, and a comma between two, as in "
                f'"sex:category(f|m), visit:ignore"; got {local(repr(cell))}'
            )
        if column.name in columns:
            raise ConfigError(f"{at}: expected each column once; got {local(repr(column.name))} again")
        columns[column.name] = column
    return tuple(columns.values())


def write_types(columns: Sequence[TypedColumn]) -> str:
    """Return the text that `read_types` reads as these columns."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([column.spelled for column in columns])
    return out.getvalue().replace(",", ", ") if '"' not in out.getvalue() else out.getvalue()


def as_key(columns: Sequence[TypedColumn]) -> str:
    """Return a run-config key that declares these columns, as TOML."""
    text = write_types(columns)
    literal = '"' in text and not {"'", "\n"} & {*text}
    return f"{KEY}='{text}'" if literal else f"{KEY}={json.dumps(text, ensure_ascii=False)}"


def declared_in(request: Request) -> tuple[DeclaredTypes, ...]:
    """Return the types that are declared for the csv files of a request, the owner's first."""
    given = {OWNER: request.own_types, RUN: request.column_types}
    return tuple(
        DeclaredTypes(where, read_types(where, text), where == OWNER) for where, text in given.items() if text
    )


def opened(path: Path, types: str) -> tuple[tuple[TypedColumn, ...], Iterator[tuple[int, Cells]]]:
    """Return the columns of a csv file, and its rows as of `task.datasets.csv_rows`.

    `types` are what a run declares; the file may lack some of these columns.
    """
    rows = rows_of(path)
    declared = DeclaredTypes(RUN, read_types(RUN, types))
    return typed_columns(path, next(rows, (1, []))[1], (declared,)), rows


def numbered(path: Path, columns: Sequence[TypedColumn], types: str) -> tuple[str, ...]:
    """Return a remark on a file without the column of ids that a run declares, whose rows have numbers.

    `columns` are those of the file, and `types` what the run declares.
    """
    names = [column.name for column in read_types(RUN, types) if column.type == "id"]
    if not names or any(column.type == "id" for column in columns):
        return ()
    wanted = " or ".join(f'"{name}"' for name in names)
    return (f"{path} has no column {wanted}, the ids that the run declares: id is the row's number, from 0",)


def lacking(data: Dataset, where: str, text: str) -> tuple[TypedColumn, ...]:
    """Return the columns that a text declares for a table and that none of its files has."""
    absent = data.read.get("lacks", ())
    return tuple(column for column in read_types(where, text) if column.name in absent)


def check_declared(data: Dataset, request: Request, *, party: bool = False) -> None:
    """Refuse a table without a column that is declared for it.

    A `party` has some of the run's columns. Another node may lack those that no model needs.

    Raises:
        ConfigError: Naming the column and the nearest one that is there.
    """
    for where, text in ((OWNER, request.own_types), (RUN, request.column_types)):
        for column in lacking(data, where, text):
            if where == RUN and (party or (request.owner and column.type in OPTIONAL)):
                continue
            name = local(repr(column.name)) if where == OWNER else repr(column.name)
            raise ConfigError(
                f"{where}: expected columns of {local(data.source)}; got {name}, which it has not."
                f"{local(nearest(column.name, _names(data)), '')} Correct the name, or leave it out"
            )


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a sentence that names the column whose name is most alike; "" if none is."""
    lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f' Did you mean "{lower[near[0]]}"?' if near else ""


def _names(data: Dataset) -> list[str]:
    """Return the names of a table's columns."""
    features = [read_column(name).name for name in data.columns[:-1]]
    return [*features, *data.columns[-1:], *data.read.get("other", ())]


def texts_in(
    files: Sequence[Path],
    declared: Sequence[DeclaredTypes],
    kinds: Mapping[str, str],
    typed: Collection[str] = (),
) -> tuple[TypedColumn, ...]:
    """Return those columns of csv files that are of text, each with a type that it could have.

    `kinds` says by name whether a column would be a category or the target; those in `typed` are for sure,
    and lack the values. Another is of text if most of its cells are no numbers. One of too many values, or of
    one, could only be ignored, if it is not yet typed and no target.
    """
    values: dict[str, dict[str, None]] = {name: {} for name in kinds}
    text, count = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    for _, _, name, cell in _cells(files, declared, kinds):
        if cell.lower() in MISSING:
            continue
        count[name] += 1
        text[name] += is_text(cell)
        if len(values[name]) <= max(MOST_VALUES.values()):
            values[name][cell] = None
    found = []
    for name, kind in kinds.items():
        if name not in typed and 2 * text[name] <= count[name]:
            continue
        listed = tuple(sorted(values[name]))
        if kind == "category" and name not in typed and all(map(part_of, listed)):
            found.append(TypedColumn(name, SPLIT))
        elif 1 < len(listed) <= MOST_VALUES[kind] and not any("|" in value for value in listed):
            found.append(TypedColumn(name, kind, listed))
        elif kind == "category" and name not in typed:
            found.append(TypedColumn(name, "ignore"))
    return tuple(found)


def _cells(
    files: Sequence[Path], declared: Sequence[DeclaredTypes], names: Collection[str]
) -> Iterator[tuple[Path, int, str, str]]:
    """Return the cells of these columns, each with its file, line and column."""
    for path in files:
        rows = rows_of(path)
        header = [column.name for column in typed_columns(path, next(rows, (1, []))[1], declared)]
        at = [(i, name) for i, name in enumerate(header) if name in names]
        yield from ((path, line, name, cells[i]) for line, cells in rows for i, name in at)


def spelled_twice(
    files: Sequence[Path], declared: Sequence[DeclaredTypes], columns: Sequence[TypedColumn]
) -> str:
    """Return words about values of these columns that differ in spelling only, with places of both, or ""."""
    pairs = [(column.name, *pair) for column in columns for pair in alike(column.values)]
    first: dict[tuple[str, str], str] = {}
    for path, line, name, cell in _cells(files, declared, {name for name, _, _ in pairs}) if pairs else ():
        first.setdefault((name, cell), f"{path.name}, line {line}")
    said = [
        f'of column "{name}" the values "{one}" ({first[name, one]}) and "{other}" ({first[name, other]})'
        for name, one, other in pairs
    ]
    return f"{'; '.join(said)} differ in spelling only: write them alike before you list them" if said else ""


def untyped(
    said: str, columns: tuple[TypedColumn, ...], request: Request, also: str = "", more: str = ""
) -> UntypedError:
    """Return the error about columns of text without a type, which prints all types to paste.

    `also` stays on this machine, `more` marks what does.
    """
    unknown = {of[1] for c in columns if (of := _OTHER.search(c.name)) and of[1] not in TYPES}
    if unknown:
        said_to_be = " and ".join(f'"{word}"' for word in sorted(unknown))
        also += f" {said_to_be} is no type; the types are {', '.join(TYPES)}"
    columns = (*read_types(RUN, request.column_types), *columns)
    return UntypedError(
        f"{said}. Give each column of text a type, with the values of all sites: in the run-config key "
        f"{KEY}{local(as_key(columns).removeprefix(KEY), '')}, or in the header; the owner of a node also "
        f"with --{KEY}.{local(also, '')}{chr(10) if more else ''}{more}",
        columns,
    )

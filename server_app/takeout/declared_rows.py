"""What is said of the rows of a csv file by results that read columns by their names.

The file has the columns that the run declares, in any order and among others; no target is needed. A value
beyond its declared range is refused, as in the run. Cells may be empty, or "NA" and the like, where the
algorithm has missing values.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from server_app.takeout.model_file import ModelFile
from server_app.takeout.taken import Columns, Said, Taken
from task.classical.columns import NamedColumns, Variable
from task.datasets.column_types import numbered, opened
from task.datasets.header import MISSING
from task.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
Reader = Callable[[Sequence[Variable]], NamedColumns]


@dataclass(frozen=True)
class OfRows(Taken):
    """A result that says something of each row of a csv file."""

    file: ModelFile
    client: str = ""

    @abstractmethod
    def says(self, read: Reader) -> Columns:
        """Return columns of what is said of each row; `read` returns the columns of the file.

        Raises:
            BouquetError: The result says nothing.
        """

    @property
    def missing(self) -> bool:
        """Whether cells may be empty."""
        return self.file.entry.missing_values

    def predict(self, data: Path | None, *, whole: bool, batch: int) -> Said:
        """Return what is said of each row of a csv file; the rows are read at once.

        Raises:
            ConfigError: There is no file, a column is not there, or an option is not for such results.
            DataError: A cell is none of its column's declaration, naming its line.
        """
        if data is None or self.client or whole:
            raise ConfigError("predict: expected --data FILE.csv, and none of --client and --global-test")
        if data.suffix.lower() != ".csv" or not data.is_file():
            raise ConfigError(f"--data: expected a csv file with the columns of the analysis; got {data}")
        path, ids = data, list[str]()
        types = self.file.config.data.column_types

        def read(variables: Sequence[Variable]) -> NamedColumns:
            table, found = _read(path, variables, types, missing=self.missing)
            ids[:] = found
            return table

        columns = self.says(read)
        return Said([("id", ids), *columns], lines=numbered(path, opened(path, types)[0], types))


def _read(
    path: Path, variables: Sequence[Variable], types: str, *, missing: bool = False
) -> tuple[NamedColumns, list[str]]:
    """Return declared columns of a csv file and the rows' ids, which are their numbers if there are none.

    `types` are what the run declares (`task.datasets.column_types`). With `missing` a cell may be without a
    value, marked as in the run's own files.
    """
    header, rows = opened(path, types)
    at = {column.name: i for i, column in enumerate(header)}
    for v in variables:
        if v.name not in at:
            raise ConfigError(
                f"{path}, line 1: expected a column {v.name!r}, as the run's {v.key}; got "
                f"{', '.join(at) or 'none'}"
            )
    cells = list(rows)
    if not cells:
        raise DataError(f"{path}: expected rows below the header; got none")
    numbers, places = dict[str, Floats](), dict[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]]()
    for v in variables:
        column = [(line, row[at[v.name]]) for line, row in cells]
        if v.levels:
            places[v.name] = np.array(list(_places(path, v, column, missing)), np.int64), v.levels
        else:
            numbers[v.name] = np.array(list(_numbers(path, v, column, missing)), np.float64)
    of_ids = next((i for i, column in enumerate(header) if column.type == "id"), None)
    ids = [str(n) if of_ids is None else row[of_ids] for n, (_, row) in enumerate(cells)]
    return NamedColumns(numbers, places), ids


def _numbers(path: Path, v: Variable, column: Sequence[tuple[int, str]], missing: bool) -> Iterator[float]:
    for line, cell in column:
        if missing and cell.lower() in MISSING:
            yield np.nan
            continue
        try:
            number = float(cell)
        except ValueError:
            number = np.nan
        if not v.low <= number <= v.high:
            raise DataError(
                f"{path}, line {line}, column {v.name!r}: expected a number from {v.low:g} to {v.high:g}, as "
                f"the run declared; got {cell!r}"
            )
        yield number


def _places(path: Path, v: Variable, column: Sequence[tuple[int, str]], missing: bool) -> Iterator[int]:
    for line, cell in column:
        if cell in v.levels:
            yield v.levels.index(cell)
        elif missing and cell.lower() in MISSING:
            yield -1
        else:
            raise DataError(
                f"{path}, line {line}, column {v.name!r}: expected one of {', '.join(v.levels)}; got {cell!r}"
            )

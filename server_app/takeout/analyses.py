"""What a run of an analysis says of new rows: means of a regression, clusters, scores, outputs of trees.

The rows are those of a csv file with the columns that the run declares, in any order and among others; no
target is needed. A value beyond its declared range is refused, as in the run. Of trees, cells may be empty.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from server_app.takeout.model import find
from server_app.takeout.trees import TakenTrees, trees_of
from task.catalogue.user_algorithm import algorithm_of
from task.classical.clusters import clustering_of, nearest
from task.classical.columns import NamedColumns, Variable
from task.classical.components import components_of
from task.classical.fit import model_of, offset_of
from task.classical.table import covariance, ended, quantile
from task.datasets.csv_rows import rows_of
from task.datasets.header import typed_columns
from task.errors import ConfigError, DataError
from task.numerics.arrays import NamedArrays
from task.resolve.analyses import grows_trees
from task.resolve.model_card import ModelCard, read_model

Floats = npt.NDArray[np.float64]
Columns = list[tuple[str, Sequence[object]]]
Reader = Callable[[Sequence[Variable]], NamedColumns]
_INVERSE: Mapping[str, Callable[[Floats], Floats]] = {
    "gaussian": lambda eta: eta,
    "binomial": lambda eta: 1.0 / (1.0 + np.exp(-eta)),
    "poisson": np.exp,
    "gamma": np.exp,
}


def analysis_in(run: Path) -> tuple[ModelCard, NamedArrays] | None:
    """Return what the model's file of a run of an analysis has; None of another algorithm's.

    Raises:
        ConfigError: There is no such run, or its analysis says nothing of rows, or has not ended.
    """
    path = find(run)
    card, arrays = read_model(path)
    entry = algorithm_of(card.config.algorithm)
    if not entry.statistics:
        return None
    if entry.work not in _SAYS:
        raise ConfigError(
            f"{path}: expected a model; got a table of {entry.name}, which says nothing of rows"
        )
    if not (grows_trees(card.config) or ended(arrays)):
        raise ConfigError(
            f"{path}: expected a run that has ended; the iteration of this one has not. Raise "
            "num-server-rounds, and continue the run with --resume"
        )
    return card, arrays


def said_of_rows(card: ModelCard, arrays: NamedArrays, data: Path) -> str:
    """Return, as csv, what an analysis says of each row of a csv file.

    Raises:
        ConfigError: A column is not there.
        DataError: A cell is none of its column's declaration, naming its line.
    """
    entry = algorithm_of(card.config.algorithm)
    return _answered(data, lambda read: _SAYS[entry.work](card, arrays, read), missing=entry.missing_values)


def said_by_trees(taken: TakenTrees, data: Path) -> str:
    """Return, as csv, what trees say of each row of a csv file; raises what `said_of_rows` does."""
    return _answered(data, lambda read: _said(taken, read), missing=True)


def _answered(data: Path, says: Callable[[Reader], Columns], *, missing: bool) -> str:
    """Return as csv what is said of the rows of a file."""
    if data.suffix.lower() != ".csv" or not data.is_file():
        raise ConfigError(f"--data: expected a csv file with the columns of the analysis; got {data}")
    ids = list[str]()

    def read(variables: Sequence[Variable]) -> NamedColumns:
        table, found = _read(data, variables, missing=missing)
        ids[:] = found
        return table

    columns = says(read)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", *(name for name, _ in columns)])
    writer.writerows(zip(ids, *(values for _, values in columns), strict=True))
    return text.getvalue()


def _means(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the mean of each row, and its 95 % interval by the model's errors: that of the link's scale."""
    model = model_of(card.config)
    design = model.design
    shifts = [v for name, v in design.others.items() if name in ("offset", "exposure")]
    table = read([*design.variables, *shifts])
    x = np.stack(design.columns(table), axis=1)
    eta = x @ arrays["coefficients"] + offset_of(model, table)
    if not np.isfinite(eta).all():
        raise DataError('run-config key "regression.exposure": expected numbers above 0 in its column')
    inverse = _reciprocal if model.inverse else _INVERSE[model.family]
    found: Columns = [("mean", inverse(eta).tolist())]
    if model.penalty:
        return found
    half = quantile(model, arrays) * np.sqrt(np.einsum("ni,ij,nj->n", x, covariance(model, arrays), x))
    ends = np.sort(np.stack([inverse(eta - half), inverse(eta + half)]), axis=0)
    return [*found, ("low", ends[0].tolist()), ("high", ends[1].tolist())]


def _reciprocal(eta: Floats) -> Floats:
    """Return 1 / eta; infinity where an interval reaches 0."""
    return np.divide(1.0, eta, out=np.full_like(eta, np.inf), where=eta > 0)


def _nearest(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the cluster of each row, and the distance to its centre."""
    asked = clustering_of(card.config)
    table = read(asked.variables)
    columns = [table.of(v) for v in asked.variables]
    which, square = nearest(columns, arrays["centres"], arrays["weights"].tolist())
    return [("cluster", which.tolist()), ("distance", np.sqrt(square).tolist())]


def _scores(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the scores of each row."""
    asked = components_of(card.config)
    table = read(asked.variables)
    x = np.stack([table.of(v) for v in asked.variables], axis=1)
    scores = (x - arrays["mean"]) / arrays["scale"] @ arrays["components"].T
    return [(f"component_{k}", column.tolist()) for k, column in enumerate(scores.T, 1)]


def _outputs(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    return _said(trees_of(card, arrays), read)


def _said(taken: TakenTrees, read: Reader) -> Columns:
    """Return what trees say of each row: a number, or a class and the probability of each."""
    declared, names = taken.declared, taken.declared.outputs
    found = taken.answer(declared.x(read(declared.variables)))
    if len(names) == 1:
        return [("predicted", found[:, 0].tolist())]
    predicted = [names[k] for k in found.argmax(axis=1)]
    return [("predicted", predicted), *((f"p_{n}", found[:, k].tolist()) for k, n in enumerate(names))]


_SAYS: Mapping[str, Callable[[ModelCard, NamedArrays, Reader], Columns]] = {
    "regression": _means,
    "clusters": _nearest,
    "components": _scores,
    **dict.fromkeys(("boosting", "trees"), _outputs),
}


def _read(
    path: Path, variables: Sequence[Variable], *, missing: bool = False
) -> tuple[NamedColumns, list[str]]:
    """Return declared columns of a csv file and the rows' ids, which are their numbers if there are none.

    With `missing` a cell may be empty.
    """
    rows = rows_of(path)
    header = typed_columns(path, next(rows, (1, []))[1])
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
        if missing and not cell.strip():
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
        if missing and not cell.strip():
            yield -1
            continue
        if cell not in v.levels:
            raise DataError(
                f"{path}, line {line}, column {v.name!r}: expected one of {', '.join(v.levels)}; got {cell!r}"
            )
        yield v.levels.index(cell)

"""Read a data set by name: its columns, values of categories, classes and targets in the order of a run."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from task.datasets import cache
from task.datasets.base import Dataset
from task.datasets.columns import layout_of
from task.datasets.description import Description, Meaning, described, meaning_of
from task.datasets.header import TypedColumn
from task.errors import DataError

_KEPT = 2  # states of data that grow


def read_by_name(dataset: Dataset, order: Meaning, folder: Path) -> Dataset:
    """Return a data set in the order of the meaning that a run agreed on.

    What is put in order is kept in `folder`, the cache, and mapped like any data set. The fingerprint stays
    that of the data as they were read.

    Raises:
        DataError: They have another number of inputs or outputs.
    """
    mine = meaning_of(dataset)
    if (mine.inputs, mine.outputs) == (order.inputs, order.outputs):
        return dataset
    for what, got, want in (
        ("inputs", mine.inputs, order.inputs),
        ("classes or targets", mine.outputs, order.outputs),
    ):
        if len(got) != len(want):
            raise DataError(f"the order of the data: expected one of {len(got)} {what}; got {len(want)}")
    return _in_order(dataset, order.inputs, order.outputs, folder)


@functools.lru_cache(maxsize=4)
def _in_order(dataset: Dataset, inputs: tuple[int, ...], outputs: tuple[int, ...], folder: Path) -> Dataset:
    said, mine = described(dataset), meaning_of(dataset)
    sources, targets = _moves(mine.inputs, inputs), _moves(mine.outputs, outputs)
    moved = {"source": dataset.source, "inputs": sources.tolist(), "outputs": targets.tolist()}
    named = folder / "datasets" / f"by-name-{cache.key_of(moved)}"
    entry = named.with_name(f"{named.name}-{cache.key_of({'data': dataset.fingerprint})}")
    found = cache.load(entry)
    if found is None:
        picked = dataset.x[:, sources] if len(sources) else dataset.x
        found = cache.store(entry, {"x": picked, "y": _outputs(dataset.y, targets)}, {})
        cache.keep_newest(entry, f"{named.name}-*", _KEPT)
    arrays, _ = found
    x, y = arrays["x"], arrays["y"]
    columns, preparation = dataset.columns, dataset.preparation
    if len(sources):
        features = _columns([said.inputs[i] for i in sources], said.columns)
        target = (
            ", ".join(said.targets[i] for i in targets) if not said.classes and len(targets) else columns[-1]
        )
        columns = (*map(str, features), target)
        if preparation is not None:
            numbers, firsts, _ = layout_of(columns, dataset.x.shape[1])
            preparation = replace(preparation, numbers=numbers, firsts=firsts)
    numbered = not dataset.classes and bool((targets == np.arange(len(targets))).all())
    classes = () if numbered else tuple(said.classes[i] for i in targets[: len(said.classes)])
    meaning = Meaning(mine.parts, inputs, outputs)
    return replace(
        dataset, x=x, y=y, columns=columns, classes=classes, preparation=preparation, meaning=meaning
    )


def in_order_of(order: Meaning, said: Description) -> Description:
    """Return a description of the same things in the order of a meaning that is of the same names."""
    sources = _moves(said.meaning.inputs, order.inputs)
    columns = _columns([said.inputs[i] for i in sources], said.columns) if len(sources) else said.columns
    if not said.outputs:
        return replace(said, columns=columns)
    outputs = tuple(said.outputs[i] for i in _moves(said.meaning.outputs, order.outputs))
    if said.classes:
        return replace(said, columns=columns, classes=outputs)
    return replace(said, columns=columns, targets=outputs)


def _moves(mine: tuple[int, ...], wanted: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return for each place of the order that is wanted where the data have it."""
    return np.argsort(np.array(mine, np.int64))[np.array(wanted, np.int64)]


def _outputs(y: npt.NDArray[np.generic], targets: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """Return targets in another order: class numbers, or columns of several."""
    if not len(targets):
        return y
    if y.dtype.kind == "f" and y.ndim == 2:
        return y[:, targets]
    moved: npt.NDArray[np.generic] = np.argsort(targets).astype(y.dtype)[y]
    return moved if y.ndim == 1 else np.where(np.asarray(y, np.int64) >= 0, moved, y)


def _columns(inputs: list[tuple[str, str]], columns: tuple[TypedColumn, ...]) -> tuple[TypedColumn, ...]:
    """Return the columns in the order of their inputs, each category with its values in that order."""
    values: dict[str, list[str]] = {}
    for name, value in inputs:
        values.setdefault(name, []).append(value)
    by_name = {column.name: column for column in columns}
    return tuple(
        replace(by_name[name], values=tuple(found)) if by_name[name].values else by_name[name]
        for name, found in values.items()
    )

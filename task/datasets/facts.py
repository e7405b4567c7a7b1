"""Facts about the data that were read: files, columns, classes, owners, omissions, filling, scaling.

`facts_of` makes the block for ``config.json`` of a run whose server has data; `task.datasets.facts_in_words`
makes lines for people of it. A node's block has names and values of its data: it never leaves the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Dataset, Decoded
from task.datasets.columns import layout_of
from task.datasets.description import Description
from task.datasets.header import TypedColumn, read_column

Facts = dict[str, Any]  # as of JSON

MOST_LISTED = 100  # columns, classes, values of a category and owners in config.json
_MANY_ROWS = 1 << 16  # rows that are processed together,
_TARGETS = 1 << 10  # and of those with a class at each place


def facts_of(dataset: Dataset) -> Facts:
    """Return what was read, and what a model reads of it."""
    found: Facts = {"kind": dataset.kind, "input_shape": list(dataset.input_shape), **dataset.read}
    found |= {"form": dataset.form} if dataset.form else {}
    if dataset.notes:
        found["notes"] = list(dataset.notes)
    if dataset.columns:
        features = [read_column(name) for name in dataset.columns[:-1]]
        found["columns"] = _columns(features, dataset.columns[-1]) | {"other": found.pop("other", {})}
    if dataset.labelled:
        found |= _targets(dataset)
    if dataset.owners:
        sizes = np.diff(dataset.owners.train_offsets).tolist()
        found["owners"] = listed(zip(dataset.owners.names, sizes, strict=True), len(sizes))
    if dataset.preparation and dataset.preparation.missing != "refuse" and (missing := _missing(dataset)):
        found["missing"] = missing | {"filled": dataset.preparation.missing}
    if scaled := _scaled(dataset):
        found["scaled"] = scaled
    return found


def listed(pairs: Iterable[tuple[str, Any]], count: int) -> Facts:
    """Return how many there are, and the first by name."""
    first = [pair for pair, _ in zip(pairs, range(MOST_LISTED), strict=False)]
    return {"count": count, "listed": dict(first)}


def spread(sizes: npt.NDArray[Any]) -> Facts:
    """Return the fewest, the median and the most training examples of a client."""
    return {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())}


def names_in(said: Description) -> Facts:
    """Return the columns and classes of a description, without anything counted."""
    found: Facts = {}
    if said.columns:
        found["columns"] = _columns(said.columns, ", ".join(said.targets)) | {"other": {}}
    return found | ({"names": list(said.classes[:MOST_LISTED])} if said.classes else {})


def _columns(features: Sequence[TypedColumn], target: str) -> Facts:
    return listed(((c.name, _kind(c)) for c in features), len(features)) | {"target": target}


def _kind(column: TypedColumn) -> str | list[str]:
    """Return what a feature is: a number, or the values of a category."""
    return list(column.values[:MOST_LISTED]) if column.type == "category" else "number"


def _targets(dataset: Dataset) -> Facts:
    """Return the classes with their examples to train on and to test on, or the range of the numbers."""
    y = dataset.y
    if y.dtype.kind == "f":
        label = dataset.task == "multi-label"
        of = {"labels": dataset.num_classes} if label else {"numbers": dataset.num_classes}
        there = y[~np.isnan(y)]  # an analysis may have rows without a target
        span = {} if label or not there.size else {"from": float(there.min()), "to": float(there.max())}
        named = {"names": list(dataset.classes[:MOST_LISTED])} if dataset.classes and not label else {}
        return {"targets": of | span | named}
    if y.ndim > 2 or (dataset.form and y.ndim > 1):
        parts = np.array_split(y, len(y) // _TARGETS + 1)
        counted = sum(int((part >= 0).sum()) for part in parts) / y.size
        return {"places": {"classes": dataset.num_classes, "shape": list(y.shape[1:]), "counted": counted}}
    if y.ndim > 1:
        return {}
    counts = np.stack([_counted(y[: dataset.num_train], dataset), _counted(y[dataset.num_train :], dataset)])
    names = dataset.classes or map(str, range(dataset.num_classes))
    return {"classes": listed(zip(names, counts.T.tolist(), strict=False), dataset.num_classes)}


def _counted(y: npt.NDArray[Any], dataset: Decoded) -> npt.NDArray[np.int64]:
    return np.bincount(np.asarray(y, np.int64), minlength=dataset.num_classes)


def _missing(dataset: Dataset) -> Facts:
    """Return how many values are missing, by column; {} if none is."""
    _, firsts, _ = layout_of(dataset.columns, dataset.x.shape[1])
    count = np.zeros(len(firsts), np.int64)
    for start in range(0, len(dataset.x), _MANY_ROWS):
        count += np.isnan(dataset.x[start : start + _MANY_ROWS, firsts]).sum(0)
    names = [read_column(n).name for n in dataset.columns[:-1]] or [str(j + 1) for j in range(len(firsts))]
    gone = [(names[j], int(count[j])) for j in np.argsort(-count, kind="stable") if count[j]]
    return listed(gone, len(gone)) | {"values": int(count.sum())} if gone else {}


def _scaled(dataset: Dataset) -> str:
    """Return in words how a model reads pixels or columns; "" of text."""
    if dataset.standardised:
        return "each image's pixels to mean 0 and deviation 1 (pixels)"
    if dataset.kind == "image":
        low, high = (
            sorted({round(float((v - m) / s), 3) for m, s in zip(dataset.mean, dataset.std, strict=True)})
            for v in (0.0, 1.0)
        )
        return f"pixels of 0 to {dataset.scale:g} read as {_range(low)} to {_range(high)}"
    if dataset.kind != "features":
        return ""
    if dataset.preparation and dataset.preparation.standardise:
        return "each column by the mean and deviation over all clients (standardise)"
    return "no: numbers are read as they are"


def _range(values: list[float]) -> str:
    """Return one number, or of channels that differ the least and the largest."""
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g}..{values[-1]:g}"

"""Facts about the data that were read: files, columns, classes, owners, omissions, filling, scaling.

`facts_of` makes the block for ``config.json`` of a run whose server has data, and `in_words` the
lines that a terminal, a report and a node's own log show of it. A node's block has names and values of its
data: it never leaves the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Dataset, Decoded
from task.datasets.columns import layout_of
from task.datasets.description import Description
from task.datasets.header import TypedColumn, read_column

Facts = dict[str, Any]  # as of JSON
Line = tuple[str, str]  # the topic, and the fact

MOST_LISTED = 100  # columns, classes, values of a category and owners in config.json
SHOWN = 8  # of these in a line for people
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
        return {"targets": of | span}
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


def in_words(facts: Mapping[str, Any], most: int = SHOWN) -> list[Line]:
    """Return the facts, or the data block of ``config.json``, for people.

    At most `most` names are in a line. The block of an earlier version says less.
    """
    found: list[Line] = []
    if facts.get("at") == "nodes":
        shape = "x".join(map(str, facts["input_shape"]))
        words = f"at the nodes, whose own logs say what was read; examples of shape {shape}"
        found.append(("data", f"{words}, {facts['outputs']:,} classes or numbers to predict"))
    elif facts.get("description"):
        source = f", from {facts['source']}" if facts.get("source") else ""
        found.append(("data", f"{facts['description']}{source}"))
    if files := facts.get("files"):
        count = f"{files['count']:,}: " if files["count"] > 1 else ""
        found.append(("files", count + _some(files["listed"], files["count"], most)))
    if columns := facts.get("columns"):
        shown = [f"{name} ({_kind_in_words(kind)})" for name, kind in columns["listed"].items()]
        other = [f"{name}: {what}" for name, what in columns["other"].items()]
        words = f"{columns['count']:,}: {_some(shown, columns['count'], most)}"
        words += f" -> {columns['target']}" if columns["target"] else ""
        found.append(("columns", "; ".join([words, *([_some(other, len(other), most)] if other else [])])))
    if pictures := _pictures(facts):
        found.append(("pictures", pictures))
    if classes := facts.get("classes"):
        tests = any(test for _, test in classes["listed"].values())
        shown = [
            f"{name} ({train:,}" + (f" + {test:,})" if tests else ")")
            for name, (train, test) in classes["listed"].items()
        ]
        what = "training + test examples" if tests else "examples"
        found.append(
            ("classes", f"{classes['count']:,}: {_some(shown, classes['count'], most)}; {what} of each")
        )
    if form := facts.get("form"):
        found.append(("inputs", form))
    if places := facts.get("places"):
        shape = "x".join(map(str, places["shape"]))
        words = f"one of {places['classes']:,} classes at each of {shape} places"
        found.append(("targets", f"{words}, of which {places['counted']:.1%} count"))
    if names := facts.get("names"):
        found.append(("classes", _some(names, facts.get("outputs", len(names)), most)))
    if targets := facts.get("targets"):
        words = f"{targets['labels']:,} labels 0 and 1" if "labels" in targets else f"{targets['numbers']:,}"
        if "from" in targets:
            words += f" from {targets['from']:.6g} to {targets['to']:.6g}"
        found.append(("targets", words))
    owners = facts.get("owners")
    if owners and owners["count"] > 1:
        shown = [f"{name} ({count:,})" for name, count in owners["listed"].items()]
        found.append(("owners", f"{owners['count']:,}: {_some(shown, owners['count'], most)}"))
    if missing := facts.get("missing"):
        shown = [f"{name} ({count:,})" for name, count in missing["listed"].items()]
        words = _some(shown, missing["count"], most)
        found.append(("missing", f"{missing['values']:,} values, filled with {missing['filled']}: {words}"))
    found += [("note", note) for note in facts.get("notes", ())]
    if scaled := facts.get("scaled"):
        found.append(("scaled", scaled))
    if public := facts.get("public_examples"):
        found.append(("public", f"{public:,} training examples that no client owns"))
    if sizes := facts.get("client_examples"):
        least, median, largest = sizes["min"], sizes["median"], sizes["max"]
        each = f"{least:,} training examples each"
        if least < largest:
            each = f"{least:,} to {largest:,} training examples each, median {median:,.0f}"
        if held := facts.get("held_out"):
            unread = "" if held["read"] else ", which this run leaves out (fraction-evaluate = 0)"
            each += f"; {held['examples']:,} more are held out for clients' own tests{unread}"
        found.append(("clients", f"{facts['clients']:,}, {each}"))
    return found


def as_text(facts: Mapping[str, Any]) -> list[str]:
    """Return `in_words` as lines of a terminal or a log, which have the notes as warnings."""
    return [f"{label:<9} {text}" for label, text in in_words({**facts, "notes": ()})]


def _kind_in_words(kind: str | list[str]) -> str:
    return kind if isinstance(kind, str) else _some(kind, len(kind), SHOWN, " | ")


def _pictures(facts: Mapping[str, Any]) -> str:
    """Return size, channels and Pillow's modes of pictures; "" if they are none, or no example is one."""
    shape: list[int] = facts.get("input_shape") or []
    if facts.get("kind") != "image" or len(shape) != 3:
        return ""
    channels, height, width = shape
    parts = [f"{width}x{height} pixels, {'1 channel' if channels == 1 else f'{channels} channels'}"]
    if within := facts.get("entered"):
        parts.append(f"in the folder {within}")
    if folders := facts.get("parts"):
        parts.append("parts " + ", ".join(f"{part} = {folder}" for part, folder in folders.items()))
    if modes := facts.get("modes"):
        parts.append("read from " + ", ".join(f"{count:,} of mode {mode}" for mode, count in modes.items()))
    return "; ".join(parts)


def _some(names: Iterable[object], count: int, most: int, mark: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    shown = [str(name) for name, _ in zip(names, range(most), strict=False)]
    return mark.join(shown) + (f" ... and {count - len(shown):,} more" if count > len(shown) else "")

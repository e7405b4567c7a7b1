"""Reads examples to predict: a csv, npz or picture file of the user's own, with or without labels.

They are scaled as the examples that the model was trained on. csv: columns are found by their names where
the model knows them; else there must be as many as the model reads, perhaps with a label in ``label`` or in
the last column. ``client`` and ``split`` are no features, and a column ``id`` names the examples. npz:
``x``, perhaps ``y``, ``x_test`` and ``y_test``, and ``columns`` and ``classes``, by whose names columns and
labels are found. A Hugging Face data set on disk: its columns and classes are found by name, too. Pictures: a
folder or zip file, as a data set's or without class folders, or one picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from server_app.takeout.by_digest import classes_by_digest, columns_by_digest
from server_app.takeout.places import of_places
from task.datasets import Dataset
from task.datasets.arrow import is_saved
from task.datasets.column_types import RUN, numbered, opened, read_types
from task.datasets.columns import prepared, with_moments
from task.datasets.condition import is_conditional
from task.datasets.description import Description
from task.datasets.encode import LARGEST, CellError, Encoder, WrongCells, number
from task.datasets.header import SPLIT, TypedColumn, read_column
from task.datasets.hub import saved_arrays
from task.datasets.images import read_pictures
from task.datasets.layout import channels_first
from task.datasets.npz import fits, read_arrays
from task.datasets.npz_names import class_names, column_names
from task.datasets.targets import label_of
from task.errors import DataError
from task.population import some
from task.resolve.model_card import ModelCard
from task.tasks import TASKS

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Input:
    """Input as a model reads them."""

    data: Dataset
    rows: Rows  # those to predict
    ids: Sequence[str]  # of these
    labelled: bool
    parts: Sequence[str] = ()  # "train" or "test" of each, if the file says so
    remarks: tuple[str, ...] = ()  # on the file, for the user


def of_dataset(data: Dataset, rows: Rows) -> Input:
    """Return rows of a data set that is loaded, called by its ids if it has some."""
    return Input(data, rows, list(map(str, rows if data.ids is None else data.ids[rows])), True)


def read_examples(path: Path, card: ModelCard) -> Input:
    """Return the examples of a file or folder.

    Raises:
        DataError: They cannot be read, or are not what the model reads; names file, lines and columns.
    """
    if not path.exists():
        raise DataError(
            "--data: expected a csv, npz or picture file, or a folder of pictures or of save_to_disk; there "
            f"is no {path}"
        )
    if is_conditional(card.config):
        raise DataError(
            f"--data: the model is given each example's {card.config.data.condition}, which no such file "
            f"says; expected --data left out; got {path}"
        )
    if found := of_places(path, card):
        data, labelled = found
        return replace(of_dataset(data, np.arange(len(data.y))), labelled=labelled)
    if card.kind == "text":
        raise DataError(f"--data: the model reads text, which no such file has; got {path}")
    if path.suffix.lower() == ".csv":
        return _csv(path, card)
    if is_saved(path):
        return _arrays(path, saved_arrays(path), card)
    if path.suffix.lower() == ".npz":
        return _arrays(path, read_arrays(path, "x"), card)
    return _pictures(path, card)


def _csv(path: Path, card: ModelCard) -> Input:
    types = card.config.data.column_types
    columns, rows = opened(path, types)
    lines = list(rows)
    header = [column.name for column in columns]
    features, targets = _columns(path, columns, card)
    if not lines:
        raise DataError(f"{path}: expected at least one row below the header; got none")
    at = {name: i for i, name in enumerate(header)}
    encoder, wrong = Encoder(features, keep_missing=card.config.data.missing != "refuse"), WrongCells()

    def code(line: int, feature: TypedColumn, cell: str) -> float:
        try:
            return encoder.code(feature, cell)
        except CellError as err:
            said = f'{path}, line {line}, column "{feature.name}": expected {err}'
            wrong.add(feature.name, said, err.todo)
            return math.nan

    codes = [[code(line, f, cells[at[f.name]]) for f in features] for line, cells in lines]
    if wrong:
        raise DataError(str(wrong))
    x = encoder.encoded(codes)
    card = replace(card, columns=(*map(str, features), ", ".join(targets)))
    given = [name for name in targets if name in header]
    if given and len(given) < len(targets):
        raise DataError(
            f"{path}, line 1: expected all that the model predicts, or none of it; got none called "
            f"{some([name for name in targets if name not in header])}"
        )

    def column(name: str) -> list[str]:
        return [cells[at[name]] for _, cells in lines]

    cells_of_label = column(given[0]) if given and TASKS[card.task].classes else []
    labels = [cell if cell in card.names else label_of(cell) for cell in cells_of_label]
    if TASKS[card.task].classes and not card.classes:
        of_run = [column for column in read_types(RUN, types) if column.type == "target"]
        of_label = next((c.values for c in (*columns, *of_run) if c.name in given or c in of_run), ())
        card = replace(card, classes=classes_by_digest(str(path), card, features, of_label, labels))
    numbers = None
    if given and _has_numbers(card):
        read = [_floats(column(name), path, [line for line, _ in lines]) for name in given]
        numbers = read[0] if len(read) == 1 else np.stack(read, axis=1)
    where = [f"{path}, line {line}" for line, _ in lines]
    parts = next((column(c.name) for c in columns if c.role == SPLIT), [])
    identifies = next((c.name for c in columns if c.type == "id"), "id")
    ids = column(identifies) if identifies in at and identifies not in [f.name for f in features] else []
    found = _examples(path, card, x, labels, where, ids, parts, numbers, encoded=True)
    return replace(found, remarks=() if ids else numbered(path, columns, types))


def _columns(
    path: Path, header: Sequence[TypedColumn], card: ModelCard
) -> tuple[list[TypedColumn], tuple[str, ...]]:
    """Return the features, and the names of what is predicted, which the file may not have; () = unknown."""
    names, where = [column.name for column in header], f"{path}, line 1"
    count, targets = math.prod(card.input_shape), tuple(c.name for c in header if c.type == "target")
    indicators = card.config.data.missing_indicator and card.config.data.missing != "refuse"

    def width(columns: Sequence[TypedColumn]) -> int:
        return sum(len(c.inputs) for c in columns) + len(columns) * indicators

    if card.columns:
        features, targets = [read_column(name) for name in card.columns[:-1]], target_names(card)
        if missing := [f.name for f in features if f.name not in names]:
            raise DataError(
                f"{where}: expected the columns that the model was trained on; "
                f"got none called {some(missing)}"
            )
    elif "columns" in card.meaning.parts:
        features, targets = columns_by_digest(where, header, card)
    else:
        features = [c for c in header if c.feature]
        last = features[-1].name if features and not targets and width(features) == count + 1 else ""
        if not _has_several(card):
            targets = (
                ("label",) if "label" in names and not targets else (*targets, *filter(None, [last]))[:1]
            )
        features = [c for c in features if c.name not in targets]
        if width(features) == count + 1:
            features = [c for c in features if c.name != "id"]
    listed = all(c.values for c in features if c.type == "category")
    if not listed or width(features) != count or len(set(names)) != len(names):
        raise DataError(
            f"{where}: expected columns that give the model's {count} inputs, each name once, perhaps a "
            f"label, client, split and id; got {some(names)}"
        )
    return features, targets


def _has_several(card: ModelCard) -> bool:
    """Return whether a model says several numbers of an example."""
    return _has_numbers(card) and card.num_classes > 1


def target_names(card: ModelCard) -> tuple[str, ...]:
    """Return the names of the columns that a model predicts, in its order; () = unknown."""
    if not _has_several(card):
        return card.columns[-1:]
    names = card.classes or tuple(card.columns[-1].split(", ") if card.columns else ())
    return names if len(names) == card.num_classes else ()


def _arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]], card: ModelCard) -> Input:
    parts: list[str] = []
    if "x_test" in arrays:
        parts = ["train"] * len(arrays["x"]) + ["test"] * len(arrays["x_test"])
    x = _joined(path, arrays, "x")
    if not fits(x, card.config.data.missing != "refuse"):
        raise DataError(
            f"{path}: expected x to be finite numbers that fit float32; got {x.dtype} with NaN, Inf, larger "
            "numbers or objects"
        )
    image = x.dtype == np.uint8 and x.ndim > 2
    if card.kind and image is not (card.kind == "image"):
        wanted = "uint8 pictures" if card.kind == "image" else "numbers of another type than uint8"
        raise DataError(
            f"{path}: expected x of {wanted}, as the model was trained on; got {x.dtype} {x.shape}"
        )
    y = _joined(path, arrays, "y") if "y" in arrays else None
    named = column_names(str(path), arrays, x)
    if named and not image:
        features, places = _places(path, [read_column(name) for name in named[:-1]], card)
        x = x[:, places]
        card = replace(card, columns=(*map(str, features), *(card.columns[-1:] or named[-1:])))
    listed = class_names(str(path), {"y": np.zeros(0), **arrays})
    by_name = bool(card.classes) or "classes" in card.meaning.parts
    labels = [] if y is None or not TASKS[card.task].classes else _named(path, y, listed if by_name else ())
    if listed and by_name and not card.classes:
        columns = [read_column(name) for name in card.columns[:-1]]
        card = replace(card, classes=classes_by_digest(str(path), card, columns, listed, labels))
    numbers = y.astype(np.float32) if y is not None and _has_numbers(card) else None
    if numbers is not None and numbers.ndim == 2 and set(listed) == set(target_names(card)) != set():
        numbers = numbers[:, [listed.index(name) for name in target_names(card)]]
    where = [f"{path}, example {i}" for i in range(len(x))]
    return _examples(
        path,
        card,
        channels_first(x, str(path)) if image else x.astype(np.float32),
        labels,
        where,
        [],
        parts,
        numbers,
        encoded=bool(named),
    )


def _places(
    path: Path, header: Sequence[TypedColumn], card: ModelCard
) -> tuple[list[TypedColumn], list[int]]:
    """Return the features in the order that the model reads them, and where the file has their inputs."""
    features = list(header)
    if len(card.columns) > 1:
        features = [read_column(name) for name in card.columns[:-1]]
    elif "columns" in card.meaning.parts:
        features, _ = columns_by_digest(f"{path}, columns", header, card)
    there = {pair: i for i, pair in enumerate(Description("features", tuple(header)).inputs)}
    wanted = Description("features", tuple(features)).inputs
    if missing := [
        f"{name}={value}" if value else name for name, value in wanted if (name, value) not in there
    ]:
        raise DataError(
            f"{path}, columns: expected the columns that the model was trained on; got none called "
            f"{some(missing)}"
        )
    return features, [there[pair] for pair in wanted]


def _named(path: Path, y: npt.NDArray[np.generic], names: Sequence[str]) -> list[str]:
    """Return labels as texts; where the file names the classes, their names."""
    if not names:
        return list(map(str, y))
    if y.dtype.kind not in "iu" or y.ndim != 1 or (len(y) and not 0 <= y.min() <= y.max() < len(names)):
        raise DataError(
            f"{path}: expected y of integers from 0 to {len(names) - 1}, as classes has names; got others"
        )
    return [names[int(number)] for number in y]


def _has_numbers(card: ModelCard) -> bool:
    """Return whether targets are numbers or labels 0 and 1."""
    return not TASKS[card.task].classes and card.task != "reconstruction"


def _joined(path: Path, arrays: dict[str, npt.NDArray[np.generic]], name: str) -> npt.NDArray[np.generic]:
    found = [arrays[key] for key in (name, f"{name}_test") if key in arrays]
    if len({a.shape[1:] for a in found}) > 1 or ("x_test" in arrays and len(found) == 1):
        raise DataError(
            f"{path}: expected x_test, and y_test where there is y, like x and y; got other shapes"
        )
    return np.concatenate(found)


def _pictures(path: Path, card: ModelCard) -> Input:
    if card.kind == "features":
        raise DataError(
            f"--data: the model reads {math.prod(card.input_shape)} numbers an example; got {path}"
        )
    x, names, labels, parts = read_pictures(path)
    where = [f"{path}: {name}" for name in names]
    if TASKS[card.task].classes and not card.classes:
        card = replace(card, classes=classes_by_digest(str(path), card, (), (), labels))
    if (
        labels
        and not card.classes
        and len(set(labels)) <= card.num_classes
        and not all(map(str.isdecimal, labels))
    ):
        raise DataError(
            f"{path}: expected class folders called 0..{card.num_classes - 1}, since the model does not know "
            f"the classes' names; got {some(sorted(set(labels)))}. Pictures need no class folders."
        )
    return _examples(path, card, x, labels, where, names, parts)


def _examples(
    path: Path,
    card: ModelCard,
    x: npt.NDArray[np.generic],
    labels: Sequence[str],
    where: Sequence[str],
    ids: Sequence[str] = (),
    parts: Sequence[str] = (),
    numbers: npt.NDArray[np.float32] | None = None,
    *,
    encoded: bool = False,
) -> Input:
    """Return what was read; of a csv file, whose columns are counted already, x is `encoded` cells."""
    image = x.dtype == np.uint8 and x.ndim > 2
    shape = (1, *x.shape[1:]) if image and x.ndim == 3 else x.shape[1:]
    if encoded:
        shape = card.input_shape
    crop = card.config.data.crop if image else 0  # larger images are cropped, as in training
    fits = shape[0] == card.input_shape[0] and min(shape[1:]) >= crop if crop else shape == card.input_shape
    if (image and not fits) or (not crop and math.prod(shape) != math.prod(card.input_shape)):
        least = f", or larger by height and width (crop = {crop})" if crop else ""
        raise DataError(f"{path}: expected examples of shape {card.input_shape}{least}; got {shape}")
    if labels and len(labels) != len(x):
        raise DataError(f"{path}: expected a label for each of {len(x)} examples; got {len(labels)}")
    channels = card.input_shape[0] if image else 1
    # Of a deployed run only the nodes know the scale; there it is that of their own files.
    half = (0.5,) * channels if image and not card.kind else ()
    data = Dataset(
        name=path.name,
        x=x,
        y=numbers if numbers is not None else _numbers(labels, where, card),
        num_train=0,
        num_classes=card.num_classes,
        input_shape=shape if crop else card.input_shape,
        kind="image" if image else "features",
        scale=card.scale,
        mean=half or card.mean,
        std=half or card.std,
        columns=card.columns,
        classes=card.classes,
    )
    data = prepared(data, card.config.data)
    if card.moments and data.preparation:
        data = with_moments(data, card.moments)
    names = list(ids) or [str(i) for i in range(len(x))]
    return Input(data, np.arange(len(x)), names, bool(labels) or numbers is not None, list(parts))


def _floats(cells: Sequence[str], path: Path, lines: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the targets of a csv file."""
    for cell, line in zip(cells, lines, strict=True):
        if not abs(number(cell)) <= LARGEST:
            raise DataError(f"{path}, line {line}: expected a number as target; got {cell!r}")
    return np.array(cells, np.float32)


def _numbers(labels: Sequence[str], where: Sequence[str], card: ModelCard) -> Rows:
    """Return class numbers; labels are names of classes, or the numbers of classes without names."""
    if not labels:
        return np.zeros(len(where), np.int64)
    number = {name: i for i, name in enumerate(card.names)}
    for label, place in zip(labels, where, strict=True):
        if label not in number:
            raise DataError(f"{place}: expected a label of {some(list(card.names))}; got {label!r}")
    return np.array([number[label] for label in labels], np.int64)

"""Hugging Face data sets: of the hub, and folders that ``save_to_disk`` wrote.

============================  ===================================================================
``hf:mnist``                  a set of the hub
``hf:ylecun/mnist``           the same by its owner
``hf:nyu-mll/glue/cola``      one configuration of a set
``hf:/folder``, ``hf:./set``  what ``save_to_disk`` wrote; relative paths start at the working directory
``arrow``                     the same at ``data-path``, also a node's own; or a folder of such folders, one
                              for each owner, as ``flwr-datasets create`` makes it
============================  ===================================================================

The label is the column ``label``, ``labels``, ``target``, ``targets`` or ``y``, else the only `ClassLabel`.
The inputs are the only column of pictures, else the columns of numbers. A column ``client`` names the owners.
With a tokenizer's column ``input_ids`` all columns of numbers but the label are inputs by name
(`task.datasets.named_inputs`), and there may be no label.
The splits ``train`` and ``test`` are used; without ``test`` the validation split (`task.datasets.parts`), and
without that a tenth of the examples, is the test set.

A folder is read again when its files change. A set of the hub is read once: what is in our cache stays, also
where there is no network, until its folder is deleted.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from task import trust
from task.datasets.arrow import is_saved, saved_splits
from task.datasets.base import Decoded, Request, Source, no_progress_thread
from task.datasets.folders import listed, visible
from task.datasets.named_inputs import BOXES, IDS_NAME
from task.datasets.npz import from_arrays
from task.datasets.own import data_path, keys_of
from task.datasets.parts import VALIDATION, part_of, test_part
from task.datasets.pictures import PictureError, Stack, opened
from task.errors import DataError, local, reason
from task.references import HUB, code_folder, package_of
from task.storage.memory import available
from task.units import human_bytes

_LABELS = ("label", "labels", "target", "targets", "y")
_NUMBERS = ("int", "uint", "float", "bool")
_BOXES = ("bbox", "bboxes", "boxes", "objects")
_IDS = ("id", "idx", "index")  # numbers that are no input
_TODO = (
    "Rename or remove columns, make classes of texts with class_encode_column, and write the set with "
    'save_to_disk(FOLDER); or return arrays from a function of your own, dataset = "data:load"'
)
_SAVED = "a folder that save_to_disk of Hugging Face's datasets wrote"

Splits = dict[str, Any]  # `datasets.Dataset` by the name of its split


class _Roles(NamedTuple):
    """The roles of a set's columns."""

    inputs: tuple[str, ...]
    label: str  # "" = there is none, and tokens are to be predicted
    picture: bool
    named: bool = False  # whether the inputs go by their names


def locate(request: Request) -> Source:
    """Return what the data depend on: the files of a folder; of a set on the hub its name alone.

    Raises:
        DataError: There is no such folder.
    """
    folder = _folder(request.name)
    if folder is not None and not is_saved(folder):
        raise DataError(f'run-config key "dataset": expected {_SAVED}; {local(folder)} is none')
    return Source(_files(folder) if folder else (), _keys(request))


def locate_folder(request: Request) -> Source:
    """Find the folder of a set, or in a folder those of its owners.

    Raises:
        DataError: There is none, or one of several owners where a node's own data are asked for.
    """
    folder = data_path(request)
    if is_saved(folder):
        return Source(_files(folder), _keys(request))
    owners = sorted(p.name for p in folder.glob("*") if is_saved(p))
    if not owners or request.owner:
        got = (
            f"the folders of {len(owners)} owners, such as {local(owners[0])}" if owners else "no such files"
        )
        raise DataError(f"{local(folder)}: expected {_SAVED}; got {got}")
    others = [name for name in visible(sorted(p.name for p in folder.iterdir())) if name not in owners]
    files = tuple(file for owner in owners for file in _files(folder / owner))
    return Source(files, _keys(request) | {"owners": owners, "others": others})


def _keys(request: Request) -> dict[str, Any]:
    return keys_of(request) | {"task": request.task, "named": True}


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(p for p in folder.rglob("*") if p.is_file()))


def decode(request: Request, source: Source) -> Decoded:
    """Load a set of the hub, or of the folder that its name says, and check its columns and values.

    Raises:
        ConfigError: A file names the set, and the user does not.
        DataError: It cannot be loaded, or it is not clear what its columns are.
    """
    trust.packages_for("dataset", request.name, package_of(request.name))
    key, folder = f'run-config key "dataset": "{request.name}"', _folder(request.name)
    splits = saved_splits(folder) if folder else _downloaded(request.name, key)
    return _decoded(request, key, splits, request.name, paths=folder is None)


def decode_folder(request: Request, source: Source) -> Decoded:
    """Load a set of a folder, or those of several owners, and check columns and values.

    Raises:
        DataError: A set cannot be loaded, it is not clear what its columns are, or owners have others.
    """
    folder = data_path(request)
    if "owners" not in source.keys:
        return _decoded(request, local(folder), saved_splits(folder), str(folder))
    sets = {owner: saved_splits(folder / owner) for owner in source.keys["owners"]}
    splits, owners = _joined(local(folder), sets)
    made = _decoded(request, local(folder), splits, str(folder), owners)
    others = source.keys["others"]
    note = f"{len(others)} files or folders are no data sets, and are left out: {listed(others)}"
    return replace(made, notes=(*made.notes, *([note] if others else [])))


def _joined(key: str, sets: dict[str, Splits]) -> tuple[Splits, list[str]]:
    """Return the sets of several owners as one, and the owner of each training example."""
    import datasets

    first = next(iter(sets))
    forms = {owner: {name: part.features for name, part in splits.items()} for owner, splits in sets.items()}
    for owner, form in forms.items():
        if form != forms[first]:
            raise DataError(
                f"{key}: expected the same splits and columns of all owners; those of {local(owner)} "
                f"differ from those of {local(first)}. {_TODO}"
            )
    joined = {name: datasets.concatenate_datasets([s[name] for s in sets.values()]) for name in forms[first]}
    return joined, [owner for owner, splits in sets.items() for _ in range(len(splits.get("train", ())))]


def saved_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the set of a folder as the arrays that an npz file has.

    Raises:
        DataError: It cannot be loaded, or it is not clear what its columns are.
    """
    return _arrays(local(folder), saved_splits(folder))[0]


def _decoded(
    request: Request, key: str, splits: Splits, where: str, owners: Sequence[str] = (), *, paths: bool = False
) -> Decoded:
    """Find the columns of a set and check their values; the arguments are those of `_arrays`."""
    arrays, roles, notes = _arrays(key, splits, owners, paths=paths)
    made = from_arrays(request, key, arrays)
    inputs = ", ".join(roles.inputs if len(roles.inputs) < 5 else [*roles.inputs[:3], "..."])
    return replace(
        made,
        columns=(*made.columns[:-1], roles.label) if made.columns else (),
        description=f"{made.description}; inputs {inputs}; label {roles.label or 'the next token'}",
        source=where,
        notes=(*notes, *made.notes),
    )


def _arrays(
    key: str, splits: Splits, owners: Sequence[str] = (), *, paths: bool = False
) -> tuple[dict[str, npt.NDArray[Any]], _Roles, list[str]]:
    """Return a set's arrays as of an npz file, the roles of its columns, and notes on what is not read.

    `owners` are of its training examples; `paths` says whether its pictures may be files that it names.
    """
    import datasets

    if "train" not in splits:
        raise DataError(f"{key}: expected a split train; got {local(', '.join(splits))}. {_TODO}")
    by_part = {part_of(name): name for name in splits if part_of(name)}
    tests, note = test_part(
        {part: len(splits[name]) for part, name in by_part.items()},
        f"the split {by_part.get(VALIDATION, '')}",
    )
    used = {"train": splits["train"]} | ({"test": splits[by_part[tests]]} if tests else {})
    columns = splits["train"].features
    roles = _roles(key, columns)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, split in used.items():
        if split.features != columns:
            raise DataError(f"{key}: expected the same columns in train and test; they differ. {_TODO}")
        if roles.label and (empty := split.data.column(roles.label).null_count):
            raise DataError(f"{key}: expected a label in each example of {name}; {empty} have none")
        end = "" if name == "train" else "_test"
        if roles.named:
            given = {n: n for n in roles.inputs} | ({"labels": roles.label} if roles.label else {})
            arrays |= {f"{as_}{end}": _numbers(key, split, (n,)) for as_, n in given.items()}
            continue
        picture = roles.inputs[0] if roles.picture else ""
        x = _pictures(key, split, picture, paths) if picture else _numbers(key, split, roles.inputs)
        arrays[f"x{end}"] = x[:, None] if x.ndim == 1 else x
        arrays[f"y{end}"] = _numbers(key, split, (roles.label,))
    if owners or "client" in columns:
        arrays["client"] = np.array(list(owners) or [str(name) for name in splits["train"]["client"]])
    if not (roles.picture or roles.named) and all(
        isinstance(columns[n], datasets.Value) for n in roles.inputs
    ):
        arrays["columns"] = np.array(roles.inputs)
    label = columns.get(roles.label)
    if names := getattr(getattr(label, "feature", label), "names", None):
        arrays["classes"] = np.array(names)
    rest = [name for name in columns if name not in (*roles.inputs, roles.label, "client")]
    notes = [note, f"{len(rest)} columns are not read: {listed(rest)}" if rest else ""]
    return arrays, roles, list(filter(None, notes))


def _folder(name: str) -> Path | None:
    """Return the folder that a name is of, or None of a set on the hub."""
    rest = name.removeprefix(HUB)
    return code_folder() / Path(rest).expanduser() if rest.startswith(("/", ".", "~")) else None


def _downloaded(name: str, key: str) -> Splits:
    """Return the splits of a set of the hub by name."""
    import datasets

    no_progress_thread()
    try:
        owner, *rest = name.removeprefix(HUB).split("/")
        found = datasets.load_dataset("/".join([owner, *rest[:1]]), *rest[1:])
    except ConnectionError as err:
        raise DataError(
            f"{key}: it is not in the cache of this machine, and the hub cannot be reached: {local(err)}. "
            "Run it once with a network, or copy the set here with save_to_disk and name it hf:FOLDER"
        ) from err
    except Exception as err:  # the library's own, pyarrow's and those of a dozen formats
        raise DataError(f"{key}: cannot be loaded: {reason(err)}") from err
    return dict(found) if isinstance(found, dict) else {"train": found}


def _roles(key: str, columns: Any) -> _Roles:
    """Return the columns' roles; refuse unclear ones."""
    import datasets

    listed = ", ".join(f"{name} ({_kind(feature)})" for name, feature in columns.items())
    classes = [name for name, feature in columns.items() if isinstance(feature, datasets.ClassLabel)]
    tokens = IDS_NAME in columns
    named = [n for n in columns if n.lower() in _LABELS and (n in classes or _dtype(columns[n]))]
    labels = named or classes
    if boxes := [name for name in columns if name.lower() in _BOXES]:
        raise DataError(f"{key}: the column {local(boxes[0])}: {BOXES}")
    if len(labels) != 1 and not (tokens and not labels):
        raise DataError(
            f"{key}: expected one column of labels: {', '.join(_LABELS)}, or a single ClassLabel; got "
            f"{local(', '.join(labels) or 'none')} among {local(listed)}. {_TODO}"
        )
    if tokens:
        rest = [n for n in columns if n not in (*labels, "client") and n.lower() not in _IDS]
        return _Roles(tuple(n for n in rest if _dtype(columns[n])), labels[0] if labels else "", False, True)
    others = {name: f for name, f in columns.items() if name not in (labels[0], "client")}
    pictures = [name for name, feature in others.items() if isinstance(feature, datasets.Image)]
    if len(pictures) == 1:
        return _Roles((pictures[0],), labels[0], True)
    strange = [n for n, f in others.items() if n in classes or not _dtype(f) or n.lower() in _IDS]
    shaped = [name for name, feature in others.items() if not isinstance(feature, datasets.Value)]
    if strange or not others or (shaped and len(others) > 1):
        what = f"{local(', '.join(strange))} cannot be an input" if strange else "no such columns"
        raise DataError(
            f"{key}: expected one column of pictures, one of lists or arrays of numbers, or columns of "
            f"single numbers next to the label {local(labels[0])}; got {local(listed)}: {what}. {_TODO}"
        )
    return _Roles(tuple(others), labels[0], False)


def _kind(feature: Any) -> str:
    """Return a feature's type in a word."""
    kind = type(feature).__name__
    return str(feature.dtype) if kind == "Value" else kind


def _dtype(feature: Any) -> str:
    """Return the type of a feature's numbers, such as "float32"; "" if it has none."""
    while hasattr(feature, "feature"):  # a list of
        feature = feature.feature
    dtype = str(getattr(feature, "dtype", ""))
    return dtype if dtype.startswith(_NUMBERS) else ""


def _numbers(key: str, split: Any, names: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return columns of numbers as one array, ``[N, len(names)]``; a single one as it is."""
    columns = split.select_columns(list(names))
    bits = min(8 * np.dtype(_dtype(columns.features[name])).itemsize for name in names)
    bits = 1 if any(_dtype(columns.features[name]) == "bool" for name in names) else bits
    needs, free = 64 * columns.data.nbytes // bits, available()  # the library makes them numbers of 8 bytes
    if needs > free:
        raise DataError(
            f"{key}: expected numbers that fit into the {human_bytes(free)} that are left on this machine; "
            f"got {human_bytes(needs)} in {local(listed(names))}. Save fewer rows or columns"
        )
    rows = columns.with_format("numpy")[:]
    parts = [np.asarray(rows[name]) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.dtype.kind not in "fiub":
            raise DataError(
                f'{key}: expected numbers in column "{local(name)}", lists of one length; got others. '
                + (f"Tokenize with padding='max_length'. {_TODO}" if IDS_NAME in split.features else _TODO)
            )
    if len(parts) == 1 and _dtype(split.features[names[0]]) == "uint8" and parts[0].dtype.kind in "iu":
        return parts[0].astype(np.uint8)  # the library has made them int64
    return np.stack(parts, axis=1) if len(parts) > 1 else parts[0]


def _pictures(key: str, split: Any, name: str, paths: bool) -> npt.NDArray[np.uint8]:
    """Return a column of pictures as uint8 ``[N, H, W]`` if all are grey, else ``[N, 3, H, W]``."""
    import datasets

    mode = split.features[name].mode or ""
    files = split.select_columns([name]).cast_column(name, datasets.Image(decode=False))
    stack = Stack(len(split))
    for i, row in enumerate(files):
        content, path = (row[name] or {}).get("bytes"), (row[name] or {}).get("path")
        if content is None and path and paths:
            content = Path(path).read_bytes()
        if content is None:  # a folder's path may lead anywhere
            raise DataError(f"{key}: expected a picture in each example; example {i} has none. {_TODO}")
        try:
            stack.add(f"example {i}", *opened(content, mode))
        except PictureError as err:
            raise DataError(f"{key}: the picture of example {i} is {err.args[0]}. {_TODO}") from err
    if not len(split):
        raise DataError(f"{key}: expected examples; got none")
    return stack.array[:, 0] if stack.array.shape[1] == 1 else stack.array

"""Hugging Face data sets: ``hf:OWNER/NAME`` on the hub, or ``hf:/folder`` that ``save_to_disk`` wrote.

============================  ===================================================================
``hf:mnist``                  a set of the hub
``hf:ylecun/mnist``           the same by its owner
``hf:nyu-mll/glue/cola``      one configuration of a set
``hf:/folder``, ``hf:./set``  what ``save_to_disk`` wrote; relative paths start at the working directory
============================  ===================================================================

The label is the column ``label``, ``labels``, ``target``, ``targets`` or ``y``, else the only `ClassLabel`.
The inputs are the only column of pictures, else the columns of numbers. A column ``client`` names the owners.
The splits ``train`` and ``test`` are used; without ``test`` the validation split (`task.datasets.parts`), and
without that a tenth of the examples, is the test set.

A folder is read again when its files change. A set of the hub is read once: what is in our cache stays, also
where there is no network, until its folder is deleted.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from task import trust
from task.datasets.base import Decoded, Request, Source, no_progress_thread
from task.datasets.own import keys_of
from task.datasets.parts import VALIDATION, part_of, test_part
from task.datasets.pictures import PictureError, Stack, pixels_of
from task.datasets.tables import from_arrays
from task.errors import DataError, local, reason
from task.references import HUB, code_folder, package_of

_LABELS = ("label", "labels", "target", "targets", "y")
_NUMBERS = ("int", "uint", "float", "bool")
_IDS = ("id", "idx", "index")  # numbers that are no input
_TODO = (
    "Rename or remove columns, write the set with save_to_disk(FOLDER) and name it hf:FOLDER; or return "
    'arrays from a function of your own, dataset = "data:load"'
)


class _Roles(NamedTuple):
    """What the columns of a set are for."""

    inputs: tuple[str, ...]
    label: str
    picture: bool


def locate(request: Request) -> Source:
    """Return what the data depend on: the files of a folder; of a set on the hub its name alone.

    Raises:
        DataError: There is no such folder.
    """
    keys = keys_of(request) | {"task": request.task}
    folder = _folder(request.name)
    if folder is None:
        return Source(keys=keys)
    if not ((folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()):
        raise DataError(
            f'run-config key "dataset": expected a folder that save_to_disk of Hugging Face\'s datasets '
            f"wrote; {local(folder)} is none"
        )
    return Source(tuple(sorted(p for p in folder.rglob("*") if p.is_file())), keys)


def decode(request: Request, source: Source) -> Decoded:
    """Load the set, find its columns and check their values.

    Raises:
        ConfigError: A file names the set, and the user does not.
        DataError: It cannot be loaded, or it is not clear what its columns are.
    """
    key = f'run-config key "dataset": "{request.name}"'
    trust.packages_for("dataset", request.name, package_of(request.name))
    splits = _loaded(request.name, key)
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
    for split in used.values():
        if split.features != columns:
            raise DataError(f"{key}: expected the same columns in train and test; they differ. {_TODO}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, split in used.items():
        end = "" if name == "train" else "_test"
        x = (_pictures if roles.picture else _numbers)(key, split, roles.inputs)
        arrays[f"x{end}"] = x[:, None] if x.ndim == 1 else x
        arrays[f"y{end}"] = _numbers(key, split, (roles.label,))
    if "client" in columns:
        arrays["client"] = np.array([str(name) for name in splits["train"]["client"]])
    names = tuple(getattr(columns[roles.label], "names", None) or ())
    if names and request.num_classes not in (0, len(names)):
        raise DataError(
            f'{key}: run-config key "num-classes": expected {len(names)}, the classes of column '
            f'"{local(roles.label)}", or 0; got {request.num_classes}'
        )
    sized = Request(**(vars(request) | {"num_classes": request.num_classes or len(names)}))
    made = from_arrays(sized, key, arrays)
    inputs = ", ".join(roles.inputs if len(roles.inputs) < 5 else [*roles.inputs[:3], "..."])
    about = f"{made.description}; inputs {inputs}; label {roles.label}"
    return Decoded(
        **(vars(made) | {"classes": names or made.classes, "description": about, "source": request.name})
        | {"notes": (*filter(None, [note]), *made.notes)}
    )


def _folder(name: str) -> Path | None:
    """Return the folder that a name is of, or None of a set on the hub."""
    rest = name.removeprefix(HUB)
    return code_folder() / Path(rest).expanduser() if rest.startswith(("/", ".", "~")) else None


def _loaded(name: str, key: str) -> dict[str, Any]:
    """Return the splits of a set by name."""
    try:
        import datasets
    except ImportError as err:
        raise DataError(
            f"{key}: expected the package datasets; got {reason(err)}. pip install datasets"
        ) from err
    no_progress_thread()
    folder = _folder(name)
    try:
        if folder is not None:
            found = datasets.load_from_disk(str(folder))
        else:
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
    """Return what the columns are for; refuse what is not clear."""
    import datasets

    listed = ", ".join(f"{name} ({_kind(feature)})" for name, feature in columns.items())
    classes = [name for name, feature in columns.items() if isinstance(feature, datasets.ClassLabel)]
    named = [n for n in columns if n.lower() in _LABELS and (n in classes or _dtype(columns[n]))]
    labels = named or classes
    if len(labels) != 1:
        raise DataError(
            f"{key}: expected one column of labels: {', '.join(_LABELS)}, or a single ClassLabel; got "
            f"{local(', '.join(labels) or 'none')} among {local(listed)}. {_TODO}"
        )
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
    rows = split.select_columns(list(names)).with_format("numpy")[:]
    parts = [np.asarray(rows[name]) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.dtype.kind not in "fiub":
            raise DataError(
                f'{key}: expected numbers in column "{local(name)}", lists of one length; got others. {_TODO}'
            )
    if len(parts) == 1 and _dtype(split.features[names[0]]) == "uint8" and parts[0].dtype.kind in "iu":
        return parts[0].astype(np.uint8)  # the library has made them int64
    return np.stack(parts, axis=1) if len(parts) > 1 else parts[0]


def _pictures(key: str, split: Any, names: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Return a column of pictures as uint8 ``[N, H, W]`` if all are grey, else ``[N, 3, H, W]``."""
    stack = Stack(len(split))
    for i, row in enumerate(split.select_columns(list(names))):
        picture = row[names[0]]
        if picture is None:
            raise DataError(f"{key}: expected a picture in each example; example {i} has none. {_TODO}")
        try:
            stack.add(f"example {i}", pixels_of(picture), picture.mode)
        except PictureError as err:
            raise DataError(f"{key}: the picture of example {i} is {err.args[0]}. {_TODO}") from err
    if not len(split):
        raise DataError(f"{key}: expected examples; got none")
    return stack.array[:, 0] if stack.array.shape[1] == 1 else stack.array

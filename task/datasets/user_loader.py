"""Data that a user's own code loads: a callable ``package.module:name`` in place of a data set's name.

It is called with the data folder, a ``pathlib.Path``, or with nothing, and returns NumPy arrays or tensors
``(x_train, y_train, x_test, y_test)`` or two map-style ``torch.utils.data.Dataset`` ``(train, test)``, each
with the owners' names of the training examples behind, if it likes. Several inputs are a dict of arrays by
name in place of x; an example of a Dataset may be a dict, too, targets under ``labels``. With ``(x, y)``, or
None as ``x_test`` and ``y_test``, a tenth of the examples is the test set. What the arrays may be is what npz
files may hold.

It is called once and its result kept in the cache, until the code (`task.references.code_of`), the data
folder or a run-config key that it depends on changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task import portable
from task.datasets.base import Decoded, Request, Source
from task.datasets.named_inputs import BOXES, IDS_NAME, LABELS
from task.datasets.npz import from_arrays
from task.datasets.own import keys_of
from task.errors import BouquetError, ConfigError, DataError, local
from task.objects import Data
from task.references import as_imported, code_of, load_reference, place

_READ_TWICE = 16  # examples
_FORMS = (
    "(x_train, y_train, x_test, y_test) or (x, y) as arrays or tensors, or (train, test) as torch Datasets, "
    "each with the owners of the training examples as one more, if you like"
)


@dataclass(frozen=True)
class GivenData(Data):
    """Data that a Python program gives instead of code that loads them: the arrays of `_arrays`."""

    arrays: Mapping[str, npt.NDArray[Any]]
    frozen: bool

    @classmethod
    def of(cls, key: str, made: Any) -> GivenData:
        """Return arrays or data sets, read once; a lone data set is cut into training and test examples.

        Raises:
            DataError: They are none of the forms that a user's code may return; `key` is for errors.
        """
        if _is_examples(made) and not isinstance(made, Sequence):
            made = from_examples(key, "the data set", made)
            return cls(_arrays(key, made), _draws((made,)))
        return cls(_arrays(key, made), _draws(made))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what its digest is made of."""
        return GivenData, (dict(self.arrays), self.frozen)


def locate(request: Request) -> Source:
    """Return what the data depend on: the code, the data folder, and what every user's own data do."""
    keys = {"code": code_of([request.name]), "data-dir": str(request.data_dir), "task": request.task}
    return Source(keys=keys_of(request) | keys | portable.cache_key())


def decode(request: Request, source: Source) -> Decoded:
    """Call the user's code and check what it returns.

    Raises:
        ConfigError: It is no such callable.
        DataError: It fails, or its result cannot be used.
    """
    key = f'run-config key "dataset": "{request.name}"'
    load = load_reference("dataset", request.name)
    if isinstance(load, GivenData):
        return replace(from_arrays(request, key, load.arrays), frozen=load.frozen)
    if load is None:
        raise DataError(
            f"{key}: expected the data in the cache, from which workers read them; they are gone. Run again"
        )
    if not callable(load):
        raise ConfigError(f"{key}: expected a callable (data_dir); got {type(load).__name__}")
    try:
        with as_imported(request.name):
            made = load(*_argument(load, request.data_dir, key))
            arrays, frozen = _arrays(key, made), _draws(made)
    except BouquetError:
        raise
    except Exception as err:  # whatever the user's code raises
        raise DataError(f"{key}: expected data; got an error: {local(place(err))}") from err
    return replace(from_arrays(request, key, arrays), frozen=frozen)


def _draws(made: Any) -> bool:
    """Return whether two readings of an example differ, as with random transforms."""
    data_sets = [part for part in made[:2] if not _is_array(part)] if len(made) < 4 else []

    def read(part: Any, i: int) -> list[Any]:
        inputs, _ = _pair(part[i])
        return [np.asarray(x) for x in (inputs.values() if isinstance(inputs, Mapping) else [inputs])]

    return any(
        not all(map(np.array_equal, read(part, i), read(part, i)))
        for part in data_sets
        for i in range(min(_READ_TWICE, len(part)))
    )


def _argument(load: Any, data_dir: Path, key: str) -> tuple[Path, ...]:
    """Return what to call the user's code with."""
    try:
        parameters = list(inspect.signature(load).parameters.values())
    except (TypeError, ValueError):  # no Python code
        return (data_dir,)
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed == by_place[:1] and by_place:
        return (data_dir,)
    if not needed:
        return (data_dir,) if by_place and by_place[0].name == "data_dir" else ()
    got = ", ".join(map(str, parameters))
    raise ConfigError(f"{key}: expected a callable (data_dir), or without arguments; got ({got})")


def _arrays(key: str, made: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the result as arrays by the names that npz files give them."""
    if not isinstance(made, Sequence) or len(made) not in (2, 3, 4, 5):
        got = f"{len(made)} values" if isinstance(made, Sequence) else type(made).__name__
        raise DataError(f"{key}: expected {_FORMS}; got {got}")
    arrays_only = len(made) < 4 and all(map(_is_array, made[:2]))
    if arrays_only and (len(made) == 2 or np.ndim(made[2]) == 1):
        parts: Sequence[Any] = [*made[:2], None, None, *made[2:]]
    elif len(made) < 4:
        train, test, *owners = made
        if owners and _is_examples(owners[0]):
            raise DataError(
                f"{key}: expected two data sets, (train, test); got three. A third value would be the names "
                "of the owners, one for each training example. Of (train, validation, test) return two, the "
                "validation examples added to one of them, as in ConcatDataset([train, validation])"
            )
        if any(map(_is_array, (train, test))):
            raise DataError(f"{key}: expected {_FORMS}; got {len(made)} values, some of them arrays")
        both = [*from_examples(key, "train", train), *from_examples(key, "test", test)]
        parts = [*both, *owners]
    else:
        parts = made
    names = ("x", "y", "x_test", "y_test", "client")
    given = {n: part for n, part in zip(names, parts, strict=False) if part is not None}
    if any(isinstance(part, Mapping) for part in given.values()):
        return {n: array_of(key, n, part) for n, part in _by_name(given).items()}
    arrays = {n: array_of(key, n, part) for n, part in given.items()}
    for inputs, targets in (("x", "y"), ("x_test", "y_test")):
        sizes = [str(len(arrays[n])) if n in arrays else "none" for n in (inputs, targets)]
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{key}: expected as many targets {targets} as examples {inputs}; got {' and '.join(sizes)}"
            )
    if "x" not in arrays:
        raise DataError(f"{key}: expected training examples; got none")
    if not len(arrays.get("x_test", [0])):
        del arrays["x_test"], arrays["y_test"]
    if "x_test" in arrays and arrays["y"].shape[1:] != arrays["y_test"].shape[1:]:
        got = f"{list(arrays['y'].shape)} and {list(arrays['y_test'].shape)}"
        raise DataError(f"{key}: expected targets of one shape in training and test; got {got}")
    return arrays


def _is_array(value: Any) -> bool:
    return hasattr(value, "ndim") or isinstance(value, Mapping)  # a data set is neither


def _by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs by name as `task.datasets.named_inputs` calls them; the rest as it is."""
    found: dict[str, Any] = {}
    for name, part in given.items():
        if not isinstance(part, Mapping):
            found[name.replace("y", "labels") if name in ("y", "y_test") else name] = part
        else:
            end, tokens = name.removeprefix("x"), IDS_NAME in part
            found |= {f"{of}{end}" if tokens else f"{name}.{of}": inputs for of, inputs in part.items()}
    return found


def _is_examples(value: Any) -> bool:
    """Return whether a value is a torch Dataset, or a list of examples, rather than a list of names."""
    if hasattr(value, "ndim") or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return False
    return not isinstance(value, Sequence) or any(isinstance(v, (tuple, list)) for v in value[:1])


def array_of(key: str, name: str, values: Any) -> npt.NDArray[Any]:
    """Return an array, a tensor or a list as an array.

    Raises:
        DataError: It is none, or holds objects.
    """
    try:
        made = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except Exception as err:  # whatever the user's code raises
        raise DataError(f"{key}: expected {name} as an array; got {local(place(err))}") from err
    if made.ndim == 0 or (made.dtype.kind not in "fiub" and name != "client"):
        raise DataError(f"{key}: expected {name} as an array of numbers; got {made.dtype}{list(made.shape)}")
    return made


def from_examples(key: str, name: str, examples: Any) -> tuple[Any, npt.NDArray[Any] | None]:
    """Return inputs, an array or several by name, and targets, if any, of a map-style data set, stacked.

    Raises:
        DataError: It has no length, or its examples are not pairs of one shape.
    """
    if not (hasattr(examples, "__len__") and hasattr(examples, "__getitem__")):
        raise DataError(
            f"{key}: expected {name} as a torch Dataset with __len__ and __getitem__; got "
            f"{type(examples).__name__}"
        )
    try:
        read = [examples[i] for i in range(len(examples))]
        pairs = [_pair(example) for example in read]
        if pairs and isinstance(pairs[0][1], Mapping):
            raise DataError(
                f"{key}: targets in {name} are dicts with {local(', '.join(pairs[0][1]))}: {BOXES}"
            )
        if pairs and isinstance(pairs[0][0], Mapping):
            inputs = {of: [np.asarray(x[of]) for x, _ in pairs] for of in pairs[0][0]}
            x: Any = {of: _stacked(key, f"{of} of {name}", arrays) for of, arrays in inputs.items()}
        else:
            x = _stacked(key, name, [np.asarray(x) for x, _ in pairs])
        y = [np.asarray(target) for _, target in pairs if target is not None]
        return x, _stacked(key, f"targets of {name}", y) if y else None
    except BouquetError:
        raise
    except Exception as err:  # whatever the user's code raises
        raise DataError(f"{key}: expected pairs (x, y) in {name}; got {local(place(err))}") from err


def _pair(example: Any) -> tuple[Any, Any]:
    """Return inputs and target of an example; of a dict the target is what is called as labels are."""
    if not isinstance(example, Mapping):
        return example[0], example[1]
    labels = [name for name in LABELS if name in example][:1]  # without, tokens are to be predicted
    inputs = {name: value for name, value in example.items() if name not in labels}
    return inputs, example[labels[0]] if labels else None


def _stacked(key: str, name: str, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {a.shape for a in arrays}
    if len(shapes) == 1 and arrays[0].dtype.kind != "O":
        return np.stack(arrays)
    got = ", ".join(map(str, sorted(map(list, shapes))[:3])) or "no examples"
    more = f". Note that {BOXES}" if name.startswith("targets") and len(shapes) > 1 else ""
    raise DataError(f"{key}: expected examples of one shape in {name}; got {local(got)}{more}")

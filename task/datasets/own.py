"""Common parts of arrow, csv, npz and imagefolder: data in the user's own files, pooled or of one node.

Without a test part, a tenth of the examples (of each owner's, drawn by seed) becomes the global test set.
A node's data all belong to its client, so the test part is the client's own: the data's test part, or a share
``local-test-fraction`` of the examples, as large as a partition makes it. Its labels are checked before a run
says how many classes there are: then every class number from 0 on is good.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from task.config.sections import TABLES, DataConfig
from task.datasets.base import Dataset, Decoded, Names, Owners, Request, Rows
from task.datasets.columns import layout_of
from task.datasets.layout import channels_first
from task.datasets.parts import local_test_size
from task.errors import DataError, local
from task.inputs import AUTO, kind_of
from task.numerics import seeds
from task.population import LONGEST_NAME, is_name
from task.references import is_reference

Mask = npt.NDArray[np.bool_]


def data_path(request: Request) -> Path:
    """Return the file or folder that "data-path" names, as it stands or below the data folder."""
    if not request.data_path:
        raise DataError(
            f'data set "{request.name}": the run-config key "data-path" (or a node\'s own data-path) must '
            'name its file or folder; got ""'
        )
    path = Path(request.data_path).expanduser()
    for place in (path, request.data_dir / path):
        if place.exists():
            return place
    raise DataError(
        f'data-path "{local(request.data_path)}" of data set "{request.name}": expected a file or folder, '
        f"either as it stands or below {local(request.data_dir)}; there is none. Correct the path."
    )


def files_of(folder: Path, suffix: str) -> tuple[Path, ...]:
    """Return the files of a folder whose names end so, in any case, sorted; not hidden ones."""
    found = [p for p in folder.glob("*") if p.suffix.lower() == suffix and p.is_file()]
    return tuple(sorted(p for p in found if not p.name.startswith((".", "~$"))))


def keys_of(request: Request) -> dict[str, Any]:
    """Return what, besides the files, the decoded form of a user's own files depends on."""
    keys = {"classes": request.num_classes, "seed": request.seed, "owner": request.owner}
    keys |= {} if request.inputs == AUTO else {"inputs": request.inputs}
    grows = {"grows": True} if request.grows else {}
    task = {} if request.task in ("auto", "classification") else {"task": request.task}
    exact = {"doubles": True} if request.doubles else {}
    types = {"types": [request.own_types, request.column_types]}
    return (
        keys
        | (types if any(types["types"]) else {})
        | {"fraction": request.local_test_fraction, "missing": request.keep_missing}
        | task
        | grows
        | exact
    )


def local_test(count: int, fraction: float, seed: int, client: str) -> Mask:
    """Draw which of a client's examples are its own test set."""
    test = np.zeros(count, dtype=bool)
    if size := local_test_size(count, fraction):
        test[seeds.rng_for(seed, seeds.SPLIT, client=client).permutation(count)[:size]] = True
    return test


def growing_test(count: int, fraction: float, seed: int, client: str) -> Mask:
    """Draw which examples are the test set of a client whose data grow: each by its place alone."""
    return seeds.rng_for(seed, seeds.SPLIT, client=client).random(count) < fraction


def assemble(
    request: Request,
    *,
    x: npt.NDArray[Any],
    y: Rows | npt.NDArray[np.float32],
    test: Mask | None,
    owners: Sequence[str],
    classes: tuple[str, ...],
    where: str,
    columns: tuple[str, ...] = (),
    ids: npt.NDArray[np.str_] | None = None,
    aside: Mapping[str, Sequence[str]] = MappingProxyType({}),
    labelled: bool = True,
    notes: tuple[str, ...] = (),
    read: Mapping[str, Any] | None = None,
    form: str = "",
    outputs: int = 0,
) -> Decoded:
    """Order the rows, training pool first, and find their owners.

    `x` is uint8 images ``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]``, else float32 ``[N, ...]``. `test`
    is None if the files do not say which rows are test examples. `owners` has the owner of each row, of each
    training row, or of none. `y`, `columns`, `notes` and `read` are as of `task.datasets.base.Decoded`.
    `aside` has a text of each row by column. `classes` is empty if they are numbers, and `where` is the file
    or folder. `form` is that of x where its integers are ids or its inputs have names, and `outputs` the
    number of classes, 0 = as the targets say.

    Raises:
        DataError: All rows are test examples, or an owner's name cannot be one of a client.
    """
    labels = np.array([request.owner] * len(y) if request.owner else owners, dtype=object)
    if wrong := {name for name in set(labels) if not is_name(str(name))}:
        row = next(row for row, name in enumerate(labels, start=1) if name in wrong)
        name = str(labels[row - 1])
        raise DataError(
            f"{local(where)}, row {row}: expected an owner's name (client) of 1 to {LONGEST_NAME} letters "
            f"that print; got {len(name)} letters, {local(repr(name[:40]))}"
        )
    if test is None and request.owner:
        drawn = growing_test if request.grows else local_test
        test = drawn(len(y), request.local_test_fraction, request.seed, request.owner)
    elif test is None and request.doubles:  # an analysis is of all rows
        test = np.zeros(len(y), dtype=bool)
    elif test is None:
        test = _cut(labels, len(y), request.seed)
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    num_train = int((~test).sum())
    if not num_train:
        raise DataError(f"{local(where)}: expected training examples; all {len(y)} are test examples")
    labels = labels[order] if len(labels) == len(y) else labels
    x = np.ascontiguousarray(channels_first(x, where)[order])
    image = x.dtype == np.uint8 and not form
    shape = (1, *x.shape[1:]) if image and x.ndim == 3 else x.shape[1:]
    missing = 0 if image or form else int(np.isnan(x[:, layout_of(columns, x.shape[1])[1]]).sum())
    return Decoded(
        x=x,
        y=y[order],
        num_train=num_train,
        num_classes=_outputs(y) or request.num_classes or len(classes) or outputs or int(y.max()) + 1,
        input_shape=shape,
        kind=kind_of(form) if form else "image" if image else "features",
        form=form,
        mean=(0.5,) * shape[0] if image else (0.0,),
        std=(0.5,) * shape[0] if image else (1.0,),
        classes=classes,
        columns=columns,
        ids=None if ids is None else ids[order],
        aside=np.array([*aside.values()], np.str_).T[order] if aside else None,
        aside_names=tuple(aside),
        labelled=labelled,
        owners=_owners(labels, num_train) if len(labels) else None,
        description=f"{num_train} training and {len(y) - num_train} test examples"
        + ("" if form else f" of shape {shape}")
        + (f", {missing} values missing" if missing else ""),
        source=where,
        notes=notes,
        read=dict(read or {}),
    )


def rearranged(dataset: Dataset, config: DataConfig) -> str:
    """Return a warning if a partition of ours does not follow the owners that own data name; else ""."""
    own = config.dataset in TABLES or is_reference(config.dataset)
    kept = config.partition in ("natural", "columns") or is_reference(config.partition)
    if kept or not own or not dataset.owners:
        return ""
    names = dataset.owners.names
    return (
        f"the data say who owns each example ({len(names)} owners, such as {names[0]}), but partition = "
        f'"{config.partition}" pools all examples and parts them among {config.num_clients} clients. Set '
        'partition="natural" num-clients=0 to keep the owners as clients'
    )


def cut(request: Request, whole: Decoded) -> Decoded:
    """Return a node's own data as a run's request wants them, from `whole`, those without the run's keys.

    The rows of `whole` are in the order of the files; those from ``num_train`` on are their test part.
    """
    test = np.arange(len(whole.y)) >= whole.num_train
    return assemble(
        request,
        x=whole.x,
        y=whole.y,
        test=test if test.any() else None,
        owners=(),
        classes=whole.classes,
        where=whole.source,
        columns=whole.columns,
        ids=whole.ids,
        aside={}
        if whole.aside is None
        else dict(zip(whole.aside_names, whole.aside.T.tolist(), strict=True)),
        labelled=whole.labelled,
        notes=whole.notes,
        read=whole.read,
        form=whole.form,
        outputs=whole.num_classes,
    )


def _outputs(y: npt.NDArray[Any]) -> int:
    """Return how many numbers or labels an example has; 0 of class numbers."""
    if y.dtype.kind != "f":
        return 0
    return y.shape[1] if y.ndim > 1 else 1


def _cut(owners: npt.NDArray[Any], count: int, seed: int) -> Mask:
    """Draw a tenth of each owner's rows, at least one of an owner who has two."""
    test = np.zeros(count, dtype=bool)
    for name in sorted(set(owners)) or [""]:
        rows = np.flatnonzero(owners == name) if len(owners) else np.arange(count)
        size = max(1, len(rows) // 10) if len(rows) > 1 else 0
        rng = seeds.rng_for(seed, seeds.SPLIT, client=f"global-test/{name}")
        test[rng.permutation(rows)[:size]] = True
    return test


def _owners(labels: npt.NDArray[Any], num_train: int) -> Owners:
    """Group ordered rows by owner, sorted by name; owners of test rows alone are left out."""
    rows: dict[str, tuple[list[int], list[int]]] = {
        name: ([], []) for name in sorted(set(labels[:num_train]))
    }
    for row, name in enumerate(labels):
        if name in rows:
            rows[name][row >= num_train].append(row)
    names = Names()
    return Owners.from_lists([names.new(name) for name in rows], *zip(*rows.values(), strict=True))

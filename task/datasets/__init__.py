"""Load data sets: each is decoded once and then read by memory mapping.

Importing this package is cheap: torch, torchvision, scikit-learn and Pillow are imported where they are
needed, and only a decoding process imports the last three.
"""

import os
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from task.config.paths import cache_dir, data_dir
from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import cache, images
from task.datasets.arrow import is_saved
from task.datasets.base import PADDING, Dataset, DatasetSpec, Decoded, Owners, Request, Source
from task.datasets.catalogue import DATASETS, spec_of
from task.datasets.column_types import (
    KEY,
    UntypedError,
    as_key,
    check_declared,
    declared_in,
    spelled_twice,
    write_types,
)
from task.datasets.columns import prepared
from task.datasets.description import Meaning, described
from task.datasets.header import OF_PARTS
from task.datasets.own import cut
from task.errors import ConfigError, DataError, local
from task.inputs import SEQUENCES, positions
from task.numerics import seeds
from task.references import folder_name

__all__ = [
    "DATASETS", "PADDING", "Dataset", "DatasetSpec", "Stamp", "check_owned", "load_dataset", "load_owned",
    "natural_task", "spec_of", "stamp_of", "targets_of",
]  # fmt: skip

FILES_LISTED = 20  # names in the facts
GROWN_STATES = 2  # of data that grow, in the cache


def load_dataset(config: DataConfig, synthetic: SyntheticConfig, seed: int) -> Dataset:
    """Return the data set that the run names; decode it if no process did before.

    ``pool-test`` makes the training pool all rows, so that there is no global test set (``num_train`` is
    then the number of rows). ``max-examples`` is the number of the pool's rows that are kept, drawn by the
    run's seed; a global test set stays whole. Both are refused for data with natural owners.

    Raises:
        ConfigError: No such data set, or max-examples or pool-test with natural owners.
        DataError: The data are missing, damaged or cannot be downloaded, or are of one class.
    """
    request = _request(config, synthetic, seed, config.data_path)
    source = spec_of(config.dataset).locate(request)
    dataset = _cached(request, source)
    check_declared(dataset, request)
    _check_party(dataset, config)
    if dataset.owners and config.pool_test:
        raise ConfigError(
            f'run-config key "pool-test": data set "{config.dataset}" has natural owners, who own its test '
            "examples too; expected false"
        )
    if config.pool_test:
        dataset = _pooled(dataset)
    dataset.check_classes(config.task)
    if not 0 < config.max_examples < dataset.num_train:
        return prepared(dataset, config)
    if dataset.owners:
        raise ConfigError(
            f'run-config key "max-examples": data set "{config.dataset}" has natural owners, whose data a '
            "random subset would distort; expected 0. Use fewer owners instead (num-clients with "
            "partition=natural)."
        )
    subset = _cached(request, source, max_examples=config.max_examples, pool_test=config.pool_test)
    subset.check_classes(config.task)
    return prepared(subset, config)


def find_files(config: DataConfig, synthetic: SyntheticConfig, seed: int) -> None:
    """Find the files that the run's data set is read from, or download them; read none of them.

    Raises:
        ConfigError: No such data set.
        DataError: The files are missing and cannot be downloaded: says which, and where to put them.
    """
    spec_of(config.dataset).locate(_request(config, synthetic, seed, config.data_path))


Stamp = tuple[tuple[str, int, int], ...]  # path, bytes and time in ns of each file


def stamp_of(config: DataConfig, data_path: str, client_name: str) -> Stamp:
    """Return a stamp that changes with the node's own files.

    Raises:
        DataError: There are none.
    """
    spec = spec_of(config.dataset)
    if not spec.own:
        return ()  # which `load_owned` refuses
    return _stamp(spec.locate(_request(config, SyntheticConfig(), 0, data_path, client_name)))


def _stamp(source: Source) -> Stamp:
    return tuple((str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in source.files)


def load_owned(
    config: DataConfig, data_path: str, client_name: str, seed: int, *, grows: bool = False
) -> Dataset:
    """Return a node's own data, which all belong to one client.

    The rows from ``num_train`` on are the client's own test set: the file's test part, or if it has none
    a share ``local_test_fraction``, drawn by the client's name.

    The run's `config` names the form as ``dataset``, and must give ``num_classes`` where the data number
    their classes without naming them. Of data that `grows` an example that is there stays on its side when
    others are added behind it, and the cache has the last two states only.

    Raises:
        ConfigError: The data set is not one that a node can bring, num-classes is missing, or pool-test is
            set.
        DataError: The data are missing, damaged or do not fit num-classes.
    """
    spec = spec_of(config.dataset)
    if not spec.own:
        forms = sorted(name for name, s in DATASETS.items() if s.own)
        raise ConfigError(
            f'run-config key "dataset": a node brings its own data (data-path "{local(data_path)}"), so '
            f'expected one of {", ".join(forms)}; got "{config.dataset}"'
        )
    if config.feature_skew != "none":
        raise ConfigError(
            f'run-config key "feature-skew": a node brings its own data (data-path "{local(data_path)}"), '
            f'which stay as they are; expected "none"; got "{config.feature_skew}"'
        )
    if config.pool_test and config.partition != "columns":  # parties have one test set, of common rows
        raise ConfigError(
            f'run-config key "pool-test": a node brings its own data (data-path "{local(data_path)}"), whose '
            "test part is the client's own; expected false"
        )
    request = replace(_request(config, SyntheticConfig(), seed, data_path, client_name), grows=grows)
    owned = _cached(request, spec.locate(request))
    check_declared(owned, request, party=config.partition == "columns")
    _check_party(owned, config)
    numbered = owned.y.dtype.kind != "f" and (not owned.classes or config.partition == "columns")
    if config.num_classes < 1 and numbered:
        raise ConfigError(
            'run-config key "num-classes": expected the number of classes that all nodes share, because this '
            "node's data number their classes without naming all of them, or are a party's; got "
            f"{config.num_classes}. Set the key, or list the classes as in ill:target(no|yes), in the "
            f'run-config key "{KEY}" or in the header of each node\'s csv file'
        )
    if owned.task == natural_task(config) == "classification" and owned.labelled and owned.num_classes < 2:
        raise ConfigError(
            'run-config key "num-classes": expected two classes or more to choose from; got '
            f"{owned.num_classes}"
        )
    if config.task == "auto" and owned.task != natural_task(config):
        raise ConfigError(
            f'run-config key "task": a node brings its own data, whose targets are those of {owned.task}; '
            f'expected task = "{owned.task}", because nodes and server must agree before round 1; got "auto"'
        )
    if owned.form and config.inputs != owned.form:
        raise ConfigError(
            f'run-config key "inputs": a node brings its own data, of which a model reads {owned.form}; '
            f'expected inputs = "{owned.form}", because nodes and server must agree before round 1; got '
            f'"{local(config.inputs)}"'
        )
    return prepared(owned, config)


def _check_party(dataset: Dataset, config: DataConfig) -> None:
    """Refuse a table without ids, or with parts, as a party's, and one without labels as any other's.

    Raises:
        DataError: Naming the file and what is wrong with its header.
    """
    parties = config.partition == "columns"
    if parties and dataset.ids is None and spec_of(config.dataset).own:
        raise DataError(
            f"{local(dataset.source)}: expected a column of ids, by which the parties' rows are matched; got "
            f'none. Type it as in patient:id, in the run-config key "{KEY}" or in the header of the csv file'
        )
    of_parts = [name for name, what in dataset.read.get("other", {}).items() if what == OF_PARTS]
    if parties and dataset.ids is not None and of_parts:
        raise DataError(
            f"{local(dataset.source)}: expected no column of type split, because in a vertical run the ids "
            "that all parties have in common say which rows are for the test; got "
            f"{local(repr(of_parts[0]))}. Type it NAME:ignore, in the csv file's header or, if it has no "
            f'type there, in the run-config key "{KEY}"'
        )
    if not parties and not dataset.labelled:
        raise DataError(
            f"{local(dataset.source)}: expected a column to predict, named label or typed NAME:target; got a "
            "table of ids and features, which only a party of a vertical algorithm can use, as in "
            'algorithm = "splitnn"'
        )


def targets_of(config: DataConfig) -> int:
    """Return the upper limit of an example's targets: those of a text count one by one.

    The config is that of an opened run, whose task and inputs are known.
    """
    own = positions(config.inputs) if config.task in SEQUENCES else 0
    return own or spec_of(config.dataset).targets


def natural_task(config: DataConfig) -> str:
    """Return the task of a run whose data are only at the nodes, a name in `task.tasks.TASKS`."""
    if config.task != "auto":
        return config.task
    return "language" if spec_of(config.dataset).targets > 1 else "classification"


def check_owned(data_path: Path, client_name: str, folder: Path, column_types: str = "") -> str:
    """Read a node's own data before there is a run, and return one line that describes them.

    The form is found from the absolute path `data_path`, and what is read is kept in `folder`, the cache of
    the node's runs. `column_types` is what the owner declares of a csv file's columns. Settings that only a
    run has are not checked: the number of classes, how missing values are filled, and types of columns of
    text that the run has to declare.

    Raises:
        ConfigError: The owner's declaration is malformed, or is not of a csv file that has these columns.
        DataError: The data are missing, damaged or not of a form that a node can bring.
    """
    request = Request(
        name=_form(data_path), data_dir=data_path.parent, cache_dir=folder, data_path=str(data_path),
        owner=client_name, keep_missing=True, own_types=column_types,
    )  # fmt: skip
    if column_types and request.name != "csv":
        raise ConfigError(f"--{KEY}: expected with a csv file; got {request.name}")
    if_declared = ""
    try:
        found, note = _usable(request)
    except UntypedError as err:  # a run may type them; only what is wrong besides stops the node
        found, note = _usable(replace(request, column_types=write_types(err.columns)))
        if_declared = f", if a run declares its columns of text, as in {as_key(err.columns)}"
        files = spec_of(request.name).locate(request).files
        if twice := spelled_twice(files, declared_in(request), err.columns):
            if_declared += f" (but {twice})"
    check_declared(found, request)
    return f"{request.name}, {found.description}{if_declared}{note}"


def _usable(request: Request) -> tuple[Dataset, str]:
    """Return a node's own data as training reads them, or as statistics do, with a note that says so.

    Raises:
        DataError: Neither can.
    """
    source = spec_of(request.name).locate(request)
    try:
        return _cached(request, source), ""
    except UntypedError:
        raise
    except DataError as err:
        try:  # statistics read rows without a target, which no training does
            found = _cached(replace(request, doubles=True), source)
        except DataError:
            raise err from None
        return found, f"; for statistics only, as training refuses it: {err}"


def _form(path: Path) -> str:
    """Return in which form a node's own data are: arrow, imagefolder, npz or csv."""
    if path.is_dir():
        if is_saved(path) or any(map(is_saved, path.glob("*"))):
            return "arrow"
        return "imagefolder" if images.has_pictures(path) else "csv"
    if path.suffix.lower() == ".npz" or _holds_arrays(path):
        return "npz"
    return "imagefolder" if zipfile.is_zipfile(path) else "csv"


def _holds_arrays(path: Path) -> bool:
    """Return whether a file is an npz file, whatever its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _request(
    config: DataConfig, synthetic: SyntheticConfig, seed: int, data_path: str, owner: str = ""
) -> Request:
    return Request(
        name=config.dataset,
        data_dir=data_dir(config),
        cache_dir=cache_dir(config),
        data_path=data_path,
        num_classes=config.num_classes,
        task=config.task,
        inputs=config.inputs,
        column_types=config.column_types,
        own_types=config.own_types,
        num_clients=config.num_clients,
        seed=seed,
        synthetic=synthetic,
        shuffle_lines=config.shuffle_lines,
        owner=owner,
        keep_missing=config.keep_missing or config.missing != "refuse",
        doubles=config.doubles,
        local_test_fraction=config.local_test_fraction if owner and config.partition != "columns" else 0.0,
    )


def _cached(request: Request, source: Source, max_examples: int = 0, pool_test: bool = False) -> Dataset:
    """Map the cache's entry for this request; make it first if there is none.

    Only a subset has an entry of its own for a pooled data set, since pooling alone copies nothing.
    """
    stats = _stamp(source)
    subset = {"max-examples": max_examples, "seed": request.seed} if max_examples else {}
    if pool_test:
        subset["pool-test"] = True
    key = cache.key_of({"name": request.name, "files": stats, "keys": source.keys, "subset": subset})
    named = folder_name(request.name)
    if request.grows:  # all states of the same files share a prefix
        named += f"-{cache.key_of({'owner': request.owner, 'path': request.data_path, 'keys': source.keys})}"
    folder = request.cache_dir / "datasets" / f"{named}-{key}"
    entry = cache.load(folder)
    if entry is None:
        if max_examples:
            whole = _cached(request, source)
            decoded = _subset(_pooled(whole) if pool_test else whole, max_examples, request.seed)
        else:
            decoded = _owned(request, source) if request.owner else _decode(request, source)
            decoded = replace(decoded, read=_files(source) | decoded.read)
        entry = cache.store(folder, *_to_entry(decoded))
        if request.grows:
            cache.keep_newest(folder, f"{named}-*", GROWN_STATES)
    return _from_entry(request.name, *entry)


def _files(source: Source) -> dict[str, Any]:
    """Return how many files were read, and the names of the first, as of `task.datasets.facts`.

    Names are relative to the folder that has all of them, so that pictures in different class folders have
    different names.
    """
    if not source.files:
        return {}
    above = os.path.commonpath([path.parent for path in source.files])
    names = [path.relative_to(above).as_posix() for path in source.files[:FILES_LISTED]]
    return {"files": {"count": len(source.files), "listed": names}}


def _owned(request: Request, source: Source) -> Decoded:
    """Read a node's own data, whose files are decoded once for all runs."""
    as_read = replace(request, num_classes=0, seed=0, keep_missing=True, local_test_fraction=0.0)
    if request == as_read:
        return _decode(request, source)
    whole = _cached(as_read, spec_of(request.name).locate(as_read))
    expected = len(whole.classes) or request.num_classes or whole.num_classes  # some data name their classes
    if not request.keep_missing and whole.x.dtype.kind == "f" and np.isnan(whole.x).any():
        return _decode(request, source)  # which names the place
    if whole.y.dtype.kind == "f" and request.num_classes in (0, whole.num_classes):
        return cut(request, whole)
    if request.num_classes not in (0, expected) or whole.num_classes > (request.num_classes or expected):
        return _decode(request, source)
    return cut(request, whole)


def _decode(request: Request, source: Source) -> Decoded:
    return spec_of(request.name).decode(request, source)


def _pooled(dataset: Dataset) -> Dataset:
    """Count the rows of the global test set to the training pool."""
    return replace(
        dataset,
        num_train=len(dataset.y),
        fingerprint=f"{dataset.fingerprint}-pooled",
        description=f"pooled: {dataset.description}",
    )


def _subset(whole: Dataset, max_examples: int, seed: int) -> Decoded:
    rng = seeds.rng_for(seed, seeds.PARTITION, client="max-examples")
    rows = np.sort(rng.choice(whole.num_train, max_examples, replace=False))
    rows = np.concatenate([rows, np.arange(whole.num_train, len(whole.y))])
    return replace(
        whole,
        x=whole.x[rows],
        y=whole.y[rows],
        ids=None if whole.ids is None else whole.ids[rows],
        aside=None if whole.aside is None else whole.aside[rows],
        num_train=max_examples,
        description=f"{whole.description}, {max_examples} of its training examples are used",
    )


_SCALARS = [f.name for f in fields(Decoded) if f.name not in ("x", "y", "owners", "ids", "aside")]


def _to_entry(decoded: Decoded) -> tuple[cache.Arrays, dict[str, Any]]:
    """Split a decoded data set into what goes into npy files and what goes into meta.json."""
    if decoded.num_classes < 1 or not len(decoded.y):
        raise DataError(f"{local(decoded.source)}: expected examples and classes; got none")
    arrays: cache.Arrays = {"x": decoded.x, "y": decoded.y}
    meta: dict[str, Any] = {name: getattr(decoded, name) for name in _SCALARS}
    meta["fingerprint"] = decoded.content_hash()
    meta["meaning"] = described(decoded).meaning.as_dict()
    arrays |= {name: a for name in ("ids", "aside") if (a := getattr(decoded, name)) is not None}
    if decoded.owners:
        arrays |= decoded.owners.arrays()
        meta["owners"] = list(decoded.owners.names)
    return arrays, meta


def _from_entry(name: str, arrays: cache.Arrays, meta: dict[str, Any]) -> Dataset:
    meaning = Meaning.from_dict(meta["meaning"]) if "meaning" in meta else None
    meta = {k: v for k, v in meta.items() if k != "meaning"}
    scalars: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta.items()}
    names, x, y = scalars.pop("owners", None), arrays.pop("x"), arrays.pop("y")
    ids, aside = (arrays.pop(name, None) for name in ("ids", "aside"))
    owners = names and Owners(names, **arrays)
    return Dataset(name=name, x=x, y=y, ids=ids, aside=aside, owners=owners, meaning=meaning, **scalars)

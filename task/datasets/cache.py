"""Arrays on disk that are written once, whole or not at all, and read by memory mapping.

An entry is a folder: one ``.npy`` file per array and ``meta.json``, which records what the files must
look like. It is written next to its place and renamed, so that no reader ever sees half of one; of several
writers the first wins and the others use its entry.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local, reason
from task.storage.files import building, synced

FORMAT = 3  # of the entries; a new one makes old entries unused, also where a reader has changed

Arrays = dict[str, npt.NDArray[Any]]


def key_of(parts: Mapping[str, Any]) -> str:
    """Return 20 hex digits that depend on all parts and on the format."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def load(folder: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays, memory-mapped read-only, and the meta data; None if there is no such entry.

    Raises:
        DataError: The entry is damaged.
    """
    if not folder.is_dir():
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        expected = dict(meta["arrays"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise _damaged(folder, folder / "meta.json", "a readable meta.json", local(repr(err))) from err
    return {name: _open(folder, name, want) for name, want in expected.items()}, meta["meta"]


def _open(folder: Path, name: str, want: Mapping[str, Any]) -> npt.NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        size = path.stat().st_size
        if size != want["bytes"]:
            raise _damaged(folder, path, f"{want['bytes']} bytes", f"{size}")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        got = _facts(path, array)
    except (OSError, ValueError) as err:
        raise _damaged(folder, path, "a NumPy array", local(repr(err))) from err
    if got != want:
        raise _damaged(folder, path, f"{want}", f"{got}")
    return np.asarray(array)  # a plain view of the map: selections from it are plain arrays


def _facts(path: Path, array: npt.NDArray[Any]) -> dict[str, Any]:
    shape = [int(n) for n in array.shape]
    return {"dtype": str(array.dtype), "shape": shape, "bytes": path.stat().st_size}


def _damaged(folder: Path, path: Path, expected: str, got: str) -> DataError:
    return DataError(
        f"{local(path)}: damaged cache file: expected {expected}; got {got}. Delete the folder "
        f"{local(folder)} and run again; it is made again from the source."
    )


def store(folder: Path, arrays: Arrays, meta: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """Write an entry, or keep the one that another process wrote first; return it as `load` does.

    Raises:
        DataError: The cache folder cannot be written.
    """
    try:
        with building(folder) as temporary:
            _write(temporary, arrays, meta)
    except OSError as err:  # if another process was first, its entry is equivalent
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise DataError(
                f"{local(folder)}: the cache entry cannot be written: {reason(err)}. Free some space, or set "
                'the run-config key "cache-dir" (or $BOUQUET_CACHE) to a folder that can be written.'
            ) from err
    entry = load(folder)
    if entry is None:
        raise DataError(f"{local(folder)}: the cache entry vanished while it was written. Run again.")
    return entry


def keep_newest(folder: Path, pattern: str, most: int) -> None:
    """Delete the oldest entries next to `folder` whose names match, all but `most`; it itself stays.

    A process that has one mapped keeps it until it is done.
    """
    others = [path for path in folder.parent.glob(pattern) if path != folder]
    times = {path: path.stat().st_mtime_ns for path in others}
    for path in sorted(others, key=lambda path: times[path])[: max(len(others) - most + 1, 0)]:
        shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    expected = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        with synced(path) as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        expected[name] = _facts(path, array)
    with synced(folder / "meta.json") as file:
        file.write(json.dumps({"arrays": expected, "meta": dict(meta)}).encode())

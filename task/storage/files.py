"""Atomic files: write, sync, rename; readable by their owner only.

Whatever the umask is, files are made with mode 0600 and folders with 0700.
"""

import errno
import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from task.numerics.arrays import BFLOAT16, Arrays, NamedArrays, array_of

FILE, FOLDER = 0o600, 0o700  # modes
MOST_UNFREED = 64  # files that are gone and still open
_unfreed: list[int] = []


def private(path: str, flags: int) -> int:
    """Open a file for its owner only: the ``opener`` of Python's `open`."""
    return os.open(path, flags, FILE)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the block that has none: a full disk says so in `write`, which knows none.

    Raises:
        OSError: As in the block, with the path. NumPy, which says only how much it could write, has ENOSPC.
    """
    try:
        yield
    except OSError as err:
        if err.filename is not None:
            raise
        number, why = err.errno, err.strerror
        if number is None:
            number, why = errno.ENOSPC, f"could not be written whole; is the disk full? ({err})"
        raise OSError(number, why, str(path)) from err


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path near `path`; when the block ends well, sync it and rename it to `path`.

    It lies in a folder of its own near `path`, ``.NAME.RANDOM`` (no dot in RANDOM), since some writers make
    temporary files too: the leftovers of a killed process are in there, and show whose they are.
    """
    make_folder(path.parent)
    own = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        temp = own / path.name
        with naming(path):
            yield temp
        with temp.open("rb") as file:
            os.fsync(file.fileno())
        temp.chmod(FILE)
        temp.replace(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def building(folder: Path, prefix: str = "") -> Iterator[Path]:
    """Give a temporary folder next to `folder`; when the block ends well, sync it and rename it to `folder`.

    What is in it is not synced; `synced` writes files that are. The temporary folder's name begins with
    `prefix`, or with ``.NAME.``.

    Raises:
        OSError: The folder cannot be made; ENOTEMPTY or EEXIST if another one was there first.
    """
    make_folder(folder.parent)
    own = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix or f".{folder.name}."))
    try:
        with naming(folder):
            yield own
        sync_folder(own)
        own.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that must not be there yet; when the block ends well, its bytes are on the disk."""
    with naming(path), open(path, "xb", opener=private) as file:
        os.fchmod(file.fileno(), FILE)  # a umask may take the owner's own rights
        yield file
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(FOLDER, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable, as far as its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as err:
        if err.errno != errno.EINVAL:  # errors of file systems that do not sync folders
            raise
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file atomically, by way of ``.NAME.RANDOM`` next to it.

    One that is not `durable` is whole after its process was killed, but not after a power cut, unless it and
    its folder are synced in between.
    """
    make_folder(path.parent)
    handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), open(handle, "wb", buffering=0) as file:
            os.fchmod(handle, FILE)  # a umask may take the owner's own rights
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            if durable:
                os.fsync(handle)
        os.replace(temp, path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temp)
        raise


@contextmanager
def freeing_later(path: Path, wait: bool = False) -> Iterator[None]:
    """Let the block delete or replace a file, if it is there, without waiting until its blocks are free.

    That can take longer than to write them. It happens in `free`, which a caller with time to wait calls, or
    when the process ends; with `wait` at once.
    """
    try:
        handle = -1 if wait else os.open(path, os.O_RDONLY)
    except OSError:
        handle = -1
    try:
        yield
    finally:
        if handle >= 0:
            _unfreed.append(handle)
            free(MOST_UNFREED)


def free(most: int = 0) -> None:
    """Free the blocks of all but `most` of the files that are gone since the last call."""
    while len(_unfreed) > most:
        os.close(_unfreed.pop(0))


def write_once(path: Path, make: Callable[[], bytes]) -> None:
    """Write what `make` returns, unless the file is there; of processes that start at once, one writes."""
    if path.exists():
        return
    make_folder(path.parent)
    with naming(path), tempfile.NamedTemporaryFile(dir=path.parent) as temp:
        temp.write(make())
        temp.flush()
        with suppress(FileExistsError):
            os.link(temp.name, path)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_safetensors(path: Path, arrays: NamedArrays, metadata: dict[str, str] | None = None) -> None:
    """Replace a safetensors file atomically; equal arrays and metadata give equal bytes."""
    with replacing(path) as temp:
        try:
            _save({k: np.asarray(arrays[k], order="C") for k in sorted(arrays)}, temp, metadata)
        except SafetensorError as err:  # it has the system's error only in its text
            if found := re.search(r"\(os error (\d+)\)", str(err)):
                raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from err
            raise


def _save(arrays: Arrays, path: Path, metadata: dict[str, str] | None) -> None:
    if not any(a.dtype == BFLOAT16 for a in arrays.values()):
        save_file(arrays, path, metadata)
        return
    from safetensors.torch import save_file as save_tensors  # NumPy has no bfloat16; torch takes seconds

    from task.numerics.tensors import tensor_of

    save_tensors({name: tensor_of(a) for name, a in arrays.items()}, path, metadata)


def mapped_safetensors(path: Path, like: NamedArrays) -> Arrays:
    """Return arrays of a safetensors file that this process wrote, read-only, in the memory of the file.

    They have the names, shapes and dtypes of `like`. The file may be deleted or replaced, but not changed.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 8 + size
    return {
        n: np.ndarray(a.shape, a.dtype, data, begin + header[n]["data_offsets"][0]) for n, a in like.items()
    }


def read_safetensors(path: Path) -> tuple[dict[str, str], Arrays]:
    """Return the metadata and the arrays of a safetensors file.

    Raises:
        OSError: It cannot be read.
        SafetensorError: It is damaged.
    """
    with safe_open(path, framework="np") as file:
        names = list(file.keys())
        half = any(file.get_slice(name).get_dtype() == "BF16" for name in names)
        if not half:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: array_of(file.get_tensor(name)) for name in names}

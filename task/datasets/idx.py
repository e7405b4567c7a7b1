"""MNIST and its relatives: images and labels in the idx format, plain or gzipped.

The files are parsed here; torchvision is only imported to download them. Pixels are scaled to
[0, 1] and not standardised, which is enough to reproduce McMahan et al.; of EMNIST it is the balanced split.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.datasets.download import download
from task.errors import DataError, local


@dataclass(frozen=True)
class _Family:
    """One data set in idx files: its folder, its four files, and what they hold."""

    folder: str
    torchvision: str
    files: tuple[str, str, str, str]
    num_classes: int
    transposed: bool = False  # EMNIST stores columns first
    classes: tuple[str, ...] = ()


def _files(train: str, test: str) -> tuple[str, str, str, str]:
    return (
        f"{train}-images-idx3-ubyte",
        f"{train}-labels-idx1-ubyte",
        f"{test}-images-idx3-ubyte",
        f"{test}-labels-idx1-ubyte",
    )


_FASHION = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,boot"
_FAMILIES = {
    "mnist": _Family("MNIST", "MNIST", _files("train", "t10k"), 10),
    "fashion-mnist": _Family(
        "FashionMNIST", "FashionMNIST", _files("train", "t10k"), 10, classes=tuple(_FASHION.split(","))
    ),
    "emnist": _Family(
        "EMNIST",
        "EMNIST",
        _files("emnist-balanced-train", "emnist-balanced-test"),
        47,
        transposed=True,
        classes=tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"),
    ),
}


def locate(request: Request) -> Source:
    """Find the four files in the data folder or in the cache's; download them if there are none."""
    family = _FAMILIES[request.name]
    places = [request.data_dir, request.cache_dir / "data"]
    for place in places:
        found = [_find(place / family.folder / "raw", name) for name in family.files]
        present = [path for path in found if path]
        if len(present) == len(found):
            return Source(tuple(present))
        if present:  # rather than to download over what the user put there
            folder = place / family.folder / "raw"
            missing = [name for name, path in zip(family.files, found, strict=True) if not path]
            raise DataError(
                f"{local(folder)}: expected 4 files of {request.name}; {', '.join(missing)} (or with .gz) "
                "missing. Add what is missing, or remove the others to download all."
            )
    try:
        target = download(request.name, places, f"{family.folder}/raw", partial(_fetch, family))
    except DataError as err:
        raise DataError(f"{err.args[0]} The files are {', '.join(family.files)}, plain or .gz.") from err
    paths = [_find(target, name) for name in family.files]
    if not all(paths):
        raise DataError(
            f"{local(target)}: the download of {request.name} did not leave {', '.join(family.files)}"
        )
    return Source(tuple(path for path in paths if path))


def _find(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def _fetch(family: _Family, root: str) -> None:
    from torchvision import datasets

    more = {"split": "balanced"} if family.folder == "EMNIST" else {}
    getattr(datasets, family.torchvision)(root, download=True, **more)


def decode(request: Request, source: Source) -> Decoded:
    """Parse the four files."""
    family = _FAMILIES[request.name]
    parts = [read_idx(path, ndim) for path, ndim in zip(source.files, (3, 1, 3, 1), strict=True)]
    for images, labels in ((0, 1), (2, 3)):
        if len(parts[images]) != len(parts[labels]):
            raise DataError(
                f"{local(source.files[labels])}: expected {len(parts[images])} labels, one for each image of "
                f"{local(source.files[images].name)}; got {len(parts[labels])}. Fetch both files again."
            )
    x = np.concatenate([parts[0], parts[2]])
    y = np.concatenate([parts[1], parts[3]]).astype(np.int64)
    if family.transposed:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    if len(y) and y.max() >= family.num_classes:
        raise DataError(
            f"{local(source.files[1].parent)}: {request.name} has labels 0..{family.num_classes - 1}; got "
            f"{local(int(y.max()))}. These are files of another data set."
        )
    num_train = len(parts[1])
    return Decoded(
        x=x,
        y=y,
        num_train=num_train,
        num_classes=family.num_classes,
        input_shape=(1, *x.shape[1:]),
        kind="image",
        classes=family.classes,
        description=f"{num_train} training and {len(y) - num_train} test images {x.shape[1]}x{x.shape[2]}",
        source=str(source.files[0].parent),
    )


def read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes.

    Raises:
        DataError: Not such a file, or not of the length that its header tells.
    """
    raw = _read(path)
    header = 4 + 4 * ndim
    if len(raw) < header or raw[:4] != bytes((0, 0, 8, ndim)):
        raise DataError(
            f"{local(path)}: expected an idx file of unsigned bytes with {ndim} dimensions; it begins with "
            f"{local(raw[:4].hex() or 'nothing')} and has {len(raw)} bytes. Fetch the file again."
        )
    shape = struct.unpack(f">{ndim}I", raw[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(raw) != expected:
        unpacked = " unpacked" if path.suffix == ".gz" else ""
        raise DataError(
            f"{local(path)}: the file is damaged: expected {expected} bytes{unpacked} for {shape}; got "
            f"{len(raw)}. Fetch the file again."
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytes:
    """Return the content, unpacked."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise DataError(
            f"{local(path)}: expected a whole gzip file; got {local(err)}. Fetch the file again."
        ) from err

"""MNIST and its relatives: images and labels in the idx format, plain or gzipped.

The files are parsed here; torchvision is only imported to download them. Pixels are scaled to
[0, 1] and not standardised, which is enough to reproduce McMahan et al.; of EMNIST it is the balanced split.
"""

import contextlib
import gzip
import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source, decoded_images
from task.datasets.download import download
from task.errors import DataError, local


class _Family(NamedTuple):
    """One data set in idx files."""

    folder: str  # also the name of torchvision's class
    train: str  # prefix of the training files' names
    test: str
    num_classes: int
    classes: tuple[str, ...] = ()
    transposed: bool = False  # EMNIST stores columns first

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the four files: images and labels of the training set, then of the test set."""
        kinds = "images-idx3-ubyte", "labels-idx1-ubyte"
        return tuple(f"{part}-{kind}" for part in (self.train, self.test) for kind in kinds)


_FASHION = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,boot"
_BALANCED = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
_FAMILIES = {
    "mnist": _Family("MNIST", "train", "t10k", 10),
    "fashion-mnist": _Family("FashionMNIST", "train", "t10k", 10, tuple(_FASHION.split(","))),
    "emnist": _Family(
        "EMNIST", "emnist-balanced-train", "emnist-balanced-test", 47, tuple(_BALANCED), transposed=True
    ),
}


def locate(request: Request) -> Source:
    """Find the four files in the data folder or in the cache's; download them if there are none."""
    family = _FAMILIES[request.name]
    places = [request.data_dir, request.cache_dir / "data"]
    for place in places:
        if files := _find(request.name, place / family.folder / "raw"):
            return Source(files)
    options = {"split": "balanced"} if request.name == "emnist" else {}
    advice = f" The files are {', '.join(family.files)}, plain or .gz."
    target = download(request.name, places, f"{family.folder}/raw", family.folder, advice, **options)
    return Source(_find(request.name, target, fetched=True))


def _find(data_set: str, folder: Path, fetched: bool = False) -> tuple[Path, ...]:
    """Return the four files, or none; refuse a part of them, which a download would replace."""
    names = _FAMILIES[data_set].files
    found = {name: [p for p in (folder / name, folder / f"{name}.gz") if p.is_file()] for name in names}
    missing = [name for name in names if not found[name]]
    if missing and (fetched or len(missing) < len(names)):
        raise DataError(
            f"{local(folder)}: expected 4 files of {data_set}; {', '.join(missing)} (or with .gz) "
            "missing. Add what is missing, or remove the others to download all."
        )
    return () if missing else tuple(paths[0] for paths in found.values())


def decode(request: Request, source: Source) -> Decoded:
    """Parse the four files; images are unpacked into one array, so that no part is in memory twice."""
    family = _FAMILIES[request.name]
    images, labels = [source.files[0], source.files[2]], [source.files[1], source.files[3]]
    counts = [shape_of(path, 3)[0] for path in images]
    for count, path, of in zip(counts, labels, images, strict=True):
        if (got := shape_of(path, 1)[0]) != count:
            raise DataError(
                f"{local(path)}: expected {count} labels, one for each image of {local(of.name)}; got "
                f"{got}. Fetch both files again."
            )
    x, y = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
    if family.transposed:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    if len(y) and y.max() >= family.num_classes:
        raise DataError(
            f"{local(source.files[1].parent)}: {request.name} has labels 0..{family.num_classes - 1}; got "
            f"{local(int(y.max()))}. These are files of another data set."
        )
    more = {"num_classes": family.num_classes, "classes": family.classes}
    return decoded_images(x, y, counts[0], source=str(source.files[0].parent), **more)


def shape_of(path: Path, ndim: int) -> tuple[int, ...]:
    """Return the shape that the header of an idx file of unsigned bytes gives.

    Raises:
        DataError: Not such a file.
    """
    with _opened(path) as file:
        return _shape(path, file.read(4 + 4 * ndim), ndim)


def read_idx(paths: Sequence[Path], ndim: int) -> npt.NDArray[np.uint8]:
    """Read idx files of unsigned bytes, one after the other, into one array ``[N, ...]``.

    Raises:
        DataError: Not such a file, not of the length that its header gives, or of images of another size.
    """
    shapes = [shape_of(path, ndim) for path in paths]
    for path, shape in zip(paths, shapes, strict=True):
        if shape[1:] != shapes[0][1:]:
            raise DataError(
                f"{local(path)}: expected images of {shapes[0][1:]} pixels as in {local(paths[0].name)}; got "
                f"{shape[1:]}. Fetch both files again."
            )
    array, done = np.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), np.uint8), 0
    for path, shape in zip(paths, shapes, strict=True):
        _fill(path, array[done : done + shape[0]], ndim)
        done += shape[0]
    return array


def _fill(path: Path, part: npt.NDArray[np.uint8], ndim: int) -> None:
    """Read what follows the header of a file; raise `DataError` unless it is as long as `part`."""
    content, got = part.reshape(-1).data, 0
    with _opened(path) as file:
        header = len(file.read(4 + 4 * ndim))
        while size := file.readinto(content[got:]):
            got += size
        got += len(file.read(1 << 20))
    if got != part.size:
        unpacked = " unpacked" if path.suffix == ".gz" else ""
        raise DataError(
            f"{local(path)}: the file is damaged: expected {header + part.size} bytes{unpacked} for "
            f"{part.shape}; got {'at least ' if got > part.size else ''}{header + got}. Fetch the file again."
        )


def _shape(path: Path, header: bytes, ndim: int) -> tuple[int, ...]:
    size = path.stat().st_size
    if len(header) < 4 + 4 * ndim or header[:4] != bytes((0, 0, 8, ndim)):
        raise DataError(
            f"{local(path)}: expected an idx file of unsigned bytes with {ndim} dimensions; got one of "
            f"{size} bytes that begins with {local(header[:4].hex() or 'nothing')}. Fetch the "
            "file again."
        )
    return struct.unpack(f">{ndim}I", header[4:])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file, and unpack it if it is gzipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(io.BufferedIOBase, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise DataError(
            f"{local(path)}: expected a whole gzip file; got {local(err)}. Fetch the file again."
        ) from err

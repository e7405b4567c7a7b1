"""MNIST and its relatives: images and labels in the idx format, plain or gzipped.

The files are parsed here; torchvision is only imported to download them. Pixels are scaled to
[0, 1] and not standardised, which is enough to reproduce McMahan et al.; of EMNIST it is the balanced split.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source, decoded_images
from task.datasets.download import download
from task.errors import DataError, local


class _Family(NamedTuple):
    """One data set in idx files."""

    folder: str  # also the name of torchvision's class
    train: str  # how the names of the training files begin
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
    more = {"num_classes": family.num_classes, "classes": family.classes}
    return decoded_images(x, y, len(parts[1]), source=str(source.files[0].parent), **more)


def read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes.

    Raises:
        DataError: Not such a file, or not of the length that its header gives.
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

"""Digit-5: the ten digits in five domains; each domain is a client.

The five come as MATLAB files with M3SDA (Peng et al. 2019, arXiv 1812.01754): MNIST, MNIST-M, SVHN, synthetic
digits and USPS. All become 32x32 RGB, smaller ones by bilinear scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source, by_owner
from task.errors import DataError, local

SIDE = 32
Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # images [N, H, W] or [N, H, W, 3], labels [N]
Contents = list[dict[str, Any]]  # of a domain's files, by MATLAB's names


def _one_hot(files: Contents, images: str, part: str) -> Part:
    return files[0][images], np.argmax(files[0][f"label_{part}"], 1)


def _mnist(files: Contents, part: str) -> Part:
    x, y = _one_hot(files, f"{part}_28", part)
    return x.reshape(len(x), 28, 28), y


def _svhn(files: Contents, part: str) -> Part:
    content = files[part == "test"]
    return content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1) % 10  # 10 is the digit 0


def _usps(files: Contents, part: str) -> Part:
    x, y = files[0]["dataset"][int(part == "test")]
    return np.rint(255 * x.reshape(len(x), *x.shape[-2:])), y.reshape(-1)  # from 0 to 1 in the file


DOMAINS: dict[str, tuple[tuple[str, ...], Callable[[Contents, str], Part]]] = {
    "mnist": (("mnist_data.mat",), _mnist),
    "mnist-m": (("mnistm_with_label.mat",), lambda files, part: _one_hot(files, part, part)),
    "svhn": (("svhn_train_32x32.mat", "svhn_test_32x32.mat"), _svhn),
    "synthetic": (
        ("syn_number.mat",),
        lambda files, part: (files[0][f"{part}_data"], files[0][f"{part}_label"].reshape(-1)),
    ),
    "usps": (("usps_28x28.mat",), _usps),
}


def locate(request: Request) -> Source:
    """Find the six files in ``<data-dir>/digit-5``."""
    folder = request.data_dir / request.name
    files = tuple(folder / name for names, _ in DOMAINS.values() for name in names)
    if missing := [path.name for path in files if not path.is_file()]:
        raise DataError(
            f"{local(folder)}: expected the MATLAB files of Digit-5; got none named "
            f"{', '.join(missing)}. They come with M3SDA, http://ai.bu.edu/M3SDA. Put them there, or set the "
            'run-config key "data-dir" (or $BOUQUET_DATA) to the folder above.'
        )
    return Source(files)


def decode(request: Request, source: Source) -> Decoded:
    """Read all five, each with its own training and test images."""
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    at = iter(source.files)
    for name, (names, read) in DOMAINS.items():
        files = [next(at) for _ in names]
        contents = [_contents(path) for path in files]
        for part, found in parts.items():
            try:
                x, y = read(contents, part)
                found.append((_rgb(x), _digits(y, len(x))))
            except (KeyError, ValueError, IndexError, TypeError, AttributeError) as err:
                raise DataError(
                    f"{local(', '.join(path.name for path in files))}: expected the {part} images and labels "
                    f"of {name} as M3SDA has them; got {local(repr(err))}. Fetch the file again."
                ) from err
    counts = [sum(len(y) for _, y in found) for found in parts.values()]
    return Decoded(
        **by_owner(tuple(DOMAINS), parts["train"], parts["test"]),
        num_classes=10,
        input_shape=(3, SIDE, SIDE),
        kind="image",
        classes=tuple("0123456789"),
        description=f"{len(DOMAINS)} domains, {counts[0]} training and {counts[1]} test images {SIDE}x{SIDE}",
        source=str(source.files[0].parent),
    )


def _contents(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return dict(loadmat(str(path)))
    except Exception as err:  # scipy's own, zlib's, and those of a dozen damages
        raise DataError(
            f"{local(path)}: expected a MATLAB file; got {local(repr(err))}. Fetch it again."
        ) from err


def _digits(labels: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    y = labels.astype(np.int64)
    if y.shape != (count,) or not ((y >= 0) & (y <= 9)).all():
        raise ValueError(f"{y.shape} labels from {y.min()} to {y.max()} for {count} images")
    return y


def _rgb(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return uint8 ``[N, 3, 32, 32]``."""
    from PIL import Image

    x = images.astype(np.uint8)
    out = np.empty((len(x), 3, SIDE, SIDE), np.uint8)
    for i, pixels in enumerate(x):
        scaled = pixels
        if pixels.shape[:2] != (SIDE, SIDE):
            scaled = np.asarray(Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        out[i] = scaled if scaled.ndim == 2 else scaled.transpose(2, 0, 1)
    return out

"""The data of the benchmarks: MNIST as unpacked idx files, which both Bouquet and torchvision read."""

from __future__ import annotations

import gzip
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}


def mnist_folder(work: Path) -> tuple[Path, str]:
    """Return a data folder with ``MNIST/raw`` unpacked, made below `work`, and what is in it.

    MNIST is looked for in $BOUQUET_DATA and ../shared/data. torchvision refuses a .gz whose MD5 it does
    not know, hence unpacked. Where there is none, random images of the same number and size take its
    place: good for timing, not for accuracy.
    """
    places = [os.environ.get("BOUQUET_DATA"), str(ROOT.parent / "shared" / "data")]
    for place in filter(None, places):
        raw = Path(place).expanduser() / "MNIST" / "raw"
        if all((raw / name).is_file() or (raw / f"{name}.gz").is_file() for name in FILES):
            target = work / "mnist"
            _unpack(raw, target / "MNIST" / "raw")
            return target, "MNIST"
    target = work / "stand-in"
    stand_in(target / "MNIST" / "raw", FILES)
    return target, "random images of MNIST's number and size (no MNIST in $BOUQUET_DATA or ../shared/data)"


def _unpack(raw: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (target / name).is_file():
            continue
        temp = target / f".{name}"
        packed = raw / f"{name}.gz"
        opened = partial(gzip.open, packed) if packed.is_file() else (raw / name).open
        with opened("rb") as source, temp.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        temp.replace(target / name)


def stand_in(target: Path, files: dict[str, tuple[int, ...]]) -> None:
    """Write random idx files of these shapes: ten patterns under noise, to be learnt."""
    target.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 128, (10, *next(s for s in files.values() if len(s) == 3)[1:]), np.uint8)
    for images, labels in (("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), _TEST):
        if (target / labels).is_file():
            continue
        y = rng.integers(0, 10, files[labels], np.uint8)
        x = patterns[y] + rng.integers(0, 128, files[images], np.uint8)
        for name, array in ((images, x), (labels, y)):
            header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            (target / name).write_bytes(header + array.tobytes())


_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

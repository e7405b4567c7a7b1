"""Small raw data, and short ways to load them, for the tests of data sets and partitions."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np

from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import Dataset, load_dataset


def load(seed: int = 1, synthetic: SyntheticConfig | None = None, **keys) -> Dataset:
    return load_dataset(DataConfig(**keys), synthetic or SyntheticConfig(), seed)


def write_idx(path: Path, array: np.ndarray, cut: int = 0) -> None:
    """Write an idx file of bytes, gzipped if its name says so, without the last `cut` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    raw = raw[: len(raw) - cut]
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_mnist(data: Path, folder: str = "MNIST", zipped: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Write 50 training and 20 test images 4x4 whose pixels are random; return all 70 and their labels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (70, 4, 4), dtype=np.uint8)
    y = (np.arange(70) % 10).astype(np.uint8)
    end = ".gz" if zipped else ""
    for name, rows in (("train", slice(None, 50)), ("t10k", slice(50, None))):
        write_idx(data / folder / "raw" / f"{name}-images-idx3-ubyte{end}", x[rows])
        write_idx(data / folder / "raw" / f"{name}-labels-idx1-ubyte{end}", y[rows])
    return x, y


def write_roles(data: Path, roles: list[tuple[str, str, list[str]]]) -> Path:
    path = data / "shakespeare" / "roles.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"play": p, "role": r, "lines": text}) for p, r, text in roles]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path

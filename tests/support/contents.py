"""The files of a folder that running processes write to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield each file below a folder with its content, without those that vanish meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path, path.read_bytes()

"""Every reference of an algorithm: a file is found by being there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.reference.driver import Reference


def kinds(of: type[Reference] = Reference) -> Iterator[type[Reference]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


for file in sorted(Path(__file__).parent.glob("*.py")):
    if not file.stem.startswith(("test_", "__")) and file != Path(__file__):
        importlib.import_module(f"tests.reference.{file.stem}")

KINDS = sorted((kind for kind in kinds() if kind.algorithm), key=lambda kind: kind.algorithm)

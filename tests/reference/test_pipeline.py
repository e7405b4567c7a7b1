"""The app, over real messages, against every reference that names an algorithm and cases."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.driver import Reference
from tests.support.personal import against_reference

for file in sorted(Path(__file__).parent.glob("*.py")):
    if not file.stem.startswith(("test_", "__")):
        importlib.import_module(f"tests.reference.{file.stem}")


def kinds(of: type[Reference] = Reference) -> Iterator[type[Reference]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


KINDS = sorted((kind for kind in kinds() if kind.cases), key=lambda kind: kind.algorithm)
CASES = [(kind, case) for kind in KINDS for case in kind.cases]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind.algorithm}-{case}" for kind, case in CASES])
def test_the_pipeline_equals_the_reference(kind: type[Reference], case: str, tmp_path: Path) -> None:
    against_reference(tmp_path, kind, **kind.cases[case])

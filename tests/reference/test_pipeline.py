"""The app, over real messages, against every reference that names an algorithm and cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference.catalogue import KINDS
from tests.reference.driver import Reference
from tests.support.personal import against_reference

CASES = [(kind, case) for kind in KINDS for case in kind.cases]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind.algorithm}-{case}" for kind, case in CASES])
def test_the_pipeline_equals_the_reference(kind: type[Reference], case: str, tmp_path: Path) -> None:
    against_reference(tmp_path, kind, **kind.cases[case])

"""What the tests with real processes share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.case import Rig


@pytest.fixture(scope="module")
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One federation for all faults of a module; of one that failed, kits and logs are kept.

    Its folder is not one of pytest's: a test that is killed leaves a disk mounted there, which pytest would
    try to delete at the end of every later run.
    """
    folder = Path(tempfile.mkdtemp(prefix="bouquet-faults-"))
    failed = request.session.testsfailed
    with Rig(folder) as made:
        yield made
    if request.session.testsfailed > failed:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)

"""What the tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.case import Rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One federation for all faults of a module."""
    with Rig(tmp_path_factory.mktemp("faults")) as made:
        yield made

"""Faults and attacks that a federation must survive on any day, on one federation."""

from __future__ import annotations

import pytest

from tests.faults.case import Case, Rig
from tests.faults.suite import core, hold

pytestmark = pytest.mark.system


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", core())
def test_what_must_hold_holds(case: Case, rig: Rig) -> None:
    hold(case, rig)

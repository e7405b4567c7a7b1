"""Faults of nodes, and what they must not do to a run."""

from __future__ import annotations

import pytest

from tests.faults.case import Case, Rig
from tests.faults.suite import hold, others_of

pytestmark = [pytest.mark.system, pytest.mark.full]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", others_of("cases_nodes", "cases_members", "cases_starts", "cases_gate"))
def test_what_must_hold_holds(case: Case, rig: Rig) -> None:
    hold(case, rig)

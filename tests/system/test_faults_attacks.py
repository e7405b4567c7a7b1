"""Faults of the network, replies that lie, and attacks."""

from __future__ import annotations

import pytest

from tests.faults.case import Case, Rig
from tests.faults.suite import hold, others_of

OTHERS = others_of(
    "cases_files", "cases_network", "cases_orders", "cases_replies", "cases_security", "cases_sites"
)
pytestmark = [pytest.mark.system, pytest.mark.full]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", OTHERS)
def test_what_must_hold_holds(case: Case, rig: Rig) -> None:
    hold(case, rig)

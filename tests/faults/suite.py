"""The cases as tests: which file of the suite runs which, and which run on every commit."""

from __future__ import annotations

import pytest

from tests.faults.case import Case, NotCoveredError, Rig
from tests.faults.table import cases

# What a federation must survive on any day, and what must never get in: in one file, on one federation. The
# others run in `make test-all`.
CORE = frozenset({"R1", "R2", "R3", "R4", "R21", "S1", "S4", "S6", "S11"})


def core() -> list[object]:
    """Return the cases that run on every commit as parameters of a test."""
    return [pytest.param(c, id=c.id) for c in cases() if c.id in CORE]


def others_of(*names: str) -> list[object]:
    """Return the other cases of some modules of `tests.faults` as parameters of a test."""
    modules = {f"tests.faults.{name}" for name in names}
    return [pytest.param(c, id=c.id) for c in cases() if c.run.__module__ in modules and c.id not in CORE]


def hold(case: Case, rig: Rig) -> None:
    """Run a case; one that this machine cannot do is skipped and says why."""
    try:
        print(case.run(rig))
    except NotCoveredError as err:
        pytest.skip(str(err))

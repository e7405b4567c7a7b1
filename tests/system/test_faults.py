"""The table of faults and attacks, one test a case, on one federation of real processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.case import ROOT, Case, NotCoveredError, Rig
from tests.faults.table import PAGE_FILE, cases, page

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in cases()])
def test_what_must_hold_holds(case: Case, rig: Rig) -> None:
    try:
        print(case.run(rig))
    except NotCoveredError as err:
        pytest.skip(str(err))


def test_no_case_is_missing_and_the_page_lists_them_all() -> None:
    ids = [c.id for c in cases()]
    assert ids == [f"R{i}" for i in range(1, 27)] + [f"S{i}" for i in range(1, 18)]
    assert PAGE_FILE.read_text() == page(), "python -m tests.faults --write docs/faults.md"


@pytest.mark.parametrize("test", sorted({t for c in cases() for t in c.tests}))
def test_the_tests_that_a_case_names_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / Path(path)).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not name or name in defined

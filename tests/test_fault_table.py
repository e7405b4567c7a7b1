"""The table of faults and attacks: no case without an id, a test and a line on the page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.case import ROOT
from tests.faults.table import PAGE_FILE, cases, page


def test_no_case_is_missing_and_the_page_lists_them_all() -> None:
    ids = [c.id for c in cases()]
    numbers = {letter: [int(name[1:]) for name in ids if name[0] == letter] for letter in "RS"}
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values()), "a gap"
    assert len(ids) == len(numbers["R"]) + len(numbers["S"])
    assert PAGE_FILE.read_text() == page(), "python -m tests.faults --write docs/explain/faults.md"


def test_each_case_belongs_to_one_module_of_the_suite() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests" / "system").glob("test_faults_*.py"))
    for module in {c.run.__module__.rpartition(".")[2] for c in cases()}:
        assert text.count(f'"{module}"') == 1, module


@pytest.mark.parametrize("test", sorted({t for c in cases() for t in c.tests}))
def test_the_tests_that_a_case_names_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / Path(path)).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not name or name in defined

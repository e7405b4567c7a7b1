"""The notebooks in docs/: their cells run one after the other, from an empty folder."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from task.config.read import knobs
from tests.support.script import ROOT, run_script

NOTEBOOKS = sorted((ROOT / "docs").glob("*/*.ipynb"))


def code_of(path: Path) -> list[str]:
    """Return the cells with code."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def given(tree: ast.AST) -> Iterator[str]:
    """Yield the names of what `run` is given: keywords, and keys of the mappings unpacked among them."""
    runs = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "run"]
    keywords = [keyword for call in runs for keyword in call.keywords]
    yield from (keyword.arg for keyword in keywords if keyword.arg)
    unpacked = [keyword.value for keyword in keywords if not keyword.arg]
    names = {node.id for node in unpacked if isinstance(node, ast.Name)}
    unpacked += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
    ]
    for node in unpacked:
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_of_ours_exists_and_so_do_the_keys_that_it_gives(path: Path) -> None:
    tree = ast.parse("\n".join(code_of(path)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "bouquet":
            assert all(hasattr(importlib.import_module("bouquet"), name.name) for name in node.names)
    found = {name.replace("_", "-") for name in given(tree)} - {"overwrite"}
    assert len(found) > 3
    assert found <= {knob.key for knob in knobs()}


@pytest.mark.full
@pytest.mark.system
def test_every_cell_of_the_notebooks_runs(tmp_path: Path) -> None:
    """A key or column that was renamed would show only when a reader runs the cell."""
    script = "import os\n"
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = code_of(path)
        assert len(code) > 3
        (rounds, *_) = re.findall(r"num_server_rounds\W+(\d+)", "".join(code))
        code = [re.sub(rf"\b{rounds}\b", "2", cell) for cell in code]  # as well where it names the last one
        assert not any(cell.get("outputs") for cell in cells)  # they would hold the folders of a machine
        (tmp_path / path.stem).mkdir()
        cells_of_one = "\n\n".join(code)
        script += f"os.chdir({str(tmp_path / path.stem)!r})\n"
        script += f"exec(compile({cells_of_one!r}, {path.name!r}, 'exec'), {{'__name__': '__main__'}})\n"
    run_script(tmp_path, script, timeout_s=500, MPLBACKEND="Agg")
    assert all(list((tmp_path / path.stem / "runs").glob("*/result.json")) for path in NOTEBOOKS)
